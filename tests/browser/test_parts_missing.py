"""The plugin and the server extension are optional: the panel works without each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, NotebookPage, start_lab
from tests.browser.story import Story, agent, server_team
from tests.model_server import ModelServer

SAYS = "I compare the three stores by their cold reads and by what they cost. " * 20
STOPPING = re.compile("Stopping")


@pytest.fixture(scope="module", params=["server extension", "plugin"])
def lab(
    request: pytest.FixtureRequest,
    lab: Lab,
    tabs: list[NotebookPage],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """A JupyterLab in which a part of nb_agents is disabled."""
    if request.param == "server extension":
        flags = ["--ServerApp.jpserver_extensions={'nb_agents': False}"]
        with start_lab(tmp_path_factory.mktemp("lab"), extra=flags) as other:
            yield other
        return
    _load_without(lab, tabs, "nb-agents")
    yield lab
    _load_without(lab, tabs)


def _load_without(lab: Lab, tabs: list[NotebookPage], *plugins: str) -> None:
    """Disable exactly these plugins in pages that are loaded from now on."""
    lab.disable_plugins(*plugins)
    for tab in tabs:
        tab.leave()


@pytest.fixture
def story(story: Story, lab: Lab) -> Story:
    # The browser logs that the plugin gets no response.
    story.harmless.append(re.escape(f"404 (Not Found) ({lab.url}/nb-agents/"))
    return story


def test_disabled_part_is_missing(story: Story, request: pytest.FixtureRequest) -> None:
    story.open()
    has = story.page.page.evaluate(
        """async () => [
        jupyterapp.commands.hasCommand('nb-agents:stop-all'),
        (await fetch('/nb-agents/runs')).ok]"""
    )
    missing = request.node.callspec.params["lab"]
    assert has == {"server extension": [True, False], "plugin": [False, True]}[missing]


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_panel_stops_a_run_and_the_card_is_shown(
    story: Story, server: ModelServer, is_reloaded: bool
) -> None:
    server.script("m", agent("Redis is simplest.", SAYS))
    server.hold(30)
    story.open()
    i = story.start("Compare caches", story.team(server_team(server, ada="m", ben="m")))
    story.wait_running(i)
    if is_reloaded:
        story.page.save()
        story.page.reload()
        expect(story.row(i, "ada").locator(".says")).to_contain_text("cold reads")
    expect(story.panel(i)).to_be_visible()
    expect(story.card(i).locator("visible=true")).to_have_count(0)
    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_have_text(STOPPING)
    story.page.click_button("Stop now", i)
    # A reloaded page can't replace its output, so the card is in the panel.
    expect(story.card(i).locator("visible=true")).to_contain_text("Incomplete turn. Stopped by you")
    expect(story.page.button("Stop now", i)).to_have_count(0)
    if not is_reloaded:
        story.wait_card(i, "stopped")
