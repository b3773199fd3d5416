"""Proposed changes: their diffs, and how they are applied to a notebook's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.changes import (
    MAX_OPEN,
    Applied,
    CellChange,
    apply_changes,
    check_changes,
    describe,
    diff,
    patch_text,
)
from tests.kit.notebook_cells import CellsState, ChangeProposed, Proposal, digest


def notebook(**sources: str) -> dict[str, Any]:
    cells = [{"id": name, "cell_type": "code", "source": text} for name, text in sources.items()]
    return {"cells": cells, "nbformat": 4}


def change(number: int, op: Any, cell: str = "", base: str = "", **more: Any) -> ChangeProposed:
    made = digest("code", base) if cell else ""
    return ChangeProposed(
        agent="ada",
        number=number,
        group=1,
        op=op,
        cell=cell,
        base=made,
        base_source=base,
        **more,
    )


def sources(applied: Applied) -> list[str]:
    return [cell["source"] for cell in applied.notebook["cells"]]


def test_changes_are_applied_by_id() -> None:
    before = notebook(a="1", b="2", c="3")
    changes = [
        change(1, "delete", "a", "1"),
        change(2, "replace", "c", "3", source="33"),
        change(3, "insert", after="b", source="new"),
        change(4, "insert", after="b", source="newer", cell_type="markdown"),
        change(5, "insert", source="top"),
    ]
    applied = apply_changes(before, changes)
    assert sources(applied) == ["top", "2", "new", "newer", "33"]
    assert [*applied.done] == [1, 2, 3, 4, 5] and not applied.stale
    assert applied.notebook["cells"][2]["outputs"] == []
    assert "outputs" not in applied.notebook["cells"][3]
    ids = [cell["id"] for cell in applied.notebook["cells"]]
    assert len({*ids}) == len(ids)
    assert before == notebook(a="1", b="2", c="3")


def test_changed_and_missing_cells_stay_as_they_are() -> None:
    before = notebook(a="1 # mine")
    changes = [
        change(1, "replace", "a", "1", source="2"),
        change(2, "delete", "gone", "x"),
        change(3, "insert", after="gone", source="x"),
    ]
    applied = apply_changes(before, changes)
    assert applied.notebook == before
    assert applied.stale == (1, 2, 3)


def test_cell_is_moved_below_another_one_or_to_the_top() -> None:
    before = notebook(a="1", b="2", c="3")
    moved = apply_changes(before, [change(1, "move", "a", "1", after="c")])
    assert sources(moved) == ["2", "3", "1"] and moved.notebook["cells"][2]["id"] == "a"
    assert sources(apply_changes(before, [change(1, "move", "c", "3")])) == ["3", "1", "2"]
    gone = apply_changes(before, [change(1, "move", "a", "1", after="gone")])
    assert gone.stale == (1,) and gone.notebook == before
    assert describe(change(1, "move", "a", "1", after="c")) == "move cell a after cell c"
    assert describe(change(1, "move", "a", "1")) == "move cell a to the top"


def test_cell_whose_metadata_says_never_stays_as_it_is() -> None:
    before = notebook(a="1")
    before["cells"][0]["metadata"] = {"nb-agents": {"edit": "never"}}
    applied = apply_changes(before, [change(1, "replace", "a", "1", source="2")])
    assert applied.notebook == before and applied.stale == (1,)


def test_source_as_a_list_of_lines_has_the_same_digest() -> None:
    before = notebook(a="")
    before["cells"][0]["source"] = ["x = 1\n", "y = 2"]
    applied = apply_changes(before, [change(1, "replace", "a", "x = 1\ny = 2", source="z")])
    assert sources(applied) == ["z"]


def test_patch_names_each_change_and_shows_its_diff() -> None:
    replaced = change(1, "replace", "a", "x = 1\ny = 2", source="x = 1\ny = 3")
    assert describe(replaced) == "replace cell a"
    assert diff(replaced).splitlines()[1:] == [" x = 1", "-y = 2", "+y = 3"]
    inserted = change(2, "insert", source="z", cell_type="raw")
    text = patch_text([replaced, inserted])
    assert f"# 1: replace cell a (digest {replaced.base}), proposed by ada" in text
    assert "# 2: insert a raw cell at the top, proposed by ada" in text and "+z" in text


def test_a_run_has_a_limited_number_of_open_proposals() -> None:
    state, inserted = CellsState(), CellChange(op="insert", source="x")
    for _ in range(MAX_OPEN):
        (event,) = check_changes(state, "ada", [inserted], "")
        state = CellsState(proposals={**state.proposals, event.number: Proposal(event)})
    with pytest.raises(UserError, match="There are 50 open proposals"):
        check_changes(state, "ada", [inserted], "")
