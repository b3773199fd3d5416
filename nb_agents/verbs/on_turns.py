"""The verbs that look at runs and turns, live or on disk."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from nb_agents.errors import UnknownRunError, UnknownSessionError
from nb_agents.presentation import text
from nb_agents.presentation.cards import card_bundle
from nb_agents.presentation.sweep_list import live_work, place_of
from nb_agents.runs.finding import find_known, handle_of
from nb_agents.runs.run import Run
from nb_agents.runs.status import log_lines
from nb_agents.session.journal import follow as follow_journal
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_turn
from nb_agents.tools.functions import find_functions
from nb_agents.verbs.facts import SweepFacts, TurnFacts, facts_of_sweep_at, facts_of_turn
from nb_agents.verbs.verb import Caller, Outcome

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
    facts, rows = list[TurnFacts | SweepFacts](), list[tuple[str, ...]]()
    for run in alone:
        view = run.view
        known = facts_of_turn(view, run.path, is_live=not run.is_over, where=run.where)
        elapsed = text.elapsed(view, time.time())[0].removeprefix("Elapsed: ")
        turn, task = f"{run.session}/{run.turn}", text.clip(known.task, 60)
        rows.append((run.id, known.says, known.progress, elapsed, turn, place_of(run), task))
        facts.append(known)
    for path, where in sweeps.items():
        sweep = facts_of_sweep_at(path, where)
        done, task = f"{sweep.rows.done} of {sweep.rows.total}", text.clip(sweep.task, 60)
        rows.append((sweep.session, sweep.state, done, "", sweep.session, where, task))
        facts.append(sweep)
    said = "" if rows else f"No run was started in this {caller.door.writer}, and none is live."
    return Outcome(said, heads=HEADS, rows=rows, items=facts)


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
