"""Proposed changes of cells: how they are checked, shown and applied to a notebook's JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import unified_diff
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from nb_agents.config.secret_names import MASK
from nb_agents.errors import UserError
from nb_agents.extensions.notebook_cells.cell_events import CellsState, ChangeProposed
from nb_agents.extensions.notebook_cells.cells import Cell, digest, is_allowed, source_of
from nb_agents.unicode import json_text

MAX_CHANGES = 20
"""Maximum number of changes in a call."""
MAX_OPEN = 50
"""Maximum number of open proposals of a turn."""
MAX_SOURCE = 100_000
"""Maximum length of a proposed source, in characters."""
MAX_TOTAL = 200_000
"""Maximum length of all sources that are proposed in a call, in characters."""
MAX_REMOVED = 500_000
"""Maximum length of a deleted cell's JSON text that is recorded, in characters.

Of a longer one, only the source is recorded.
"""
MAX_ABOVE = 20
"""Maximum number of cells above a deleted or moved cell that are recorded."""
MAX_WHY = 500
"""Maximum length of the reason, in characters."""


class CellChange(BaseModel):
    """A change that an agent proposes. The field descriptions are for models."""

    model_config = ConfigDict(extra="forbid")

    op: Literal["insert", "replace", "delete", "move"]
    id: str = Field("", description="For replace, delete and move: the cell's id.")
    digest: str = Field(
        "", description="For replace, delete and move: the digest that notebook_read returned."
    )
    after: str = Field(
        "",
        description="For insert and move: the id of the cell above. Empty for the top of the "
        "notebook.",
    )
    source: str = Field("", description="For insert and replace: the whole new source.")
    cell_type: Literal["code", "markdown", "raw"] = Field(
        "code", description="For insert: the type of the new cell."
    )


def check_changes(
    state: CellsState, agent: str, changes: Sequence[CellChange], why: str
) -> list[ChangeProposed]:
    """Return the events that propose an agent's changes.

    Args:
        state: What was read and proposed so far.
        agent: The agent's id.
        changes: The changes.
        why: The reason, for the user.

    Raises:
        UserError: A change is invalid or too large, or its cell was not read or has changed.
    """
    if not 1 <= len(changes) <= MAX_CHANGES:
        raise UserError(f"A call can propose 1 to {MAX_CHANGES} changes, not {len(changes)}.")
    if len(state.open) + len(changes) > MAX_OPEN:
        raise UserError(
            f"There are {len(state.open)} open proposals, and at most {MAX_OPEN} are allowed. "
            "Wait for the user's decisions."
        )
    if sum(len(each.source) for each in changes) > MAX_TOTAL:
        raise UserError(f"The sources of a call can have at most {MAX_TOTAL} characters.")
    first = state.next_number
    open_by_cell = {each.cell: each.number for each in state.open if each.cell}
    proposed = []
    for number, change in enumerate(changes, first):
        _check_text(change)
        cell = None if change.op == "insert" else _checked_cell(state, change, open_by_cell)
        if cell is not None:
            open_by_cell[cell.id] = number
        if change.op in _PLACED:
            _check_place(state, change)
        proposed.append(_event(agent, number, first, change, cell, why[:MAX_WHY]))
    return proposed


_PLACED = ("insert", "move")


def _check_place(state: CellsState, change: CellChange) -> None:
    if change.after and change.after not in state.seen_ids:
        raise UserError(f"There is no cell {change.after!r}. Read the outline first.")
    if change.op == "move" and change.after == change.id:
        raise UserError(f"Cell {change.id!r} can't be moved below itself.")


def _check_text(change: CellChange) -> None:
    if len(change.source) > MAX_SOURCE:
        raise UserError(f"A source can have at most {MAX_SOURCE} characters.")
    if MASK in change.source:
        raise UserError(
            f"The source contains {MASK}, which stands for a hidden secret. Leave such lines to "
            "the user."
        )
    if change.op == "insert" and not change.source.strip():
        raise UserError("The source of an inserted cell is empty.")


def _checked_cell(state: CellsState, change: CellChange, open_by_cell: Mapping[str, int]) -> Cell:
    """Return the cell that a change names, as last read."""
    cell = state.read_cells.get(change.id)
    if cell is None:
        raise UserError(f"Cell {change.id!r} was not read. Read it with notebook_read first.")
    if cell.shows_run:
        raise UserError(f"Cell {cell.id!r} shows this run, so it can't be changed.")
    if not cell.may_edit:
        raise UserError(f"The metadata of cell {cell.id!r} says that agents must not edit it.")
    if change.digest != cell.digest:
        raise UserError(
            f"Cell {cell.id!r} has the digest {cell.digest}, not {change.digest!r}. Read it again, "
            "because it may have changed."
        )
    if MASK in cell.source:
        raise UserError(f"Cell {cell.id!r} contains a hidden secret, so only the user can edit it.")
    if cell.id in open_by_cell:
        raise UserError(f"Cell {cell.id!r} already has the open proposal {open_by_cell[cell.id]}.")
    if change.op == "replace" and change.source == cell.source:
        raise UserError(f"The new source of cell {cell.id!r} is the same as the old one.")
    return cell


def _event(
    agent: str, number: int, group: int, change: CellChange, cell: Cell | None, why: str
) -> ChangeProposed:
    return ChangeProposed(
        agent=agent,
        number=number,
        group=group,
        op=change.op,
        cell=cell.id if cell else "",
        after=change.after if change.op in _PLACED else "",
        base=cell.digest if cell else "",
        base_source=cell.source if cell else "",
        source=change.source if change.op in ("insert", "replace") else "",
        cell_type=cell.type if cell else change.cell_type,
        why=why,
    )


def describe(change: ChangeProposed) -> str:
    """Return a change in a few words, such as "replace cell a1b2"."""
    where = f"after cell {change.after}" if change.after else "at the top"
    if change.op == "insert":
        return f"insert a {change.cell_type} cell {where}"
    if change.op == "move":
        return f"move cell {change.cell} {where.replace('at', 'to')}"
    return f"{change.op} cell {change.cell}"


def diff(change: ChangeProposed) -> str:
    """Return the unified diff of a change, without the lines that name files."""
    if change.op == "move":
        return ""
    before, after = change.base_source.splitlines(), change.source.splitlines()
    return "\n".join([*unified_diff(before, after, lineterm="")][2:])


def patch_text(changes: Iterable[ChangeProposed]) -> str:
    """Return changes as a text file that a user can read and apply by hand.

    Each change names the digest of the cell that it fits.
    """
    return "\n".join(
        f"# {each.number}: {describe(each)}{_digest(each.base)}, proposed by {each.agent}\n"
        f"{diff(each)}\n"
        for each in changes
    )


def _digest(name: str) -> str:
    return f" (digest {name})" if name else ""


class CellBefore(NamedTuple):
    """What a rewind needs to bring a cell back to its place.

    Attributes:
        removed: The JSON text of a deleted cell, or "".
        above: The ids of the cells that were above it, nearest first.
    """

    removed: str = ""
    above: tuple[str, ...] = ()


class Applied(NamedTuple):
    """The result of applying changes to a notebook.

    Attributes:
        notebook: The changed notebook.
        done: The numbers of the applied changes, each with the id of its cell.
        stale: The numbers of the changes that no longer fit the notebook.
        before: What was there before, by the number of the change.
    """

    notebook: dict[str, Any]
    done: dict[int, str]
    stale: tuple[int, ...]
    before: dict[int, CellBefore]


def apply_changes(notebook: Mapping[str, Any], changes: Iterable[ChangeProposed]) -> Applied:
    """Apply changes to a notebook's JSON. Cells that have changed since stay as they are.

    Args:
        notebook: The notebook; see `parse_notebook`. It is not modified.
        changes: The changes, in their order.
    """
    new = deepcopy(dict(notebook))
    done, stale, last_inserted = dict[int, str](), list[int](), dict[str, str]()
    before = dict[int, CellBefore]()
    for change in changes:
        cell_before = _before(new["cells"], change)
        if cell := _apply(new["cells"], change, last_inserted):
            done[change.number], before[change.number] = cell, cell_before
        else:
            stale.append(change.number)
    return Applied(new, done, tuple(stale), before)


def _before(cells: Sequence[Any], change: ChangeProposed) -> CellBefore:
    """Return what is at the place of a cell that a change deletes or moves."""
    ids = [str(each.get("id")) for each in cells]
    if change.op in ("insert", "replace") or change.cell not in ids:
        return CellBefore()
    index = ids.index(change.cell)
    text = json_text(cells[index]) if change.op == "delete" else ""
    above = tuple(reversed(ids[max(0, index - MAX_ABOVE) : index]))
    return CellBefore(text if len(text) <= MAX_REMOVED else "", above)


def _apply(cells: list[Any], change: ChangeProposed, last_inserted: dict[str, str]) -> str:
    """Apply a change. Returns the id of its cell, or "" if the change is stale.

    Args:
        last_inserted: The last cell inserted after each cell, so that insertions keep their order.
    """
    ids = [str(each.get("id")) for each in cells]
    if change.op == "insert":
        above = last_inserted.get(change.after, change.after)
        if above and above not in ids:
            return ""
        cell = _new_cell(change, ids)
        cells.insert(ids.index(above) + 1 if above else 0, cell)
        last_inserted[change.after] = cell["id"]
        return str(cell["id"])
    if change.cell not in ids:
        return ""
    index = ids.index(change.cell)
    cell = cells[index]
    is_same = digest(str(cell.get("cell_type")), source_of(cell)) == change.base
    if not is_same or not is_allowed(cell, "edit"):
        return ""
    if change.op == "delete":
        del cells[index]
    elif change.op == "move":
        if change.after and change.after not in ids:
            return ""
        del cells[index]
        ids.remove(change.cell)
        cells.insert(ids.index(change.after) + 1 if change.after else 0, cell)
    else:
        cell["source"] = change.source
    return change.cell


def _new_cell(change: ChangeProposed, ids: Sequence[str]) -> dict[str, Any]:
    name = digest(change.cell_type, change.source)
    while name in ids:
        name = digest(name, "")
    cell: dict[str, Any] = {"cell_type": change.cell_type}
    if change.cell_type == "code":
        cell |= {"execution_count": None, "outputs": []}
    return dict(sorted({**cell, "id": name, "metadata": {}, "source": change.source}.items()))
