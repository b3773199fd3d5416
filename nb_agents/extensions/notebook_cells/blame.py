"""Which agent has changed each line of a notebook's cells. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nb_agents.extensions.notebook_cells.applied import AppliedChange
from nb_agents.extensions.notebook_cells.cells import Cell
from nb_agents.launch.file_blame import carried


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
        authors = carried(lines, authors, before, None)
        authors = carried(before, authors, after, change)
        lines = after
    current = cell.source.splitlines()
    return [*zip(current, carried(lines, authors, current, None), strict=True)]
