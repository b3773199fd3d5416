"""What a task has used of its budget in all its turns, including those of its forks.

    <root>/.budgets/0123456789abcdef.tokens.json    one file for each task and limit
                    0123456789abcdef.cost.json
                    lock

A fork is a separate session with copies of the earlier turns. The keys of turns, and the id of the
task, come from values in events that are the same in all copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

from nb_agents.errors import UserError
from nb_agents.events import Event, TurnStarted
from nb_agents.session.history import PastTurn, Session, past_events
from nb_agents.session.layout import BUDGETS, TurnPaths, session_root
from nb_agents.turns.budget import Budget, Spent, check_used, usage_of_task, usage_of_turn
from nb_agents.turns.groups import group_of_turn
from nb_agents.turns.ledger import Ledger, LedgerEntry, LedgerError
from nb_agents.view.fold import fold
from nb_agents.view.run_view import RunView

Unit = Literal["cost", "tokens"]
UNITS: tuple[Unit, ...] = ("cost", "tokens")


class PastTask(NamedTuple):
    """The turns of a task before a turn that resumes it.

    Attributes:
        id: The task's id, or "" for a new task.
        turns: What each turn has used, by the turn's key.
    """

    id: str = ""
    turns: Mapping[str, Spent] = {}


def new_task(view: RunView) -> PastTask:
    """Return the task of a turn that resumes no other turn.

    Args:
        view: The view of the turn after its start.
    """
    return PastTask(task_id(view.task, view.started_at))


def past_task(events: Sequence[Event], turn: PastTurn, session: Session) -> PastTask:
    """Return the turns of a task up to the last one.

    Args:
        events: The events of the last turn, preceded by those of the turns that it resumed.
        turn: The last turn.
        session: Its session.
    """
    first = next((e for e in events if isinstance(e, TurnStarted)), None)
    if first is None:
        return PastTask()
    chain = _chain(turn.view, {each.paths.number: each.view for each in session.turns})
    return PastTask(
        task_id(first.task, first.at), {turn_key(view): usage_of_turn(view) for view in chain}
    )


def _chain(view: RunView, earlier: Mapping[int, RunView]) -> Iterator[RunView]:
    """Yield the view of a turn, and of the turns that it resumed, directly and indirectly."""
    yield view
    while 0 < view.resumes < view.turn and view.resumes in earlier:
        view = earlier[view.resumes]
        if view.seq:
            yield view


def turn_key(view: RunView) -> str:
    """Return a turn's key. Copies of the turn, which have other sessions, have the same key."""
    return f"{view.turn}@{view.started_at:.6f}"


def task_id(task: str, started_at: float) -> str:
    """Return a task's id, from the text and start of its first turn."""
    text = f"{started_at:.6f} {task}"
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def used_if_over(unit: Unit, turn: str) -> float | None:
    """Return what a turn has used whose process has ended, or None if it is live."""
    paths = TurnPaths(Path(turn))
    if paths.is_live():
        return None
    return getattr(usage_of_turn(fold(past_events(paths))), unit)  # type: ignore[no-any-return]


class TaskLedger(Ledger):
    """What the turns of a task have used: US dollars or tokens.

    Args:
        folder: The directory of the ledger.
        task: The id of the task, and what its earlier turns have used.
        unit: The unit.
    """

    def __init__(self, folder: Path, task: PastTask, unit: Unit) -> None:
        super().__init__(folder, partial(used_if_over, unit))
        self._task, self._unit = task, unit

    @property
    def path(self) -> Path:
        """The file of the task."""
        return self._folder / f"{self._task.id}.{self._unit}.json"

    @property
    def remedy(self) -> str:
        """A sentence that says what to do with a damaged file."""
        return "Delete it to count only the turns of this session."

    def read(self, path: Path) -> dict[str, LedgerEntry]:
        """Return the entries in a file, and those of the earlier turns of the task."""
        entries = super().read(path)
        for key, usage in self._task.turns.items():
            entry = entries.get(key, LedgerEntry())
            entries[key] = entry._replace(spent=max(entry.spent, getattr(usage, self._unit)))
        return entries


def ledgers_of(turn: TurnPaths, task: PastTask, budget: Budget) -> dict[Unit, TaskLedger]:
    """Return a ledger for each limit of a task's budget.

    Args:
        turn: The paths of the task's turn.
        task: The task.
        budget: The limits.
    """
    limits = {"cost": budget.max_cost, "tokens": budget.max_tokens}
    units = [unit for unit in UNITS if limits[unit] is not None]
    if not units:
        return {}
    folder = _root_of(turn) / BUDGETS
    return {unit: TaskLedger(folder, task, unit) for unit in units}


def _root_of(turn: TurnPaths) -> Path:
    """Return the session root. For a row of a sweep, return that of the sweep."""
    group = group_of_turn(turn.path)
    return session_root(turn.root if group is None else group.parent)


def used_by_task(turn: PastTurn, session: Session, budget: Budget) -> Spent:
    """Return what all turns of a task have used, including its forks.

    Args:
        turn: The last turn.
        session: Its session.
        budget: The limits. Only what they limit is read from the ledgers.

    Raises:
        UserError: A ledger can't be read.
    """
    used = usage_of_task(turn.view)
    task = past_task(turn.events, turn, session)
    if not task.id:
        return used
    try:
        totals = {u: each.total() for u, each in ledgers_of(turn.paths, task, budget).items()}
    except LedgerError as exc:
        raise UserError(f"The budget of the task can't be checked: {exc}") from exc
    return Spent(
        max(used.tokens, int(totals.get("tokens", 0))), max(used.cost, totals.get("cost", 0.0))
    )


def check_budget(turn: PastTurn, session: Session, budget: Budget) -> None:
    """Check that a turn can be resumed within its task's budget.

    Args:
        turn: The turn.
        session: Its session.
        budget: The limits of the resume.

    Raises:
        UserError: The budget is used up, or can't be checked.
    """
    check_used(turn.view, used_by_task(turn, session, budget), budget)
