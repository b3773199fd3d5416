"""The commands on runs, wherever they live: they look at one, or ask something of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import anyio
import typer

from nb_agents.cancel import StopResult
from nb_agents.cli.application import (
    COMPLETE,
    INCOMPLETE,
    Json,
    LiveRun,
    Message,
    Root,
    SomeLiveRun,
    SomeRun,
    app,
)
from nb_agents.cli.printing import say, say_json, table, warn
from nb_agents.cli.starting import card_of, facts_of, wait_for_end
from nb_agents.errors import UnknownRunError
from nb_agents.presentation import text
from nb_agents.presentation.asking import TERMINAL, decide
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


@app.command("stop")
def stop(
    name: LiveRun = "",
    now: Annotated[bool, typer.Option("--now", help="Cut the calls in flight.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", help="Stop this agent alone.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Stop a run or a sweep, wherever it lives; without a name, the one of this directory."""
    sweep = None if agent else find_sweep(name, root)
    if sweep and sweep.stop(now, reason=reason, source="cli").status != "finished":
        if as_json:
            say_json({"changed": True, "status": "asked", "sweep": sweep.name})
        else:
            say(f"Sweep {sweep.name} is asked to stop.")
        return
    run = _found_run(name, root)
    result = run.stop(now, agent, reason, source="cli")
    if as_json:
        say_json({**asdict(result), "run": run.id})
    else:
        say(_stopped(run, result))


def _stopped(run: Run, result: StopResult) -> str:
    if result.status == "finished":
        return f"Run {run.id} is over already ({run.status}); nothing was changed."
    said = {
        "asked": f"Run {run.id} is asked to stop; it will as soon as it can be reached.",
        "vetoed": f"Run {run.id} goes on: its before_cancel hook vetoed the stop. Try --now.",
        "stopping": f"Run {run.id} is stopping; calls in flight may finish. --now cuts them.",
        "stopping-now": f"Run {run.id} is stopping now.",
    }
    return said.get(result.status, result.status)


@app.command("pause")
def pause(name: LiveRun = "", root: Root = None, as_json: Json = False) -> None:
    """Let a run, or a sweep, hold still at its next boundary; its time does not count meanwhile."""
    if _pauses_sweep(name, root, True, "Paused: calls in flight finish, no row begins.", as_json):
        return
    run = _found_run(name, root)
    run.pause()
    _tell(run, "Paused: calls in flight finish, none begins.", as_json)


@app.command("continue")
def continue_(name: LiveRun = "", root: Root = None, as_json: Json = False) -> None:
    """Let a paused run, or sweep, go on."""
    if _pauses_sweep(name, root, False, "It goes on.", as_json):
        return
    run = _found_run(name, root)
    run.unpause()
    _tell(run, "It goes on.", as_json)


@app.command("say")
def say_(name: SomeLiveRun, text: Message, root: Root = None, as_json: Json = False) -> None:
    """Add a text to a run's task while it works."""
    run = _found_run(name, root)
    run.say(text)
    _tell(run, "Its agents read it with their next request.", as_json)


@app.command("approve")
def approve(
    name: SomeLiveRun, text: Message = "", root: Root = None, as_json: Json = False
) -> None:
    """Approve what a run waits for; a message is given to it."""
    run = _found_run(name, root)
    _tell(run, decide(run, True, text), as_json)


@app.command("deny")
def deny(name: SomeLiveRun, text: Message = "", root: Root = None, as_json: Json = False) -> None:
    """Deny what a run waits for; a message is given to it."""
    run = _found_run(name, root)
    _tell(run, decide(run, False, text), as_json)


@app.command("answer")
def answer(name: SomeLiveRun, text: Message, root: Root = None, as_json: Json = False) -> None:
    """Answer the question that a run waits with."""
    run = _found_run(name, root)
    run.answer(text)
    _tell(run, f"Run {run.id} has its answer.", as_json)


def _tell(run: Run, said: str, as_json: bool) -> None:
    if as_json:
        say_json({"run": run.id, "status": run.status, "said": said})
    else:
        say(said)


def _pauses_sweep(name: str, root: Path | None, is_paused: bool, said: str, as_json: bool) -> bool:
    """Hold the sweep that a name means, or let it go on; return whether there is one at work."""
    sweep = find_sweep(name, root)
    if sweep is None or not sweep.hold(is_paused):
        return False
    if as_json:
        say_json({"sweep": sweep.name, "said": said})
    else:
        say(said)
    return True
