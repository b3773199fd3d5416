"""Which agent has changed each line of a notebook's cells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from nb_agents.extensions.notebook_cells.applied import AppliedChange
from nb_agents.extensions.notebook_cells.cells import Cell


class BlamedLine(NamedTuple):
    """A line that an agent has changed.

    Attributes:
        position: The position of the cell in the notebook, starting at 1.
        cell: The cell's id.
        line: The number of the line in the cell, starting at 1.
        text: The line.
        change: The change that the line is from.
    """

    position: int
    cell: str
    line: int
    text: str
    change: AppliedChange


def blame(cells: Iterable[Cell], changes: Sequence[AppliedChange]) -> list[BlamedLine]:
    """Return the lines that are from agents, in the order of the notebook.

    A line that the user has edited since is no longer an agent's.

    Args:
        cells: The notebook's cells.
        changes: The changes that were accepted, oldest first. Other notebooks' changes are ignored.
    """
    changes_by_cell: dict[str, list[AppliedChange]] = {}
    for change in changes:
        if change.op in ("insert", "replace"):
            changes_by_cell.setdefault(change.cell, []).append(change)
    return [
        BlamedLine(position, cell.id, number, text, change)
        for position, cell in enumerate(cells, 1)
        for number, (text, change) in enumerate(_authors(cell, changes_by_cell), 1)
        if change is not None
    ]


def _authors(
    cell: Cell, changes_by_cell: dict[str, list[AppliedChange]]
) -> list[tuple[str, AppliedChange | None]]:
    """Return each line of a cell with the change that it is from, or None for the user's lines."""
    lines, authors = list[str](), list[AppliedChange | None]()
    for change in changes_by_cell.get(cell.id, ()):
        # Between two changes, the user may have edited the cell.
        before, after = change.before.splitlines(), change.after.splitlines()
        authors = _carried(lines, authors, before, None)
        authors = _carried(before, authors, after, change)
        lines = after
    current = cell.source.splitlines()
    return [*zip(current, _carried(lines, authors, current, None), strict=True)]


def _carried(
    before: Sequence[str],
    authors: Sequence[AppliedChange | None],
    after: Sequence[str],
    author: AppliedChange | None,
) -> list[AppliedChange | None]:
    """Return the authors of new lines: unchanged lines keep theirs, and all others get `author`."""
    new = [author] * len(after)
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for start, new_start, size in matcher.get_matching_blocks():
        new[new_start : new_start + size] = authors[start : start + size]
    return new
