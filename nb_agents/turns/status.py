"""Computes the progress, log, result and error of a run from its view and events."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from nb_agents.errors import RunFailed
from nb_agents.events import Event, TextStreamed
from nb_agents.unicode import without_controls
from nb_agents.view.run_view import RunView
from nb_agents.view.steps import gate_title, holders_of

MAX_LINE = 400
"""Maximum length of a log line, in characters."""

_HIDDEN = {"seq", "at", "kind", "agent", "request", "response", "schema_version", "agents"}

_STEPS = frozenset({"agent", "bash"})
_LOOPS = frozenset({"recipe", "foreach", "while"})
"""Units with steps that are not known before they start."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run.

    Attributes:
        round: The latest round of any agent, starting at 1.
        elapsed_s: Seconds since the start.
        timeout_s: The orchestrator timeout, in seconds.
        answers, votes: The current number of answers and votes.
        in_flight: Ids of agents with an open model call.
        current: Number of finished steps of a recipe. For a team, the round.
        total: Number of all steps of a recipe. 0 if unknown.
        message: A short description of the current activity.
    """

    round: int
    elapsed_s: float
    timeout_s: float
    answers: int
    votes: int
    in_flight: tuple[str, ...]
    current: int = 0
    total: int = 0
    message: str = ""


def progress_of(view: RunView, now: float) -> RunProgress:
    """Return the progress of a run.

    Args:
        view: The current view.
        now: The current time, in Unix seconds.
    """
    current, total = _steps(view)
    return RunProgress(
        round=view.round,
        elapsed_s=(view.ended_at or now) - view.started_at,
        timeout_s=view.timeout_s,
        answers=sum(1 for a in view.agents.values() if a.answers),
        votes=sum(view.votes.values()),
        in_flight=tuple(a.id for a in view.agents.values() if a.in_flight),
        current=current,
        total=total,
        message=_message(view),
    )


def _steps(view: RunView) -> tuple[int, int]:
    """Return the number of finished steps of a recipe, and of all steps (0 if unknown).

    For a team, return its round and 0.
    """
    if not view.has_steps:
        return view.round, 0
    done = sum(s.is_over for s in view.steps.values() if s.unit in _STEPS)
    units = [s.unit for s in view.steps.values() if not s.is_over]
    units += [planned.unit for planned in view.pending]
    is_known = _LOOPS.isdisjoint(units)
    return done, done + sum(unit in _STEPS for unit in units) if is_known else 0


def _message(view: RunView) -> str:
    """Return a short description of what a run is doing."""
    if view.is_paused:
        return "paused"
    if gate := next(iter(view.gates.values()), None):
        return f"waiting for the user: {gate_title(gate.address)}"
    if view.is_over:
        return view.state
    if view.wait is not None:
        return view.wait.describe(time.time())
    return view.current_step or f"round {view.round}"


def log_lines(events: Iterable[Event]) -> list[str]:
    """Return a log line for each event, except streamed text."""
    return [_line(event) for event in events if not isinstance(event, TextStreamed)]


def _line(event: Event) -> str:
    clock = datetime.fromtimestamp(event.at).strftime("%H:%M:%S")
    names = (each.name for each in fields(event) if each.name not in _HIDDEN)
    shown_fields = [f"{name}={value!r}" for name in names if (value := getattr(event, name))]
    kind = event.kind.replace("_", " ")
    text = f"{event.seq:>5}  {clock}  {getattr(event, 'agent', '') or '-':<12} {kind}  " + " ".join(
        shown_fields
    )
    line = " ".join(without_controls(text[: 2 * MAX_LINE]).split())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def result_of(view: RunView) -> Any:
    """Return a completed turn's answer, or its recipe's outputs by name, or None."""
    if view.status != "completed":
        return None
    return dict(view.outputs) or view.answer


def failure_of(run_id: str, view: RunView, path: Path) -> RunFailed:
    """Return the error of a turn that failed.

    Args:
        run_id: The run's id.
        view: The turn's view.
        path: The turn's directory.
    """
    why = view.stop.reason if view.stop else "no answer"
    all_failed = {s.address: s.why for s in view.steps.values() if s.status == "failed"}
    covered = {(holder, why) for a, why in all_failed.items() for holder in holders_of(a)}
    failed = {a: why for a, why in all_failed.items() if (a, why) not in covered}
    reasons = failed or {a.id: a.error or why for a in view.agents.values()}
    return RunFailed(run_id, reasons, path, view.state)
