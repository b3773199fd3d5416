"""The commands that look at runs: those that live, one of them, what happens in it, its end."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import anyio
import typer

from nb_agents.cli.application import COMPLETE, INCOMPLETE, app
from nb_agents.cli.arguments import Json, LiveRun, Root, SomeRun
from nb_agents.cli.printing import say, say_json, shown, table
from nb_agents.cli.starting import card_of, facts_of, wait_for_end
from nb_agents.errors import UnknownRunError
from nb_agents.jupyter import text
from nb_agents.jupyter.cards import card_bundle
from nb_agents.jupyter.door import TERMINAL
from nb_agents.jupyter.sweep_list import SWEEP_HEADS, live_work, pressed, sweep_row
from nb_agents.runs.loop import interrupt_calls
from nb_agents.runs.registry import find_known
from nb_agents.runs.run import Run
from nb_agents.runs.status import log_lines
from nb_agents.session.journal import POLL_S, follow, read_journal
from nb_agents.session.layout import TurnPaths, find_session, session_root
from nb_agents.sweeps.manifest import is_live_sweep, is_sweep, resolve_sweep

__all__ = ["found_run"]


def found_run(name: str, root: Path | None) -> Run:
    """Find a run of whoever's process, or else a turn on disk: by default the last one."""
    try:
        return find_known(name, root)
    except UnknownRunError:
        if name:
            raise
        return find_known(find_session(session_root(root)).name, root)


def _found_sweep(name: str, root: Path | None) -> Path | None:
    path = resolve_sweep(name, session_root(root))
    return path if path is not None and is_sweep(path) else None


@app.command("runs")
def runs_(as_json: Json = False) -> None:
    """List the live runs of this user; a sweep as a whole."""
    alone, sweeps = live_work()
    rows = [(r.session, str(r.turn), text.chip(r.view), r.where, r.view.task) for r in alone]
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
    if (sweep := _found_sweep(name, root)) is not None:
        table(SWEEP_HEADS, [sweep_row(sweep)], as_json, "")
        return
    run = found_run(name, root)
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
        async for event in follow(found_run(name, root).path):
            if as_json:
                say_json(asdict(event))
            else:
                for line in log_lines([event]):
                    say(line)

    try:
        anyio.run(tell)
    except KeyboardInterrupt:
        typer.echo("The run goes on.", err=True)


@app.command("log")
def log(name: SomeRun = "", root: Root = None, as_json: Json = False) -> None:
    """Print what has happened in a turn, one line an event (streamed words left out)."""
    paths = TurnPaths(found_run(name, root).path)
    read = read_journal(paths.journal)
    if as_json:
        say_json([asdict(event) for event in read.events])
    else:
        for line in log_lines(read.events):
            say(line)
    debug = paths.path / "debug.log"
    more = [f"(more in {text.shown_path(debug)})"] if os.path.exists(debug) else []
    for line in [*more, *read.warnings]:
        typer.echo(shown(line), err=True)


@app.command("wait")
def wait(name: LiveRun = "", root: Root = None, as_json: Json = False) -> None:
    """Wait until a run, or a sweep, is over. Ctrl+C stops it; twice: at once."""
    if (sweep := _found_sweep(name, root)) is not None:
        _wait_for_sweep(sweep, as_json)
    wait_for_end(found_run(name, root), as_json)


def _wait_for_sweep(path: Path, as_json: bool) -> NoReturn:
    with interrupt_calls(pressed(path)):
        while is_live_sweep(path):
            time.sleep(POLL_S)
    row = sweep_row(path)
    table(SWEEP_HEADS, [row], as_json, "")
    raise typer.Exit(COMPLETE if row[1] == "complete" else INCOMPLETE)
