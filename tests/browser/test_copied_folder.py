"""Clicks on a card in a downloaded directory: a notebook of another user with its sessions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbformat import v4
from playwright.sync_api import Locator, expect

import nb_agents
from nb_agents import RunOptions
from tests.browser.lab import Lab, write_notebook
from tests.browser.story import LOAD, Story, demo_team
from tests.kit.cards import card_bundle
from tests.kit.sessions import turns_of
from tests.kit.teams import TeamSpec
from tests.team_kit import WAIT_S

NOT_YOURS = "was not created by you"
RECIPE = """\
name: build
description: Builds.
version: 1.0.0
steps:
  - id: make
    type: bash
    command: echo x >> {ran}; exit 1
"""


@pytest.fixture
def theirs(story: Story, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another user's session with a failed command, next to its notebook."""
    (story.folder / "build.yaml").write_text(RECIPE.format(ran=story.folder / "ran"))
    with monkeypatch.context() as as_another:
        as_another.setenv("XDG_STATE_HOME", str(story.folder / "home"))
        run = nb_agents.start(
            session="theirs",
            config=TeamSpec.model_validate(demo_team(10_000, 1)),
            recipe=story.folder / "build.yaml",
            options=RunOptions(session_root=story.folder / ".nb_agents" / "sessions"),
        )
        run.wait(WAIT_S, raise_on_stop=False)
    assert run.status == "failed"
    data = card_bundle(run.view, ".nb_agents/sessions/theirs/turn_1", directory=run.path)
    cell = v4.new_code_cell("%agents show", outputs=[v4.new_output("display_data", data)])
    write_notebook(story.folder / "story.ipynb", [cell])
    return run.path.parent


def ran(session: Path) -> int:
    """Return how often the session's command has run."""
    return (session.parents[2] / "ran").read_text().count("x")


def opened(story: Story, lab: Lab, *, trusted: bool = False, kernel: bool = True) -> None:
    path = f"{story.folder.name}/story.ipynb"
    if trusted:
        lab.api(f"contents/{path}/trust", "POST")
    story.page.open_notebook(path, kernel=kernel)
    assert story.page._ask("panel.content.model.cells.get(0).trusted") is trusted
    expect(story.page.button("Resume", 0)).to_be_visible()


def test_click_in_an_untrusted_notebook_runs_nothing(story: Story, lab: Lab, theirs: Path) -> None:
    opened(story, lab)
    story.page.click_button("Resume", 0)
    story.page.wait_until(lambda: story.page.cell_count() == 2, what="a cell to read")
    story.page.wait_until(lambda: "%agents resume theirs" in story.page.cell_source(1))
    story.page.wait_idle()
    assert story.page.prompt(1).strip("[]: \xa0") == ""
    # The reader runs it and must confirm.
    story.page.run_cell(1)
    story.page.wait_for_text(NOT_YOURS, 1)
    story.page.wait_for_text("command of make: echo x >>", 1)
    assert (len(turns_of(theirs)), ran(theirs)) == (1, 1)
    # Trust the session.
    new = story.page.append_cell("%agents resume theirs --wait --trust")
    story.page.run_cell(new)
    assert (len(turns_of(theirs)), ran(theirs)) == (2, 2)


def test_click_in_a_trusted_notebook_shows_a_preview_and_runs_nothing(
    story: Story, lab: Lab, theirs: Path
) -> None:
    opened(story, lab, trusted=True)
    story.page.run_cell(story.page.append_cell(LOAD))
    story.page.click_button("Resume", 0)
    asked = dialog(story)
    expect(asked).to_contain_text(NOT_YOURS)
    expect(asked).to_contain_text("command of make: echo x >>")
    asked.get_by_role("button", name="Cancel").click()
    expect(asked).to_have_count(0)
    assert (len(turns_of(theirs)), ran(theirs)) == (1, 1)


def test_page_without_a_kernel_asks_before_it_resumes(story: Story, lab: Lab, theirs: Path) -> None:
    story.harmless.append("status of 428")  # Chromium's messages about two refusals
    opened(story, lab)
    story.page.shutdown_kernel()
    story.page.click_button("Resume", 0)
    asked = dialog(story)
    expect(asked).to_contain_text(NOT_YOURS)
    expect(asked).to_contain_text("command of make: echo x >>")
    asked.get_by_role("button", name="Cancel").click()
    expect(asked).to_have_count(0)
    assert (len(turns_of(theirs)), ran(theirs)) == (1, 1)
    story.page.click_button("Resume", 0)
    dialog(story).get_by_role("button", name=re.compile("Trust")).click()
    story.page.wait_until(lambda: ran(theirs) == 2, what="the command to run")


def dialog(story: Story) -> Locator:
    return story.page.page.locator(".jp-Dialog")
