"""Creates commands from the table of verbs, and displays their outcomes in a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from typing import Any

import anyio
import typer

from nb_agents.cli.application import COMPLETE, FAILED, INCOMPLETE, JSON, ROOT, add_command
from nb_agents.cli.live_view import activity_lines, live_view
from nb_agents.cli.printing import print_text, say_json, shown, table, warn
from nb_agents.cli.run_end import begin_and_wait, card_of, wait_for_end
from nb_agents.config.file_findings import findings_of_error
from nb_agents.errors import ConfigError
from nb_agents.events import Event
from nb_agents.launch.run import Run
from nb_agents.presentation.asking import TERMINAL
from nb_agents.turns.groups import Group, kind_of
from nb_agents.turns.registry import interrupts_stop_new_runs
from nb_agents.verbs.facts import run_facts
from nb_agents.verbs.outcome import (
    CheckReport,
    EventStream,
    Log,
    NewGroup,
    NewRun,
    Outcome,
    Reply,
    ShownWork,
    Table,
    Work,
    text_of,
)
from nb_agents.verbs.table import VERBS, run_verb
from nb_agents.verbs.verb import Caller, Command, Verb


def _add(verb: Verb, name: str = "") -> None:
    def command(root: Any, as_json: bool, **arguments: Any) -> None:
        try:
            outcome = run_verb(verb, Caller("cli", TERMINAL, root, _confirm), arguments)
        except ConfigError as exc:
            if as_json:
                findings = [asdict(each) for each in findings_of_error(exc)]
                say_json({"can_start": False, "findings": findings})
            raise
        _show(outcome, as_json, is_detached=arguments.get("detach", False))

    command.__doc__ = verb.help
    parameters = (*verb.on_line("terminal"), ROOT, JSON)
    add_command(name or verb.name, Command(command, parameters, is_hidden=bool(name)))


def _confirm(question: str) -> bool:
    return typer.confirm(shown(question), err=True)


def _show(outcome: Outcome, as_json: bool, is_detached: bool) -> None:
    match outcome:
        case NewRun(begin):
            begin_and_wait(lambda: begin().run, as_json, is_detached=is_detached)
        case NewGroup(begin_group):
            _begin_group(begin_group, as_json)
        case ShownWork(work, waits):
            _show_work(work, waits, as_json)
        case EventStream(_, events) if as_json:
            _print_events(events)
        case EventStream(run):
            _watch(run)
        case _ if as_json:
            say_json(_json(outcome))
        case _:
            _print(outcome)
    if isinstance(outcome, Table | Log):
        for note in outcome.notes:
            warn(note)
    if isinstance(outcome, CheckReport) and not outcome.is_ok:
        raise typer.Exit(FAILED)


def _json(outcome: Reply | CheckReport | Table | Log) -> Any:
    match outcome:
        case Reply(text, facts) | CheckReport(Reply(text, facts)):
            return {**facts, "said": text}
        case Log(events=items) | Table(items=[*items]):
            return [each if isinstance(each, Mapping) else asdict(each) for each in items]
        case Table(heads, rows):
            return [dict(zip(heads, row, strict=True)) for row in rows]


def _print(outcome: Reply | CheckReport | Table | Log) -> None:
    if isinstance(outcome, Table | CheckReport) and outcome.rows:
        table(outcome.heads, outcome.rows)
    if text := text_of(outcome):
        print_text(text)


def _show_work(work: Work, waits: bool, as_json: bool) -> None:
    if isinstance(work, Run):
        _show_run(work, waits, as_json)
    else:
        _show_group(work, waits, as_json)


def _show_run(run: Run, waits: bool, as_json: bool) -> None:
    if waits:
        wait_for_end(run, as_json, is_ours=False)
    facts = run_facts(run)
    if as_json:
        say_json(asdict(facts))
    else:
        print_text(card_of(run))
    if waits:
        raise typer.Exit(COMPLETE if facts.state == "complete" else INCOMPLETE)


def _show_group(group: Group, waits: bool, as_json: bool) -> None:
    if waits:
        group.wait()
    kind = kind_of(group)
    facts = kind.facts_of(group)
    if as_json:
        say_json(asdict(facts))
    else:
        print_text(kind.report(group))
    if waits:
        raise typer.Exit(COMPLETE if facts.state == "complete" else INCOMPLETE)


def _watch(run: Run) -> None:
    """Show a run until it ends, and then its card. Without a terminal, print changes as lines."""
    try:
        if sys.stdout.isatty():
            _watch_rows(run)
        else:
            _watch_lines(run)
    except KeyboardInterrupt:
        warn(_STILL_RUNNING)
    else:
        print_text(card_of(run))


def _watch_rows(run: Run) -> None:
    over = threading.Event()
    run.add_done_callback(over.set)
    with live_view(run):
        over.wait()


def _watch_lines(run: Run) -> None:
    with live_view(run, draws=False):
        for line in activity_lines(run):
            print_text(line)


_STILL_RUNNING = "The run continues."


def _begin_group(begin: Callable[[], Group], as_json: bool) -> None:
    """Start a group, wait for it, and print its results."""
    with interrupts_stop_new_runs():
        group = begin()
        view = group.wait()
    if as_json:
        say_json(kind_of(group).results(group))
    else:
        print_text(kind_of(group).report(group))
    raise typer.Exit(COMPLETE if view.state == "complete" else INCOMPLETE)


def _print_events(events: AsyncIterator[Event]) -> None:
    async def print_each() -> None:
        async for event in events:
            say_json(asdict(event))

    try:
        anyio.run(print_each)
    except KeyboardInterrupt:
        warn(_STILL_RUNNING)


for _verb in VERBS.values():
    if "terminal" in _verb.interfaces:
        _add(_verb)
        for _alias in _verb.aliases:
            _add(_verb, _alias)
