"""Waits for a run to end, prints its result and exits with the matching code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import NoReturn

import typer

from nb_agents.cli.application import COMPLETE, FAILED, INCOMPLETE
from nb_agents.cli.live_view import live_view
from nb_agents.cli.printing import print_text, say_json, warn
from nb_agents.cli.saving import save
from nb_agents.errors import RunCancelled, RunFailed
from nb_agents.launch.run import Run
from nb_agents.presentation.asking import TERMINAL, unanswered, wait_for_gate
from nb_agents.presentation.cards import card_text
from nb_agents.turns.registry import interrupts_stop_new_runs
from nb_agents.verbs.facts import run_facts


def begin_and_wait(
    begin: Callable[[], Run], as_json: bool, *, is_detached: bool = False
) -> NoReturn:
    """Start a run, wait until it ends, print the result and exit. A detached run is not awaited.

    Args:
        begin: Starts the run.
        as_json: Whether to print JSON instead of text.
        is_detached: Whether the run continues when this command is interrupted.
    """
    with nullcontext() if is_detached else interrupts_stop_new_runs():
        run = begin()
        _finish(run, as_json)


def _finish(run: Run, as_json: bool) -> NoReturn:
    is_detached = run.where and not (run.options.cluster and not run.options.detach)
    if is_detached and not run.is_over:
        if as_json:
            say_json(asdict(run_facts(run)))
        else:
            print_text(
                f"Run {run.id} is running: nb-agents follow {run.id}   nb-agents stop {run.id}"
            )
        sys.exit(COMPLETE)
    wait_for_end(run, as_json)


def wait_for_end(run: Run, as_json: bool, *, is_ours: bool = True) -> NoReturn:
    """Show a run until it ends, print the result and exit with the matching code.

    Args:
        as_json: Whether to print JSON instead of text.
        is_ours: Whether this command started the run. If so and stdin is not a terminal, the run is
            stopped at a gate that nobody can answer.
    """
    with live_view(run):
        stopped = _stop_at_gate(run) if is_ours and not sys.stdin.isatty() else ""
        code = _wait(run)
    with suppress(typer.Exit):  # a failed output does not change the exit code of the run
        if as_json:
            say_json(asdict(run_facts(run)))
        else:
            print_text(card_of(run))
    if stopped:
        warn(stopped)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    sys.exit(code if save(run, asks=asks) else FAILED)


def _stop_at_gate(run: Run) -> str:
    """Wait until a run ends or reaches a gate without a timeout, and stop it at the gate.

    Returns:
        An explanation of the stop for the user, or "".
    """
    gate = wait_for_gate(run)
    if gate is None:
        return ""
    run.stop(reason=unanswered(gate), source="approval")
    return (
        "The run was stopped because it has a question and stdin is not a terminal. "
        f"`nb-agents resume {run.session}` asks again in a terminal; with --detach it waits for "
        "an answer. A gate with a timeout needs no answer."
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
    """Return the full card of a run as text, because the run may not be on disk."""
    return card_text(run.view, str(run.path), run.preview, TERMINAL, limit=sys.maxsize)
