"""What is known of turns, sweeps and sessions, in the one shape that every user interface sends.

The command line prints these as JSON, HTTP answers with them and describes them by their types,
and the rows of lists are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from nb_agents.presentation import text
from nb_agents.runs.run import Run
from nb_agents.runs.status import failure_of, result_of
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.views import read_json
from nb_agents.view.receipt import Receipt, receipt, total_cost
from nb_agents.view.run_view import RunView

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep_fold import SweepView
    from nb_agents.verbs.verb import Work

MAX_TASK = 300
"""Characters of a task in a list."""


@dataclass(frozen=True)
class TurnFacts:
    """A turn in a list.

    Attributes:
        session, turn: Its address.
        task: What was asked, cut to `MAX_TASK` in a list.
        status: `state`, or "awaiting" while it waits for a person.
        state: How it stands.
        says: The same for people.
        progress: A team's round, or the step of a recipe.
        is_live: Whether a process works on it.
        where: The other process that it runs in; "" if none does.
        started_at, ended_at: Unix seconds; `ended_at` is None while it goes on.
        tokens: Tokens used.
        cost: US dollars, or None when any model's price is unknown.
        path: The turn's directory.
    """

    session: str
    turn: int
    task: str
    status: str
    state: str
    says: str
    progress: str
    is_live: bool
    where: str
    started_at: float
    ended_at: float | None
    tokens: int
    cost: float | None
    path: str


@dataclass(frozen=True)
class WholeTurnFacts(TurnFacts):
    """A turn alone, with all that it has.

    Attributes:
        result: A completed turn's answer, or its recipe's outputs by name; else None.
        failed: Of a turn that failed, the reason by agent or step.
        partial: What each agent wrote that no answer contains.
        asks: What it asks a person, by gate.
        receipt: What ended how.
    """

    result: Any
    failed: Mapping[str, str]
    partial: Mapping[str, str]
    asks: Mapping[str, str]
    receipt: Receipt


@dataclass(frozen=True)
class RowCounts:
    """The rows of a sweep in numbers."""

    total: int
    done: int
    failed: int


@dataclass(frozen=True)
class SweepFacts:
    """A sweep, with the attributes of `TurnFacts` that it has.

    Attributes:
        turn: None.
        updated_at: When a row ended or began last, in Unix seconds; None before the first.
        rows: Its rows.
    """

    session: str
    turn: None
    task: str
    status: str
    state: str
    says: str
    is_live: bool
    where: str
    updated_at: float | None
    tokens: int
    cost: float | None
    path: str
    rows: RowCounts


@dataclass(frozen=True)
class PastTurnFacts:
    """A turn in the list of its session, by its metadata.

    Attributes:
        turn: Its number.
        task: What was asked, cut to `MAX_TASK`.
        state: How it stands.
        is_live: Whether a process works on it.
        rewinds, at: Of a turn that went back: the number of that turn, and the event up to which it
            counts; else 0.
        notebook: The name of the notebook that it was begun in, or "".
        updated_at: Unix seconds; None if unknown.
        tokens, cost: As by its receipt; None without one.
    """

    turn: int
    task: str
    state: str
    is_live: bool
    rewinds: int
    at: int
    notebook: str
    updated_at: float | None
    tokens: int | None
    cost: float | None


@dataclass(frozen=True)
class SessionFacts:
    """A session on disk, with its turns in order."""

    session: str
    path: str
    turns: tuple[PastTurnFacts, ...]


def facts_of_turn(view: RunView, path: Path, *, is_live: bool, where: str = "") -> TurnFacts:
    """Return how a turn stands.

    Args:
        view: The turn.
        path: Its directory.
        is_live: Whether a process works on it.
        where: The other process that it runs in.
    """
    return TurnFacts(**_standing(view, path, is_live, where, text.clip(view.task, MAX_TASK)))


def facts_of_run(run: Run) -> WholeTurnFacts:
    """Return how a run stands, and what it has."""
    is_live, view = not run.is_over, run.view
    return WholeTurnFacts(
        **_standing(view, run.path, is_live, run.where if is_live else "", view.task),
        result=result_of(view),
        failed=failure_of(run.id, view, run.path).reasons if view.status == "failed" else {},
        partial={a.id: a.unsubmitted for a in view.agents.values() if a.unsubmitted},
        asks={gate.address: gate.prompt for gate in view.gates.values()},
        receipt=receipt(view, str(run.path)),
    )


def _standing(view: RunView, path: Path, is_live: bool, where: str, task: str) -> dict[str, Any]:
    paths = TurnPaths(path)
    return {
        "session": paths.session,
        "turn": paths.number,
        "task": task,
        "status": view.standing,
        "state": view.state,
        "says": text.chip(view),
        "progress": view.current_step if view.recipe else f"{view.round}/∞",
        "is_live": is_live,
        "where": where,
        "started_at": view.started_at,
        "ended_at": view.ended_at,
        "tokens": view.tokens,
        "cost": total_cost(view),
        "path": str(path),
    }


def facts_of_sweep(
    view: SweepView, changed_at: float | None, path: Path, where: str = ""
) -> SweepFacts:
    """Return how a sweep stands.

    Args:
        view: The sweep.
        changed_at: When it changed last, in Unix seconds.
        path: Its directory.
        where: The other process that it runs in.
    """
    from nb_agents.presentation.sweep_card import sweep_title  # what not every run needs

    return SweepFacts(
        session=path.name,
        turn=None,
        task=text.clip(sweep_title(path), MAX_TASK),
        status="awaiting" if view.waiting else view.state,
        state=view.state,
        says=_says(view),
        is_live=not view.is_over,
        where=where,
        updated_at=changed_at,
        tokens=view.tokens,
        cost=view.cost,
        path=str(path),
        rows=RowCounts(view.total, view.completed, view.failed),
    )


def facts_of_sweep_at(path: Path, where: str = "") -> SweepFacts:
    """Return how the sweep in a directory stands by its files, without its live rows."""
    from nb_agents.sweeps.sweep_reader import sweep_on_disk

    return facts_of_sweep(*sweep_on_disk(path), path, where)


def facts_of_work(work: Work) -> WholeTurnFacts | SweepFacts:
    """Return how a run or a sweep stands, and what it has."""
    if isinstance(work, Run):
        return facts_of_run(work)
    from nb_agents.sweeps.sweep_reader import sweep_on_disk

    return facts_of_sweep(work.view, sweep_on_disk(work.path).changed_at, work.path)


def _says(view: SweepView) -> str:
    known = [f"{view.completed + view.failed} of {view.total} rows"]
    known += [f"{view.failed} failed"] if view.failed else []
    waits = "waits" if view.waiting == 1 else "wait"
    known += [f"{view.waiting} {waits} for you"] if view.waiting else []
    return " · ".join(known)


def facts_of_session(path: Path) -> SessionFacts:
    """Return how a session stands, from its metadata; journals may be long."""
    turns = turns_of(path)
    facts = tuple(_past_turn(paths, paths == turns[-1]) for paths in turns)
    return SessionFacts(path.name, str(path), facts)


def _past_turn(paths: TurnPaths, is_last: bool) -> PastTurnFacts:
    known = read_json(paths.metadata)
    is_complete = bool(known) and known.get("status") != "incomplete"
    # Completion is the last that a writer writes, so that who reads of it need not ask for one.
    is_live = is_last and not is_complete and paths.is_live()
    spent = known.get("receipt") or {}
    return PastTurnFacts(
        turn=paths.number,
        task=text.clip(str(known.get("task", "")), MAX_TASK),
        state="running" if is_live else "complete" if is_complete else _ending(known),
        is_live=is_live,
        rewinds=known.get("rewinds", 0),
        at=known.get("at", 0),
        notebook=_notebook_of(known),
        updated_at=_moment(known.get("timestamp")),
        tokens=spent.get("tokens"),
        cost=spent.get("cost"),
    )


def _notebook_of(known: dict[str, Any]) -> str:
    kind, _, path = str(known.get("origin") or "").partition(":")
    return PurePath(path).name if kind == "notebook" else ""


def _moment(timestamp: object) -> float | None:
    """Return a local timestamp as Unix seconds; None if it is invalid."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _ending(known: dict[str, Any]) -> str:
    if known.get("reason") == "timeout":
        return "timed out"
    return "failed" if known.get("run_status") == "failed" else "stopped"
