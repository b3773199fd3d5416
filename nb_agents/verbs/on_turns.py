"""Verbs that show runs and turns, live or on disk."""

from __future__ import annotations

import os
import time
from typing import Any

from nb_agents.errors import UnknownRunError, UnknownSessionError, UserError
from nb_agents.launch.finding import find_run, handle_of
from nb_agents.launch.group_lookup import find_group
from nb_agents.launch.run import Run
from nb_agents.presentation import text
from nb_agents.presentation.cards import card_bundle
from nb_agents.presentation.live_work import live_work, location_of
from nb_agents.session.journal import follow as follow_journal
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_turn
from nb_agents.tools.functions import find_functions
from nb_agents.turns.groups import GroupFacts, facts_at, kind_of
from nb_agents.turns.status import log_lines
from nb_agents.verbs.facts import TurnFacts, turn_facts
from nb_agents.verbs.outcome import EventStream, Log, Reply, ShownWork, Table, Work
from nb_agents.verbs.verb import Caller

HEADS = ("run", "status", "round/step", "elapsed", "session/turn", "where", "task")


def find_turn_handle(name: str, caller: Caller) -> Run:
    """Find a run by name or, if there is none, a turn on disk. Returns a handle.

    Args:
        name: As for `find_run` and `find_turn`. "" means the current run, or else the last turn.
        caller: The user interface that makes the request.

    Raises:
        UserError: Nothing matches, or several do.
    """
    try:
        return find_run(name, caller.root)
    except UnknownRunError as unknown:
        try:
            paths = find_turn(session_root(caller.root), name)
        except UnknownSessionError as exc:
            refuse_group(name, caller)
            raise exc if exc.nearest or not name else unknown from None
        return handle_of(paths)


def refuse_group(name: str, caller: Caller) -> None:
    """Raise `UserError` if a name is that of a group where a turn or session is needed."""
    group = find_group(name, caller.root) if name else None
    if group is not None:
        shown = text.shown_path(group.path)
        raise UserError(
            f"{name} is a {kind_of(group).noun}. Each of its rows is a session, in a directory of "
            f"{shown}. Give the path of one of them: {shown}/ROW."
        )


def runs(root: Any, caller: Caller) -> Table:
    """List runs in this session root and live runs of other processes."""
    alone, groups = live_work(caller.root)
    facts, rows = list[TurnFacts | GroupFacts](), list[tuple[str, ...]]()
    for run in alone:
        view = run.view
        entry = turn_facts(view, run.path, is_live=not run.is_over, where=run.where)
        elapsed = text.elapsed(view, time.time())[0].removeprefix("Elapsed: ")
        turn, task = f"{run.session}/{run.turn}", text.clip(entry.task, 60)
        rows.append((run.id, entry.says, entry.progress, elapsed, turn, location_of(run), task))
        facts.append(entry)
    for path, where in groups.items():
        group = facts_at(path, where)
        name, task = group.session, text.clip(group.task, 60)
        rows.append((name, group.state, group.progress, "", name, where, task))
        facts.append(group)
    empty = f"No run was started in this {caller.entry_point.writer}, and none is live."
    return Table(HEADS, rows, facts, empty=empty)


def show(work: Work, caller: Caller, *, html: bool = False, tools: str = "") -> ShownWork | Reply:
    """Show a run or sweep: its live panel, or its card once it has ended."""
    if not isinstance(work, Run):
        return ShownWork(work)
    if tools:
        work.offer(find_functions(tools, caller.names))
    if html:
        path = str(work.path)
        card = card_bundle(
            work.view, path, work.timeline, work.preview, entry_point=caller.entry_point
        )
        return Reply(card["text/html"])
    return ShownWork(work)


def wait(work: Work, caller: Caller) -> ShownWork:
    """Wait until a run or sweep ends. Ctrl+C stops it gracefully; twice, immediately."""
    return ShownWork(work, waits=True)


def log(run: Run, caller: Caller) -> Log:
    """Print the events of a turn, one per line, without streamed text."""
    paths = TurnPaths(run.path)
    read = read_journal(paths.journal)
    debug = paths.path / "debug.log"
    more = [f"(more in {text.shown_path(debug)})"] if os.path.exists(debug) else []
    return Log(log_lines(read.events), read.events, [*more, *read.warnings])


def follow(run: Run, caller: Caller) -> EventStream:
    """Show the agents of a run and their text until it ends. Ctrl+C ends only the display."""
    return EventStream(run, follow_journal(run.path))
