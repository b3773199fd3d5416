"""The commands that look at runs, wherever they live."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import anyio
import typer

from nb_agents.cli.application import (
    COMPLETE,
    INCOMPLETE,
    Json,
    LiveRun,
    Root,
    SomeRun,
    app,
)
from nb_agents.cli.printing import say, say_json, table, warn
from nb_agents.cli.starting import card_of, facts_of, wait_for_end
from nb_agents.errors import UnknownRunError
from nb_agents.presentation import text
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.cards import card_bundle
from nb_agents.presentation.sweep_list import SWEEP_HEADS, live_work, place_of, sweep_row
from nb_agents.runs.finding import find_known
from nb_agents.runs.run import Run
from nb_agents.runs.status import log_lines
from nb_agents.session.journal import follow, read_journal
from nb_agents.session.layout import TurnPaths, session_root
from nb_agents.session.lookup import find_session
from nb_agents.sweeps.sweep_handle import SweepHandle
from nb_agents.sweeps.sweep_lookup import find_sweep


def _found_run(name: str, root: Path | None) -> Run:
    """Find a run of whoever's process, or else a turn on disk: by default the last one."""
    try:
        return find_known(name, root)
    except UnknownRunError:
        if name:
            raise
        return find_known(find_session(session_root(root)).name, root)


@app.command("runs")
def runs_(root: Root = None, as_json: Json = False) -> None:
    """List the live runs of this user, or of one session root; a sweep as a whole."""
    alone, sweeps = live_work(root)
    rows = [(r.session, str(r.turn), text.chip(r.view), place_of(r), r.view.task) for r in alone]
    for path, where in sweeps.items():
        name, status, done, *_, task = sweep_row(path)
        rows.append((name, "", f"{status}, {done}", where, task))
    heads = ("session", "turn", "status", "where", "task")
    table(heads, rows, as_json, "Nothing is running.")


@app.command("show")
def show(
    name: SomeRun = "",
    html: Annotated[bool, typer.Option("--html", help="The card as HTML.")] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show a turn: what was answered or kept, and how to go on; or how a sweep stands."""
    if (sweep := find_sweep(name, root)) is not None:
        table(SWEEP_HEADS, [sweep_row(sweep.path)], as_json, "")
        return
    run = _found_run(name, root)
    if as_json:
        say_json(facts_of(run))
    elif html:
        path = str(run.path)
        say(card_bundle(run.view, path, run.timeline, run.preview, door=TERMINAL)["text/html"])
    else:
        say(card_of(run))


@app.command("follow")
def follow_(name: SomeRun = "", root: Root = None, as_json: Json = False) -> None:
    """Print what happens in a turn, line by line, until it is over. Ctrl+C ends this alone."""

    async def tell() -> None:
        async for event in follow(_found_run(name, root).path):
            if as_json:
                say_json(asdict(event))
            else:
                for line in log_lines([event]):
                    say(line)

    try:
        anyio.run(tell)
    except KeyboardInterrupt:
        warn("The run goes on.")


@app.command("log")
def log(name: SomeRun = "", root: Root = None, as_json: Json = False) -> None:
    """Print what has happened in a turn, one line an event (streamed words left out)."""
    paths = TurnPaths(_found_run(name, root).path)
    read = read_journal(paths.journal)
    if as_json:
        say_json([asdict(event) for event in read.events])
    else:
        for line in log_lines(read.events):
            say(line)
    debug = paths.path / "debug.log"
    more = [f"(more in {text.shown_path(debug)})"] if os.path.exists(debug) else []
    for line in [*more, *read.warnings]:
        warn(line)


@app.command("wait")
def wait(name: LiveRun = "", root: Root = None, as_json: Json = False) -> None:
    """Wait until a run, or a sweep, is over. Ctrl+C stops it; twice: at once."""
    if (sweep := find_sweep(name, root)) is not None:
        _wait_for_sweep(sweep, as_json)
    wait_for_end(_found_run(name, root), as_json)


def _wait_for_sweep(sweep: SweepHandle, as_json: bool) -> NoReturn:
    sweep.wait()
    row = sweep_row(sweep.path)
    table(SWEEP_HEADS, [row], as_json, "")
    raise typer.Exit(COMPLETE if row[1] == "complete" else INCOMPLETE)
