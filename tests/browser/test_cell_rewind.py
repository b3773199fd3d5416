"""A rewind takes back what agents changed in the open notebook, and leaves what the user edited."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.browser.story import Story
from tests.browser.test_cells import THEMES
from tests.browser.test_proposals import (
    CHECK,
    LOOP,
    SUM,
    boxes,
    decisions,
    inserts,
    proposing,
    replaces,
    sources,
    start,
)
from tests.model_server import ModelServer


def test_rewind_takes_back_the_agents_changes_and_keeps_the_users(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    i = start(story, server, proposing(replaces, inserts, until="was accepted.*was accepted"))
    expect(boxes(story)).to_have_count(2)
    story.page.page.get_by_role("button", name="Accept all").click()
    expect(boxes(story)).to_have_count(0)
    assert sources(story)[2:4] == [SUM, CHECK]
    story.wait_card(i + 1, "complete")  # below the inserted cell
    story.page.page.locator(".jp-Notebook .cm-content").nth(3).click()
    story.page.page.keyboard.press("Control+End")
    story.page.page.keyboard.type("  # mine")

    first_read = story.events("tool_finished")[0]["seq"]
    story.run(f"%agents rewind --to {first_read}", wait=False)
    report = story.page.page.locator(".nba-reverted:visible")
    expect(report).to_contain_text("took back the changes of 1 cell")
    expect(report).to_contain_text("Cell 4 stays, because you have edited it since")
    shoot_report(story, report, artifacts)
    assert sources(story)[2:4] == [LOOP, f"{CHECK}  # mine"]

    story.page.wait_until(lambda: story.events("changes_reverted", 2), what="the record")
    [event] = story.events("changes_reverted", 2)
    assert event["changes"] == ["1/1"] and event["by"] and len(event["kept"]) == 1
    assert [how for _, how in decisions(story)] == ["accepted", "accepted"]
    story.page.command("nb-agents:stop-all-now")


def shoot_report(story: Story, report: Locator, artifacts: Path) -> None:
    """Save the report in both themes, narrow and wide."""
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        for width in (720, 1400):
            story.page.page.set_viewport_size({"width": width, "height": 800})
            report.scroll_into_view_if_needed()
            story.page.page.screenshot(path=artifacts / f"cell-rewind-{short}-{width}.png")
