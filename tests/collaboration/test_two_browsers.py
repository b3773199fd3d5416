"""Two people with jupyter-collaboration see and decide the same proposals in one notebook."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.story import Story
from tests.browser.test_changed_cells import deletes, select
from tests.browser.test_proposals import (
    CHECK,
    LOOP,
    SUM,
    boxes,
    inserts,
    proposing,
    replaces,
    sources,
    start,
)
from tests.browser.typing_play import cursor_cells
from tests.collaboration.conftest import PEOPLE, artifact
from tests.model_server import ModelServer

OTHER = "print(total)"
ACCEPT_ALL = "document.querySelectorAll('.nba-changes button')[1].click()"

expect.set_options(timeout=60_000)


@pytest.mark.timeout(300)
def test_both_see_each_proposal_and_each_decision_once(
    stories: tuple[Story, Story], server: ModelServer
) -> None:
    ada, kim = stories
    other = lambda cell, digest: {"op": "insert", "after": cell, "source": OTHER}  # noqa: E731
    start(ada, server, proposing(replaces, inserts, other))
    kim.page.open_notebook(ada.page.notebook)
    for story in (ada, kim):
        expect(boxes(story)).to_have_count(3)

    # What one accepts, both have. The text that the other types meanwhile stays.
    ada.page.cell(1).locator(".cm-content").click()
    ada.page.page.keyboard.press("Control+End")
    boxes(kim).first.get_by_role("button", name="Accept").click()
    ada.page.page.keyboard.type("  # mine")
    for story in (ada, kim):
        expect(boxes(story)).to_have_count(2)
        story.page.wait_until(lambda: SUM in sources(story), what="the change")  # noqa: B023
        story.page.wait_until(
            lambda: sources(story)[1].endswith("# mine"),  # noqa: B023
            what="the text",
        )

    # Both click at the same time.
    for story in (ada, kim):
        story.page.page.evaluate(ACCEPT_ALL)
    for story in (ada, kim):
        expect(boxes(story)).to_have_count(0)
    ada.page.wait_until(lambda: len(ada.events("change_decided")) == 3, what="the decisions")
    for story in (ada, kim):
        found = ada.page.wait_until(lambda: complete(story), what="the changes")  # noqa: B023
        assert [found.count(each) for each in (SUM, LOOP, CHECK, OTHER)] == [1, 0, 1, 1]
    decided = ada.events("change_decided")
    assert [each["how"] for each in decided] == ["accepted"] * 3
    assert decided[0]["by"] == "kim" and {each["by"] for each in decided} <= {*PEOPLE}

    # One stops the run that the other has started.
    kim.page.command("nb-agents:stop-all-now")
    for story in (ada, kim):
        expect(story.page.page.get_by_text("Incomplete turn.").first).to_be_visible()
    [stop] = ada.events("stop_requested")
    assert "kim" in stop["reason"]
    kim.page.page.screenshot(path=artifact("collaboration.png"))


def complete(story: Story) -> list[str]:
    found = sources(story)
    return found if {SUM, CHECK, OTHER} <= {*found} else []


@pytest.mark.timeout(300)
def test_cell_with_the_cursor_of_another_user_is_not_deleted(
    stories: tuple[Story, Story], server: ModelServer
) -> None:
    ada, kim = stories
    start(ada, server, proposing(deletes))
    kim.page.open_notebook(ada.page.notebook)
    expect(boxes(kim)).to_have_count(1)
    select(kim, 2)
    ada.page.wait_until(lambda: cursor_cells(ada) == [2], what="the cursor of kim")
    boxes(ada).get_by_role("button", name="Accept").click()
    told = "The cell was not deleted, because the cursor of kim is in it."
    expect(ada.page.page.get_by_text(told).first).to_be_visible()
    assert LOOP in sources(ada)

    # The cursor stays in its cell when the other user moves a cell.
    select(ada, 1)
    ada.page.command("notebook:move-cell-up")
    kim.page.wait_until(lambda: sources(kim)[0].startswith("numbers"), what="the moved cell")
    kim.page.page.keyboard.type("#")
    assert sources(kim)[2] == f"#{LOOP}"
    kim.page.page.keyboard.press("Backspace")

    select(kim, 0)
    ada.page.wait_until(lambda: cursor_cells(ada) == [0], what="the cursor of kim")
    boxes(ada).get_by_role("button", name="Accept").click()
    for story in (ada, kim):
        expect(boxes(story)).to_have_count(0)
        story.page.wait_until(lambda: LOOP not in sources(story), what="it")  # noqa: B023
    ada.page.command("nb-agents:stop-all-now")
