"""The commands that ask something of a run, wherever it lives."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from nb_agents.cancel import StopResult
from nb_agents.cli.application import app
from nb_agents.cli.arguments import Json, LiveRun, Message, Root, SomeLiveRun
from nb_agents.cli.printing import say, say_json
from nb_agents.cli.watching import found_run
from nb_agents.errors import UserError
from nb_agents.jupyter.asking import decide
from nb_agents.runs.run import Run
from nb_agents.session.layout import session_root
from nb_agents.sweeps.manifest import pause_sweep, resolve_sweep, stop_sweep

__all__: list[str] = []


@app.command("stop")
def stop(
    name: LiveRun = "",
    now: Annotated[bool, typer.Option("--now", help="Cut the calls in flight.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", help="Stop this agent alone.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Stop a run or a sweep, wherever it lives."""
    sweep = None if agent else resolve_sweep(name, session_root(root))
    if sweep is not None and stop_sweep(sweep, now, "cli", reason):
        if as_json:
            say_json({"changed": True, "status": "asked", "sweep": sweep.name})
        else:
            say(f"Sweep {sweep.name} is asked to stop.")
        return
    run = found_run(name, root)
    result = run.stop(now, agent, reason, source="cli")
    if as_json:
        say_json({**asdict(result), "run": run.id})
    else:
        say(_stopped(run, result))


def _stopped(run: Run, result: StopResult) -> str:
    said = {
        "finished": f"Run {run.id} is over already ({run.status}); nothing was changed.",
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
    run = found_run(name, root)
    run.pause()
    _tell(run, "Paused: calls in flight finish, none begins.", as_json)


@app.command("continue")
def continue_(name: LiveRun = "", root: Root = None, as_json: Json = False) -> None:
    """Let a paused run, or sweep, go on."""
    if _pauses_sweep(name, root, False, "It goes on.", as_json):
        return
    run = found_run(name, root)
    if not run.view.is_paused:
        raise UserError(f"Run {run.id} is not paused; it is {run.status}.")
    run.resume()
    _tell(run, "It goes on.", as_json)


@app.command("say")
def say_(name: SomeLiveRun, text: Message, root: Root = None, as_json: Json = False) -> None:
    """Add a text to a run's task while it works."""
    run = found_run(name, root)
    run.say(text)
    _tell(run, "Its agents read it with their next request.", as_json)


@app.command("approve")
def approve(
    name: SomeLiveRun, text: Message = "", root: Root = None, as_json: Json = False
) -> None:
    """Approve what a run waits for; a message is given to it."""
    run = found_run(name, root)
    _tell(run, decide(run, True, text), as_json)


@app.command("deny")
def deny(name: SomeLiveRun, text: Message = "", root: Root = None, as_json: Json = False) -> None:
    """Deny what a run waits for; a message is given to it."""
    run = found_run(name, root)
    _tell(run, decide(run, False, text), as_json)


@app.command("answer")
def answer(name: SomeLiveRun, text: Message, root: Root = None, as_json: Json = False) -> None:
    """Answer the question that a run waits with."""
    run = found_run(name, root)
    run.answer(text)
    _tell(run, f"Run {run.id} has its answer.", as_json)


def _tell(run: Run, said: str, as_json: bool) -> None:
    if as_json:
        say_json({"run": run.id, "status": run.status, "said": said})
    else:
        say(said)


def _pauses_sweep(name: str, root: Path | None, is_paused: bool, said: str, as_json: bool) -> bool:
    """Hold the sweep that a name means, or let it go on; return whether there is one at work."""
    sweep = resolve_sweep(name, session_root(root))
    if sweep is None or not pause_sweep(sweep, is_paused):
        return False
    if as_json:
        say_json({"sweep": sweep.name, "said": said})
    else:
        say(said)
    return True
