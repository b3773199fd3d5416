"""The verbs that look at runs and turns, live or on disk."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from nb_agents.errors import UnknownRunError, UnknownSessionError
from nb_agents.presentation import text
from nb_agents.presentation.cards import card_bundle
from nb_agents.presentation.sweep_list import live_work, place_of, sweep_row
from nb_agents.runs.finding import find_known, handle_of
from nb_agents.runs.run import Run
from nb_agents.runs.status import failure_of, log_lines, result_of
from nb_agents.session.journal import follow as follow_journal
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_turn
from nb_agents.tools.functions import find_functions
from nb_agents.verbs.verb import Caller, Outcome
from nb_agents.view.receipt import total_cost

if TYPE_CHECKING:
    from nb_agents.verbs.verb import Work

HEADS = ("run", "status", "round/step", "elapsed", "session/turn", "where", "task")


def find_past(name: str, caller: Caller) -> Run:
    """Return the run that a person means, or a handle of a turn on disk.

    Args:
        name: As for `find_known` and `find_turn`; "" means the run of here, else the last turn.
        caller: Who asks.

    Raises:
        UserError: There is none, or there are several.
    """
    try:
        return find_known(name, caller.root)
    except UnknownRunError as unknown:
        try:
            paths = find_turn(session_root(caller.root), name)
        except UnknownSessionError as exc:
            raise exc if exc.nearest or not name else unknown from None
        return handle_of(paths)


def runs(root: Any, caller: Caller) -> Outcome:
    """List the runs of here, and the live ones of other processes; a sweep as a whole."""
    alone, sweeps = live_work(caller.root)
    rows, items = list[tuple[str, ...]](), list[dict[str, Any]]()
    for run in alone:
        view, where = run.view, place_of(run)
        at = view.current_step if view.recipe else f"{view.round}/∞"
        elapsed = text.elapsed(view, time.time())[0].removeprefix("Elapsed: ")
        turn, status = f"{run.session}/{run.turn}", text.chip(view)
        rows.append((run.id, status, at, elapsed, turn, where, text.clip(view.task, 60)))
        items.append(_listed(run.session, str(run.turn), status, where, view.task))
    for path, where in sweeps.items():
        name, status, done, *_, task = sweep_row(path)
        rows.append((name, status, done, "", name, where, task))
        items.append(_listed(name, "", f"{status}, {done}", where, task))
    said = "" if rows else f"No run was started in this {caller.door.writer}, and none is live."
    return Outcome(said, heads=HEADS, rows=rows, items=items)


def _listed(session: str, turn: str, status: str, where: str, task: str) -> dict[str, Any]:
    return {"session": session, "turn": turn, "status": status, "where": where, "task": task}


def show(work: Work, caller: Caller, *, html: bool = False, tools: str = "") -> Outcome:
    """Show a run or a sweep live, or the card of what is over."""
    if not isinstance(work, Run):
        return Outcome(shows=work)
    if tools:
        work.offer(find_functions(tools, caller.names))
    if html:
        path = str(work.path)
        card = card_bundle(work.view, path, work.timeline, work.preview, door=caller.door)
        return Outcome(card["text/html"])
    return Outcome(shows=work)


def facts_of_run(run: Run) -> dict[str, Any]:
    """Return the state of a run and what it has, as JSON."""
    view = run.view
    has_failed = run.status == "failed"
    return {
        "session": run.session,
        "turn": run.turn,
        "status": view.standing,
        "where": run.where,
        "task": view.task,
        "result": result_of(view),
        "failed": failure_of(run.id, view, run.path).reasons if has_failed else {},
        "partial": {a.id: a.unsubmitted for a in view.agents.values() if a.unsubmitted},
        "asks": {gate.address: gate.prompt for gate in view.gates.values()},
        "tokens": sum(a.tokens for a in view.agents.values()),
        "cost": total_cost(view),
        "path": str(run.path),
    }


def wait(work: Work, caller: Caller) -> Outcome:
    """Wait until a run or a sweep is over; an interrupt stops it, a second one at once."""
    return Outcome(shows=work, waits=True)


def log(run: Run, caller: Caller) -> Outcome:
    """Show what happened in a turn, a line for each event but streamed text."""
    paths = TurnPaths(run.path)
    read = read_journal(paths.journal)
    debug = paths.path / "debug.log"
    more = [f"(more in {text.shown_path(debug)})"] if os.path.exists(debug) else []
    said = "\n".join(log_lines(read.events))
    return Outcome(said, items=read.events, notes=[*more, *read.warnings])


def follow(run: Run, caller: Caller) -> Outcome:
    """Show a run until it is over, live in a terminal, else line by line; Ctrl+C stops nothing."""
    return Outcome(shows=run, follows=follow_journal(run.path))
