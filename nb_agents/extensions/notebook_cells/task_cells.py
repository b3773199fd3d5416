"""Cells that a task mentions with ``@cell:3`` or ``@cells``, as text for prompts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nb_agents.config.uploads import cell_mentions
from nb_agents.extensions.notebook_cells.cells import Cell, cells_text

MAX_CELL = 8_000
"""Maximum number of characters of a cell in a prompt. `cells.MAX_READ` limits the sum."""
MAX_IDS = 50
"""Maximum number of cells that a call reads, or that a prompt contains."""


class TaskCells(NamedTuple):
    """The cells that a task mentions.

    Attributes:
        ids: The ids of the cells, without duplicates.
        lines: For each mention, a sentence that names its cells.
    """

    ids: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


MAX_LISTED = 5_000
"""Maximum number of cells of a notebook in which mentions are looked up."""


def is_complete(task: str, outline: Sequence[Cell], count: int) -> bool:
    """Return whether a part of the outline is enough to look up the cells that a task mentions.

    Args:
        task: The task.
        outline: The first cells of the notebook.
        count: The number of cells in the notebook.
    """
    if len(outline) >= min(count, MAX_LISTED):
        return True
    known = {str(n) for n in range(1, len(outline) + 1)} | {each.id for each in outline}
    return all(not name or name in known for name in cell_mentions(task))


def find_cells(task: str, outline: Sequence[Cell]) -> TaskCells:
    """Return the cells that a task mentions.

    Args:
        task: The task.
        outline: The cells of the notebook, in order.
    """
    ids, lines = dict[str, None](), list[str]()
    by_name = {str(n): each for n, each in enumerate(outline, start=1)}
    by_name |= {each.id: each for each in outline}
    for name in cell_mentions(task):
        if not name:
            listed = [each.id for each in outline if not each.shows_run][:MAX_IDS]
            ids.update(dict.fromkeys(listed))
            lines.append("@cells means the cells below.")
        elif cell := by_name.get(name):
            ids[cell.id] = None
            lines.append(f"@cell:{name} is cell {cell.id}.")
        else:
            lines.append(f"@cell:{name} is not in the notebook.")
    return TaskCells(tuple(ids)[:MAX_IDS], tuple(lines))


def task_cells_text(notebook: str, cells: Sequence[Cell], found: TaskCells) -> str:
    """Return the cells as text for a prompt. Long cells are shortened.

    Args:
        notebook: The notebook's name.
        cells: The cells with their sources.
        found: The cells that the task mentions.
    """
    text = cells_text(notebook, cells, found.ids, max_cell=MAX_CELL) if found.ids else ""
    return "\n".join([" ".join(found.lines), text]).rstrip()
