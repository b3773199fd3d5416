"""The commands of the table of verbs, and what a terminal shows of their outcomes."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import anyio
import typer

from nb_agents.cli.application import COMPLETE, FAILED, INCOMPLETE, JSON, ROOT, add_command
from nb_agents.cli.live_view import live_view
from nb_agents.cli.printing import say, say_json, shown, table, warn
from nb_agents.cli.run_end import begin_and_wait, card_of, wait_for_end
from nb_agents.events import Event
from nb_agents.presentation.asking import TERMINAL
from nb_agents.presentation.sweep_card import sweep_text, sweep_title
from nb_agents.runs.registry import interrupts_press_new
from nb_agents.runs.run import Run
from nb_agents.runs.status import log_lines
from nb_agents.verbs.facts import SweepFacts, facts_of_work
from nb_agents.verbs.on_sessions import SWEEP_HEADS, sweep_row
from nb_agents.verbs.table import VERBS, carry_out
from nb_agents.verbs.verb import Caller, Outcome, Verb

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep import Sweep
    from nb_agents.verbs.verb import Work


def _add(verb: Verb) -> None:
    def command(root: Any, as_json: bool, **given: Any) -> None:
        outcome = carry_out(verb, Caller("cli", TERMINAL, root, _confirm), given)
        _show(outcome, as_json, is_detached=given.get("detach", False))

    command.__doc__ = verb.help
    add_command(verb.name, command, (*verb.on_line("terminal"), ROOT, JSON))


def _confirm(question: str) -> bool:
    return typer.confirm(shown(question), err=True)


def _show(outcome: Outcome, as_json: bool, is_detached: bool) -> None:
    if begin := outcome.begin:
        begin_and_wait(lambda: begin().run, as_json, is_detached=is_detached)
    elif outcome.follows and isinstance(outcome.shows, Run) and sys.stdout.isatty() and not as_json:
        _watch(outcome.shows)
    elif outcome.begin_sweep:
        _sweep(outcome.begin_sweep, as_json)
    elif outcome.follows:
        _follow(outcome.follows, as_json)
    elif outcome.shows is not None:
        _show_work(outcome.shows, outcome.waits, as_json)
    else:
        _print(outcome, as_json)
    for note in outcome.notes:
        warn(note)
    if not outcome.is_ok:
        raise typer.Exit(FAILED)


def _json(outcome: Outcome) -> Any:
    if outcome.items is not None:
        return [each if isinstance(each, Mapping) else asdict(each) for each in outcome.items]
    if outcome.heads and not outcome.facts:
        return [dict(zip(outcome.heads, row, strict=True)) for row in outcome.rows]
    return {**outcome.facts, "said": outcome.said}


def _print(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        say_json(_json(outcome))
        return
    if outcome.rows:
        table(outcome.heads, outcome.rows)
    if outcome.said:
        say(outcome.said)


def _show_work(work: Work, waits: bool, as_json: bool) -> None:
    if isinstance(work, Run):
        if waits:
            wait_for_end(work, as_json, is_ours=False)
    elif waits:
        work.wait()
    facts = facts_of_work(work)
    if as_json:
        say_json(asdict(facts))
    elif isinstance(facts, SweepFacts):
        table(SWEEP_HEADS, [sweep_row(facts)])
    elif isinstance(work, Run):
        say(card_of(work))
    if waits:
        raise typer.Exit(COMPLETE if facts.state == "complete" else INCOMPLETE)


def _watch(run: Run) -> None:
    """Show a run's rows until it is over, then its card."""
    over = threading.Event()
    run.add_done_callback(over.set)
    try:
        with live_view(run):
            over.wait()
    except KeyboardInterrupt:
        warn(_GOES_ON)
    else:
        say(card_of(run))


_GOES_ON = "The run goes on."


def _sweep(begin: Callable[[], Sweep], as_json: bool) -> None:
    """Begin a sweep, wait for it, and print a table of what came out."""
    with interrupts_press_new():
        sweep = begin()
        view = sweep.wait()
    rows = sweep.table()
    if as_json:
        say_json({"sweep": str(sweep.path), "status": view.status, "rows": rows})
    else:
        say(sweep_text(view, sweep_title(sweep.path), str(sweep.path), rows, TERMINAL))
    raise typer.Exit(COMPLETE if view.status == "completed" else INCOMPLETE)


def _follow(events: AsyncIterator[Event], as_json: bool) -> None:
    async def print_each() -> None:
        async for event in events:
            if as_json:
                say_json(asdict(event))
            else:
                for line in log_lines([event]):
                    say(line)

    try:
        anyio.run(print_each)
    except KeyboardInterrupt:
        warn(_GOES_ON)


for _verb in VERBS.values():
    if "terminal" in _verb.interfaces:
        _add(_verb)
