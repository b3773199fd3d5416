"""Stop reaches a run while another cell blocks the kernel, with each setting for comms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.lab import Lab, NotebookPage
from tests.browser.story import KERNELS_SETTINGS, Story, agent, server_team
from tests.model_server import ModelServer

SAYS = "I compare the three stores by their cold reads. " * 20
SLEEPS = "import time\nprint('asleep', flush=True)\ntime.sleep(3600)"


@pytest.fixture(autouse=True, params=["default", "disabled"])
def comms(request: pytest.FixtureRequest, lab: Lab, tab: NotebookPage) -> Iterator[str]:
    """Set JupyterLab's `commsOverSubshells` in a reloaded page."""
    is_default = request.param == "default"
    values = {} if is_default else {"commsOverSubshells": request.param}
    lab.set_settings({KERNELS_SETTINGS: values})
    tab.leave()
    yield str(request.param)
    lab.set_settings({KERNELS_SETTINGS: {}})
    tab.leave()


def test_stop_reaches_the_run_while_another_cell_sleeps(
    story: Story, server: ModelServer, comms: str
) -> None:
    server.script("m", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    known = story.page.page.evaluate(
        "id => jupyterapp.serviceManager.settings.fetch(id).then(s => s.raw)", KERNELS_SETTINGS
    )
    assert ("disabled" in known) == (comms == "disabled")
    i = story.start("Compare", story.team(server_team(server, ada="m", ben="m")))
    story.wait_running(i)
    sleeping = story.run(SLEEPS, wait=False)
    story.page.wait_for_text("asleep", sleeping)

    story.page.click_button("Stop", i)
    expect(story.chip(i)).to_contain_text("Stopping…")
    story.page.click_button("Stop now", i)
    story.wait_card(i, "stopped")  # the end is shown too
    assert story.page.prompt(sleeping) == "[*]:"
    stops = story.events("stop_requested")
    assert [stop["level"] for stop in stops] == ["requested", "immediate"]
    assert [stop["source"] for stop in stops] == ["widget", "widget"]

    story.page.interrupt()
    story.page.wait_for_text("KeyboardInterrupt", sleeping)
    story.page.wait_idle()
    assert story.page.output_text(story.run("6 * 7")) == "42"


def test_interrupt_of_another_cell_does_not_stop_the_run(story: Story, server: ModelServer) -> None:
    server.script("m", agent("Done.", SAYS))
    server.hold(5)
    story.open()
    i = story.start("Compare", story.team(server_team(server, ada="m")))
    story.wait_running(i)
    sleeping = story.run(SLEEPS, wait=False)
    story.page.wait_for_text("asleep", sleeping)
    story.page.interrupt()
    story.page.wait_for_text("KeyboardInterrupt", sleeping)
    story.page.wait_idle()
    expect(story.chip(i)).to_have_text("running")
    assert story.events("stop_requested") == []
    server.release()
    story.wait_card(i, "complete")
