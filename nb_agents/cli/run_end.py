"""Waiting for the end of a run that a command began or was asked to wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import NoReturn

import typer

from nb_agents.cli.application import COMPLETE, FAILED, INCOMPLETE
from nb_agents.cli.live_view import live_view
from nb_agents.cli.printing import say, say_json, warn
from nb_agents.cli.saving import save
from nb_agents.errors import RunCancelled, RunFailed
from nb_agents.presentation.asking import TERMINAL, wait_for_gate
from nb_agents.presentation.cards import card_text
from nb_agents.runs.registry import interrupts_press_new
from nb_agents.runs.run import Run
from nb_agents.verbs.facts import facts_of_run


def begin_and_wait(
    begin: Callable[[], Run], as_json: bool, *, is_detached: bool = False
) -> NoReturn:
    """Begin a run, wait for it, print its end and exit accordingly, unless it is detached.

    Args:
        begin: Begins the run.
        as_json: Whether facts are printed, and not words.
        is_detached: Whether an interrupt does not stop the run.
    """
    with nullcontext() if is_detached else interrupts_press_new():
        run = begin()
        _leave(run, as_json)


def _leave(run: Run, as_json: bool) -> NoReturn:
    is_left = run.where and not (run.options.cluster and not run.options.detach)
    if is_left and not run.is_over:
        if as_json:
            say_json(asdict(facts_of_run(run)))
        else:
            say(f"Run {run.id} goes on: nb-agents follow {run.id}   nb-agents stop {run.id}")
        sys.exit(COMPLETE)
    wait_for_end(run, as_json)


def wait_for_end(run: Run, as_json: bool, *, is_ours: bool = True) -> NoReturn:
    """Show a run until it is over, print its end and exit accordingly.

    Args:
        run: The run.
        as_json: Whether facts are printed, and not words.
        is_ours: Whether this command has begun it: then it is stopped where nobody can be asked.
    """
    with live_view(run):
        nobody = _stop_when_asked(run) if is_ours and not sys.stdin.isatty() else ""
        code = _wait(run)
    with suppress(typer.Exit):  # the run is what it is, whoever can read of it
        if as_json:
            say_json(asdict(facts_of_run(run)))
        else:
            say(card_of(run))
    if nobody:
        warn(nobody)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    sys.exit(code if save(run, asks=asks) else FAILED)


def _stop_when_asked(run: Run) -> str:
    """Wait for the end; stop the run at a gate that nobody can answer.

    Returns:
        What the person should know of that, or "".
    """
    gate = wait_for_gate(run)
    if gate is None:
        return ""
    run.stop(reason=f"nobody is there to answer {gate.address!r}", source="approval")
    return (
        "Nobody can be asked, as the input is no terminal, so the run was stopped. "
        f"`nb-agents resume {run.session}` asks again in a terminal, and waits with --detach; a "
        "gate with a timeout decides by itself."
    )


def _wait(run: Run) -> int:
    try:
        run.wait()
    except RunCancelled:
        return INCOMPLETE
    except RunFailed:
        return FAILED
    return COMPLETE


def card_of(run: Run) -> str:
    """Return the card of a run as text, uncut: it may be all that is left."""
    return card_text(run.view, str(run.path), run.preview, TERMINAL, limit=sys.maxsize)
