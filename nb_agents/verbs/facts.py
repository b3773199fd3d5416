"""Data about turns, groups and sessions, with the same fields in every user interface.

The command line prints these dataclasses as JSON, and the REST API returns them. OpenAPI schemas
and the rows of lists are made from them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from nb_agents.launch.run import Run
from nb_agents.presentation import text
from nb_agents.presentation.asking import CELL, EntryPoint, advice_on_length
from nb_agents.session.history import resumed_in
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.session.views import read_json
from nb_agents.turns.status import failure_of, result_of
from nb_agents.view.receipt import Receipt, receipt, total_cost
from nb_agents.view.run_view import RunView

MAX_TASK = 300
"""Maximum length of a task in a list, in characters."""


@dataclass(frozen=True)
class TurnFacts:
    """The list entry of a turn.

    Attributes:
        session, turn: The session id and the number of the turn.
        task: The task, truncated to `MAX_TASK` characters in a list.
        status: The state, or "awaiting" while the turn waits for a user.
        state: The state, such as "running" or "complete".
        says: The state as text for users.
        waits: Whether all agents wait for their providers.
        progress: The round of a team, or the current step of a recipe.
        is_live: Whether a process is running the turn.
        where: The other process in which the turn runs, or "" if there is none.
        started_at, ended_at: Times in Unix seconds. `ended_at` is None until the turn ends.
        tokens: Number of tokens used.
        cost: Cost in US dollars, or None if the price of a model is unknown.
        path: The turn's directory.
    """

    session: str
    turn: int
    task: str
    status: str
    state: str
    says: str
    waits: bool
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
    """A single turn with its result, failures, partial answers, open gates and receipt.

    Attributes:
        result: The answer of a completed turn, or its recipe's outputs by name; otherwise None.
        failed: Why each agent or step failed, if the turn failed.
        partial: Text that each agent wrote but did not submit as an answer.
        asks: The prompts of open gates, by the address of the gate.
        receipt: How each agent, tool and process ended.
        resumed_in: The last of the turns that resumed this turn, one after another, or None.
    """

    result: Any
    failed: Mapping[str, str]
    partial: Mapping[str, str]
    asks: Mapping[str, str]
    receipt: Receipt
    resumed_in: PastTurnFacts | None = None


@dataclass(frozen=True)
class PastTurnFacts:
    """A turn in the list of its session, as described by its metadata file.

    Attributes:
        turn: The number of the turn.
        task: The task, truncated to `MAX_TASK` characters.
        state: The state, such as "running" or "complete".
        is_live: Whether a process is running the turn.
        rewinds, at: If the turn was started by a rewind, the number of the rewound turn and the
            event number of the checkpoint. Otherwise 0.
        notebook: File name of the notebook that started the turn, or "".
        updated_at: Time in Unix seconds, or None if unknown.
        tokens, cost: Totals from the receipt, or None if there is no receipt.
        instead: What to do instead of a resume if a conversation is too long for its model, with
            commands; otherwise "".
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
    instead: str = ""


@dataclass(frozen=True)
class SessionFacts:
    """A session on disk, with its turns in order."""

    session: str
    path: str
    turns: tuple[PastTurnFacts, ...]


def turn_facts(view: RunView, path: Path, *, is_live: bool, where: str = "") -> TurnFacts:
    """Return a turn's entry in a listing.

    Args:
        view: The view of the turn.
        path: The turn's directory.
        is_live: Whether a process is running the turn.
        where: Description of the process that runs the turn, if it is another one; otherwise "".
    """
    return TurnFacts(**_turn_fields(view, path, is_live, where, text.clip(view.task, MAX_TASK)))


def run_facts(run: Run) -> WholeTurnFacts:
    """Return all data about a run, with its result and receipt."""
    is_live, view = not run.is_over, run.view
    return WholeTurnFacts(
        **_turn_fields(view, run.path, is_live, run.where if is_live else "", view.task),
        result=result_of(view),
        failed=failure_of(run.id, view, run.path).reasons if view.status == "failed" else {},
        partial={a.id: a.unsubmitted for a in view.agents.values() if a.unsubmitted},
        asks={gate.address: gate.prompt for gate in view.gates.values()},
        receipt=receipt(view, str(run.path)),
        resumed_in=_past_turn(later, True) if (later := resumed_in(TurnPaths(run.path))) else None,
    )


def _turn_fields(view: RunView, path: Path, is_live: bool, where: str, task: str) -> dict[str, Any]:
    paths = TurnPaths(path)
    return {
        "session": paths.session,
        "turn": paths.number,
        "task": task,
        "status": view.standing,
        "state": view.state,
        "says": text.chip(view),
        "waits": text.waits_for_providers(view),
        "progress": view.current_step if view.has_steps else f"{view.round}/∞",
        "is_live": is_live,
        "where": where,
        "started_at": view.started_at,
        "ended_at": view.ended_at,
        "tokens": view.tokens,
        "cost": total_cost(view),
        "path": str(path),
    }


def session_facts(path: Path, entry_point: EntryPoint = CELL) -> SessionFacts:
    """Return a session and its turns. Reads only metadata files, because journals may be long.

    Args:
        path: The session's directory.
        entry_point: The syntax of commands in advice.
    """
    turns = turns_of(path)
    facts = tuple(_past_turn(paths, paths == turns[-1], entry_point) for paths in turns)
    return SessionFacts(path.name, str(path), facts)


def _past_turn(paths: TurnPaths, is_last: bool, entry_point: EntryPoint = CELL) -> PastTurnFacts:
    metadata = read_json(paths.metadata)
    is_complete = bool(metadata) and metadata.get("status") != "incomplete"
    # Completion is recorded last, so a complete turn does not have to be checked for a live writer.
    is_live = is_last and not is_complete and paths.is_live()
    spent = metadata.get("receipt") or {}
    return PastTurnFacts(
        turn=paths.number,
        task=text.clip(str(metadata.get("task", "")), MAX_TASK),
        state="running" if is_live else "complete" if is_complete else _end_state(metadata),
        is_live=is_live,
        rewinds=metadata.get("rewinds", 0),
        at=metadata.get("at", 0),
        notebook=_notebook_of(metadata),
        updated_at=_unix_seconds(metadata.get("timestamp")),
        tokens=spent.get("tokens"),
        cost=spent.get("cost"),
        instead=advice_on_length(
            f"{paths.session}/{paths.number}", metadata.get("too_long") or (), entry_point
        ),
    )


def _notebook_of(metadata: dict[str, Any]) -> str:
    kind, _, path = str(metadata.get("origin") or "").partition(":")
    return PurePath(path).name if kind == "notebook" else ""


def _unix_seconds(timestamp: object) -> float | None:
    """Return a local timestamp as Unix seconds, or None if it is invalid."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _end_state(metadata: dict[str, Any]) -> str:
    if metadata.get("reason") == "timeout":
        return "timed out"
    return "failed" if metadata.get("run_status") == "failed" else "stopped"
