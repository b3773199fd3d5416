"""Takes back accepted changes of agents in a notebook, and leaves what the user has edited. Pure.

The changes are undone from the last to the first, each only if its cell still has the content that
the change left. So the cells get the content that they had at the checkpoint, and a cell that the
user has edited since stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Any, Literal, NamedTuple

from nb_agents.extensions.notebook_cells.applied import AppliedChange
from nb_agents.extensions.notebook_cells.cells import Cell, digest
from nb_agents.nouns import count


class RevertStep(NamedTuple):
    """A step that takes back changes of a cell. It applies only if the cell's source is `base`.

    Attributes:
        op: The kind of step.
        cell: The cell's id.
        cell_type: The cell's type.
        base: The current source, or "" for an insertion.
        source: The source to restore.
        after: For an insertion or a move, the id of the cell above, or "" for the top.
        json: The JSON text of a deleted cell to insert again, with its outputs, or "".
        changes: The changes that the step takes back, each as ``TURN/NUMBER``.
    """

    op: Literal["insert", "replace", "delete", "move"]
    cell: str
    cell_type: str = "code"
    base: str = ""
    source: str = ""
    after: str = ""
    json: str = ""
    changes: tuple[str, ...] = ()


class KeptCell(NamedTuple):
    """A cell whose change is not taken back.

    Attributes:
        cell: The cell's id.
        agent: The agent that made the change.
        why: "edited" if the user has edited the cell since, or "gone".
        diff: What taking the change back would have changed, as a unified diff.
    """

    cell: str
    agent: str
    why: Literal["edited", "gone"]
    diff: str = ""


@dataclass(frozen=True)
class RevertPlan:
    """How changes are taken back.

    Attributes:
        steps: The steps, in their order.
        kept: The cells that stay as they are.
        done: The changes for which nothing has to be done, each as ``TURN/NUMBER``.
    """

    steps: tuple[RevertStep, ...] = ()
    kept: tuple[KeptCell, ...] = ()
    done: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The plan as sentences and diffs for the user."""
        kinds = {"replace": "restored", "delete": "removed", "insert": "inserted again"}
        kinds["move"] = "moved back"
        lines = [f"Cell {each.cell}: {kinds[each.op]}." for each in self.steps]
        for each in self.kept:
            why = "you have edited it since" if each.why == "edited" else "it is no longer there"
            lines.append(f"Cell {each.cell} of {each.agent} stays as it is, because {why}.")
            lines += [f"  {line}" for line in each.diff.splitlines()]
        return lines


class _Draft:
    """The notebook while changes are undone one after the other."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = [*cells]
        self.removed: dict[str, str] = {}
        self.kept: dict[str, KeptCell] = {}
        self.done: dict[str, list[str]] = {}

    def find(self, cell: str) -> int:
        return next((i for i, each in enumerate(self.cells) if each.id == cell), -1)

    def undo(self, change: AppliedChange) -> None:
        """Undo a change, or note why its cell is kept."""
        index = self.find(change.cell)
        if change.op == "delete":
            if index < 0:
                self._bring_back(change)
        elif index < 0:
            self._keep(change, "gone")
            return
        elif change.op == "move":
            is_known = not change.is_found  # or else the cell would go to the top
            if is_known and self._name_above(index) == change.moved_below:
                cell = self.cells.pop(index)
                self.cells.insert(self._below(change.above), cell)
        elif not self._has(index, change.after, change.cell_type):
            is_undone = change.op == "replace" and self.cells[index].source == change.before
            if not is_undone:
                self._keep(change, "edited")
                return
        elif change.op == "insert":
            del self.cells[index]
        else:
            self.cells[index] = replace(self.cells[index], source=change.before)
        self.done.setdefault(change.cell, []).append(change.name)

    def _has(self, index: int, source: str, cell_type: str) -> bool:
        return self.cells[index].digest == digest(cell_type, source)

    def _name_above(self, index: int) -> str:
        return self.cells[index - 1].id if index else ""

    def _below(self, above: Iterable[str]) -> int:
        """Return the index below the nearest cell that is still there, or 0."""
        found = (self.find(each) for each in above)
        return next((index + 1 for index in found if index >= 0), 0)

    def _bring_back(self, change: AppliedChange) -> None:
        cell = Cell(id=change.cell, type=change.cell_type, source=change.before)
        self.cells.insert(self._below(change.above), cell)
        self.removed[change.cell] = change.removed

    def _keep(self, change: AppliedChange, why: Literal["edited", "gone"]) -> None:
        source = "" if why == "gone" else self.cells[self.find(change.cell)].source
        lines = unified_diff(source.splitlines(), change.before.splitlines(), lineterm="")
        diff = "" if why == "gone" else "\n".join([*lines][2:])
        self.kept[change.cell] = KeptCell(change.cell, change.agent, why, diff)


def plan_revert(cells: Sequence[Cell], changes: Sequence[AppliedChange]) -> RevertPlan:
    """Return how to take back changes.

    Args:
        cells: The notebook's current cells.
        changes: The changes to take back, oldest first.
    """
    draft = _Draft(cells)
    for change in reversed(changes):
        draft.undo(change)
    first = {change.cell: change for change in reversed(changes)}
    current = {each.id: each.source for each in cells}
    # A cell with the content that it had at the checkpoint was restored by the user.
    at_checkpoint = {n: None if c.op == "insert" else c.before for n, c in first.items()}
    kept = [each for n, each in draft.kept.items() if current.get(n) != at_checkpoint[n]]
    steps = _steps(cells, draft)
    worked = {each.cell for each in steps}
    done = tuple(name for cell, names in draft.done.items() if cell not in worked for name in names)
    return RevertPlan(tuple(steps), tuple(kept), done)


def _steps(cells: Sequence[Cell], draft: _Draft) -> list[RevertStep]:
    """Return the steps from the current cells to the draft."""
    before = {each.id: each for each in cells}
    after = {each.id for each in draft.cells}
    steps = [
        RevertStep("delete", each.id, each.type, each.source, changes=_done(draft, each.id))
        for each in cells
        if each.id not in after
    ]
    order = [each.id for each in cells if each.id in after]
    above = ""
    for cell in draft.cells:
        changes, old = _done(draft, cell.id), before.get(cell.id)
        if old is None:
            text = draft.removed.get(cell.id, "")
            steps.append(
                RevertStep("insert", cell.id, cell.type, "", cell.source, above, text, changes)
            )
            order.insert(order.index(above) + 1 if above else 0, cell.id)
        elif old.source != cell.source:
            steps.append(
                RevertStep("replace", cell.id, cell.type, old.source, cell.source, changes=changes)
            )
        if old is not None and changes and _name_above(order, cell.id) != above:
            source = cell.source
            steps.append(RevertStep("move", cell.id, cell.type, source, source, above, "", changes))
            order.remove(cell.id)
            order.insert(order.index(above) + 1 if above else 0, cell.id)
        above = cell.id
    return steps


def _done(draft: _Draft, cell: str) -> tuple[str, ...]:
    return tuple(draft.done.get(cell, ()))


def _name_above(order: Sequence[str], cell: str) -> str:
    index = order.index(cell)
    return order[index - 1] if index else ""


def apply_steps(notebook: Mapping[str, Any], plan: RevertPlan) -> dict[str, Any]:
    """Return a notebook's JSON with the steps of a plan for its cells applied.

    Args:
        notebook: The notebook. It is not modified.
        plan: The plan for exactly these cells.
    """
    new = deepcopy(dict(notebook))
    cells: list[Any] = new["cells"]
    for step in plan.steps:
        index = next((i for i, each in enumerate(cells) if each.get("id") == step.cell), -1)
        if step.op == "replace":
            cells[index]["source"] = step.source
            continue
        cell = cells.pop(index) if step.op != "insert" else _cell_of(step)
        if step.op != "delete":
            ids = [each.get("id") for each in cells]
            cells.insert(ids.index(step.after) + 1 if step.after else 0, cell)
    return new


def _cell_of(step: RevertStep) -> dict[str, Any]:
    """Return a deleted cell as it was recorded, but with the source that the agent has read."""
    recorded: Any = None
    with suppress(ValueError, RecursionError):
        recorded = json.loads(step.json)
    cell = recorded if isinstance(recorded, dict) else {"metadata": {}}
    cell |= {"id": step.cell, "cell_type": step.cell_type, "source": step.source}
    if step.cell_type == "code":
        cell = {"execution_count": None, "outputs": [], **cell}
    return dict(sorted(cell.items()))


def revert_text(changes: Iterable[AppliedChange]) -> str:
    """Return how to take back changes as a text file, from the last change to the first.

    Each step names the digest of the cell that it fits.

    Args:
        changes: The changes to take back, oldest first.
    """
    return "\n".join(f"# {_revert_head(each)}\n{_revert_diff(each)}" for each in [*changes][::-1])


def _revert_head(change: AppliedChange) -> str:
    kinds = {
        "insert": "remove",
        "replace": "restore",
        "delete": "insert again",
        "move": "move back",
    }
    name = digest(change.cell_type, change.before if change.op == "move" else change.after)
    fits = "" if change.op == "delete" else f" (digest {name})"
    return f"{change.name}: {kinds[change.op]} cell {change.cell}{fits}, changed by {change.agent}"


def _revert_diff(change: AppliedChange) -> str:
    if change.op == "move":
        return ""
    before = [] if change.op == "delete" else change.after.splitlines()
    lines = unified_diff(before, change.before.splitlines(), lineterm="")
    return "".join(f"{line}\n" for line in [*lines][2:])


def summary(changes: Sequence[AppliedChange]) -> str:
    """Return the changes that a rewind would take back as a phrase, such as "2 cells of ada"."""
    cells_by_agent: dict[str, set[str]] = {}
    for change in changes:
        cells_by_agent.setdefault(change.agent, set()).add(change.cell)
    return ", ".join(f"{count(len(v), 'cell')} of {k}" for k, v in cells_by_agent.items())
