"""Proposals stay right while cells are moved, split and merged, and while the file changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4
from playwright.sync_api import expect

from tests.browser.story import LOAD, Story, server_team
from tests.browser.test_cells import THEMES, shoot
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


def moves(cell: str, digest: str) -> dict[str, Any]:
    return {"op": "move", "id": cell, "digest": digest, "after": ""}


def deletes(cell: str, digest: str) -> dict[str, Any]:
    return {"op": "delete", "id": cell, "digest": digest}


def select(story: Story, cell: int, line: int = 0) -> None:
    """Put the cursor at the start of a line."""
    story.page._do(
        "panel.content.deselectAll(); panel.content.activeCellIndex = arg[0];"
        "panel.content.mode = 'edit'; panel.content.activeCell.editor.focus();"
        "panel.content.activeCell.editor.setCursorPosition({line: arg[1], column: 0})",
        [cell, line],
    )


def test_proposal_follows_its_cell_and_never_overwrites_it(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    start(story, server, proposing(replaces, inserts), "print(total)")
    expect(boxes(story)).to_have_count(2)
    select(story, 2)
    for command in ("notebook:move-cell-down", "notebook:duplicate-below"):
        story.page.command(command)
    assert sources(story)[2:5] == ["print(total)", LOOP, LOOP]
    story.page.run_cell(3)
    expect(story.page.cell(3).locator(".nba-change")).to_have_count(2)
    box = boxes(story).filter(has_text="to change this cell")
    expect(box.get_by_role("button", name="Accept")).to_be_visible()
    boxes(story).filter(has_text="proposes a new cell").get_by_role("button", name="Accept").click()
    expect(boxes(story)).to_have_count(1)
    assert sources(story)[3:6] == [LOOP, CHECK, LOOP]

    # The lower half keeps the cell's id, and a merged cell gets a new one.
    select(story, 3, line=1)
    story.page.command("notebook:split-cell-at-cursor")
    expect(box).to_contain_text("The cell has changed since the agent read it")
    expect(box.get_by_role("button", name="Accept")).to_be_hidden()
    shoot(story, artifacts, "proposal-of-a-split-cell")
    select(story, 3)
    story.page._do("panel.content.extendContiguousSelectionTo(4)")
    story.page.command("notebook:merge-cells")
    expect(box).to_contain_text("The cell is no longer in the notebook")
    box.get_by_role("button", name="Insert as a new cell").click()
    expect(boxes(story)).to_have_count(0)
    merged = LOOP.replace("\n", "\n\n", 1)
    assert [sources(story).count(each) for each in (merged, LOOP, SUM)] == [1, 1, 1]
    story.page.wait_until(lambda: len(decisions(story)) == 2, what="the decisions")
    assert sorted(how for _, how in decisions(story)) == ["accepted", "inserted"]
    story.page.command("nb-agents:stop-all-now")


def test_file_that_changed_on_disk_makes_a_conflict(story: Story, server: ModelServer) -> None:
    start(story, server, proposing(replaces))
    expect(boxes(story)).to_have_count(1)
    story.page.save()
    notebook = story.page.saved()
    notebook.cells[2].source += "  # from another program"
    nbformat.write(notebook, story.page.lab.root / story.page.notebook)
    story.page.set_cell_source(1, "numbers = [1, 2, 3, 4]")
    story.page._start("docmanager:save")
    story.page.page.locator(".jp-Dialog").get_by_role("button", name="Revert").click()
    box = boxes(story).first
    expect(box).to_contain_text("The cell has changed since the agent read it")
    expect(box.get_by_role("button", name="Accept")).to_be_hidden()
    assert sources(story)[2] == f"{LOOP}  # from another program"
    box.get_by_role("button", name="Reject").click()
    expect(boxes(story)).to_have_count(0)
    story.page.wait_until(lambda: decisions(story) == [(1, "stale")], what="the decision")
    story.page.command("nb-agents:stop-all-now")


def test_accepted_change_that_a_revert_took_away_is_offered_again(
    story: Story, server: ModelServer
) -> None:
    start(story, server, proposing(replaces, inserts))
    expect(boxes(story)).to_have_count(2)
    story.page.save()
    boxes(story).first.get_by_role("button", name="Accept").click()
    expect(boxes(story)).to_have_count(1)
    story.page.wait_until(lambda: decisions(story) == [(1, "accepted")], what="the decision")
    notebook = story.page.saved()
    notebook.cells[1].source = "numbers = [3]"
    nbformat.write(notebook, story.page.lab.root / story.page.notebook)
    story.page._start("docmanager:save")
    story.page.page.locator(".jp-Dialog").get_by_role("button", name="Revert").click()
    box = boxes(story).filter(has_text="closed or reverted before it was saved")
    expect(box).to_be_visible()
    assert sources(story)[1:3] == ["numbers = [3]", LOOP]
    box.get_by_role("button", name="Accept").click()
    expect(boxes(story)).to_have_count(1)
    assert sources(story)[1:3] == ["numbers = [3]", SUM]
    expect(story.page.page.locator(".nba-changes")).to_contain_text("1 proposed change")
    assert decisions(story) == [(1, "accepted")]
    story.page.command("nb-agents:stop-all-now")


@pytest.mark.parametrize(("change", "done"), [(moves, "moved"), (deletes, "deleted")])
def test_cell_is_neither_moved_nor_deleted_while_the_cursor_is_in_it(
    story: Story, server: ModelServer, change: Callable[[str, str], dict[str, Any]], done: str
) -> None:
    start(story, server, proposing(change))
    expect(boxes(story)).to_have_count(1)
    page, accept = story.page.page, boxes(story).get_by_role("button", name="Accept")
    before = sources(story)
    story.page.cell(2).locator(".cm-content").first.click()
    page.keyboard.press("Control+End")
    accept.evaluate("button => button.click()")  # a mouse would take the cursor away
    told = f"The cell was not {done}, because your cursor is in it."
    expect(page.get_by_text(told).first).to_be_visible()
    page.keyboard.type("!")
    assert sources(story) == [f"{each}!" if each == LOOP else each for each in before]
    page.keyboard.press("Backspace")
    accept.click()
    expect(boxes(story)).to_have_count(0)
    moved = [LOOP] if done == "moved" else []
    assert sources(story) == moved + [each for each in before if each != LOOP]
    story.page.wait_until(lambda: decisions(story) == [(1, "accepted")], what="the decision")
    story.page.command("nb-agents:stop-all-now")


def test_cursor_stays_in_its_cell_when_another_cell_is_moved(
    story: Story, server: ModelServer
) -> None:
    start(story, server, proposing(moves), "print(total)", "# mine")
    expect(boxes(story)).to_have_count(1)
    before = sources(story)
    story.page.cell(4).locator(".cm-content").first.click()
    story.page.page.keyboard.press("Control+End")
    accept = boxes(story).get_by_role("button", name="Accept")
    accept.evaluate("button => button.click()")  # a mouse would take the cursor away
    expect(boxes(story)).to_have_count(0)
    story.page.page.keyboard.type("!")
    rest = [each for each in before if each != LOOP]
    assert sources(story) == [LOOP] + [f"{each}!" if each == "# mine" else each for each in rest]
    story.page.command("nb-agents:stop-all-now")


def test_notebook_without_ids_is_changed_moved_back_and_saved(
    story: Story, server: ModelServer, artifacts: Path
) -> None:
    cells = [v4.new_code_cell(each) for each in (LOAD, "numbers = [1]", LOOP, "# spare\n\n")]
    for cell in cells:
        del cell["id"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}, nbformat_minor=4)
    path = story.folder / "story.ipynb"
    path.write_text(nbformat.writes(notebook, version=nbformat.NO_CONVERT))
    page = story.page
    show = page.show_notebook if page.is_loaded() else page.open_notebook
    show(f"{story.folder.name}/{path.name}")
    story.page.run_cell(0)
    before = sources(story)
    server.script("m", proposing(moves, inserts, until="was accepted.*was accepted"))
    team = story.team(server_team(server, ada="m"))
    i = story.start("Tidy up", f"--notebook propose {team}")
    expect(boxes(story)).to_have_count(2)
    shoot(story, artifacts, "proposal-of-a-move")
    story.page.page.get_by_role("button", name="Accept all").click()
    story.wait_card(i + 1, "complete")
    assert sources(story)[:5] == [LOOP, CHECK, *before[:2], before[3]]

    first_read = story.events("tool_finished")[0]["seq"]
    server.script("m", proposing(deletes, until="."))
    story.run(f"%agents rewind --to {first_read}", wait=False)
    report = story.page.page.locator(".nba-reverted:visible")
    expect(report).to_contain_text("took back the changes of 2 cells")
    assert sources(story)[:4] == before
    report.get_by_role("button", name="Close").click()

    # New ids after a reload: an open deletion is neither done nor applied to another cell.
    expect(boxes(story)).to_have_count(1)
    for short, theme in THEMES.items():
        story.page.set_theme(theme)
        boxes(story).first.screenshot(path=artifacts / f"cells-proposal-of-a-deletion-{short}.png")
    story.wait_card(story.page.cell_count() - 1, "complete")
    story.page.save()
    saved = story.page.saved()
    assert saved.nbformat_minor == 4 and not any("id" in cell for cell in saved.cells)
    story.page.reload()
    expect(boxes(story).first).to_contain_text("The cell is no longer in the notebook")
    assert sources(story)[:4] == before
    assert not story.events("change_decided", 2)
