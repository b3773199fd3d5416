"""The session of a sweep's row: its result, or its live run.

A run can outlive the process that started it, on a cluster or if detached. A process that continues
the sweep then follows that run instead of starting another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nb_agents.errors import SessionBusyError, UserError
from nb_agents.extensions.sweeps.notes import RowOutcome, RowResult
from nb_agents.extensions.sweeps.sweep_fold import sum_of
from nb_agents.launch.finding import attach, runs
from nb_agents.launch.run import Run
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths, turns_of
from nb_agents.turns.live_runs import owner_of
from nb_agents.turns.status import failure_of, result_of
from nb_agents.view.receipt import total_cost
from nb_agents.view.run_view import RunView


def find_row(
    session: Path, tools: Sequence[Callable[..., Any]] = (), first_turn: int = 1
) -> Run | RowResult | None:
    """Return the live run of a row, the result of its last turn, or None if it has no turn.

    Args:
        session: The row's session.
        tools: Functions of this process to offer to a run in another process.
        first_turn: The first turn that counts. A fork also has turns copied from another session.

    Raises:
        SessionBusyError: A process has locked the session but has not written an event yet.
    """
    turns = (turn for turn in reversed(turns_of(session)) if turn.number >= first_turn)
    last = next(turns, None)
    if last is None:
        return None
    if last.is_live():
        return _live_run(last, tools)
    return result_of_turn(session.name, load_turn(last).view, last.path, first_turn)


def _live_run(turn: TurnPaths, tools: Sequence[Callable[..., Any]]) -> Run:
    run = next((run for run in runs() if run.path == turn.path), None)
    if run is None:
        try:
            run = attach(turn.path)
        except UserError:
            raise SessionBusyError(turn.session, owner_of(turn.path.parent)) from None
    if tools and run.where:
        with suppress(UserError):  # its worker has the functions already, or the run has ended
            run.offer(tools)
    return run


def result_of_turn(name: str, view: RunView, path: Path, first_turn: int = 1) -> RowResult:
    """Return the result of a row's turn, with the tokens and cost of all turns of its session.

    Args:
        name: The row's name.
        view: The turn.
        path: The turn's directory.
        first_turn: As for `find_row`.
    """
    status: RowOutcome = "cancelled"
    error = ""
    if view.status == "completed":
        status = "completed"
    elif view.status == "failed":
        reasons = failure_of(name, view, path).reasons
        status, error = "failed", "; ".join(f"{who}: {why}" for who, why in reasons.items())
    views = [*_earlier(path, first_turn), view]
    return RowResult(
        name,
        status,
        result_of(view),
        error,
        sum(each.tokens for each in views),
        sum_of(list(map(total_cost, views))),
        round((view.ended_at or view.started_at) - view.started_at, 3),
        timed_out=view.ending == "timed out",
        is_estimated=any(each.is_estimated for each in views),
    )


def text_so_far(view: RunView) -> str:
    """Return what a running row has written: the text of an agent that works, or an answer."""
    agents = sorted(reversed([*view.agents.values()]), key=lambda agent: not agent.in_flight)
    texts = (agent.unsubmitted if agent.in_flight else agent.answer for agent in agents)
    answers = (agent.answer or agent.unsubmitted for agent in agents)
    return next(filter(str.strip, (*texts, *answers)), "")


def _earlier(path: Path, first_turn: int) -> list[RunView]:
    """Return the other readable turns of a session, starting with the first that counts."""
    views = list[RunView]()
    if TurnPaths(path).number == first_turn:
        return views
    with suppress(UserError):
        for turn in turns_of(path.parent):
            if turn.path != path and turn.number >= first_turn:
                views.append(load_turn(turn).view)
    return views
