"""Creates the verbs of ``%agents`` from the table of verbs, and displays their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import argument, arguments, display, root_option, table_bundle
from nb_agents.jupyter.panel import show_group, show_run, show_text, show_turn
from nb_agents.jupyter.waiting import follow, follow_group, follow_new, interrupts_stop_new_runs
from nb_agents.launch.run import Run
from nb_agents.presentation.asking import CELL
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.turns.groups import Group
from nb_agents.unicode import without_controls
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
from nb_agents.verbs.table import VerbMapping, run_verb
from nb_agents.verbs.verb import Caller, Parameter, Verb


def _magic_of(verb: Verb) -> Callable[[Any, Any], None]:
    """Return the function with which ``%agents`` runs a verb from the table of verbs."""

    def act(ip: Any, args: Any) -> None:
        caller = Caller("magic", CELL, args.session_root, _confirm, ip.user_ns)
        _show(ip, run_verb(verb, caller, vars(args)))

    act.__doc__ = verb.help
    function: Callable[[Any, Any], None] = declared(*verb.on_line("cell"))(root_option(act))
    return arguments(f"agents {verb.name}")(function)


def declared(*parameters: Parameter) -> Callable[[Any], Any]:
    """Return a decorator that declares the arguments of a magic."""

    def declare(function: Any) -> Any:
        for each in reversed(parameters):
            if "cell" in each.interfaces:
                function = _declared(each)(function)
        return function

    return declare


def _declared(parameter: Parameter) -> Callable[[Any], Any]:
    more: dict[str, Any] = {"help": parameter.help}
    if parameter.is_option:
        names, more["dest"] = parameter.spellings, parameter.name
    else:
        names = (parameter.name,)
    if parameter.default is False:
        return argument(*names, action="store_true", **more)
    more["metavar"] = parameter.metavar or parameter.name.upper()
    if parameter.default == ():
        return argument(*names, action="append", default=[], **more)
    if parameter.is_option and parameter.is_required:
        more["required"] = True
    elif not parameter.is_required:
        more["default"] = parameter.default
        if not parameter.is_option:
            more["nargs"] = "?"
    if parameter.values > 1:
        more["nargs"] = parameter.values
        more["metavar"] = tuple(parameter.metavar.split())
    return argument(*names, type=parameter.kind, **more)


def _confirm(question: str) -> bool:
    return input(without_controls(f"{question} [y/N] ")).strip().lower() in ("y", "yes")


def _show(ip: Any, outcome: Outcome) -> None:
    match outcome:
        case NewRun(begin, waits):
            follow_new(ip, begin, wait=waits)
        case NewGroup(begin_group):
            with interrupts_stop_new_runs(ip, wait=False):
                follow_group(ip, begin_group(), wait=False)
        case ShownWork(work, waits):
            _show_work(ip, work, waits)
        case EventStream(run):
            _show_run(ip, run, waits=False)
        case _:
            _display(outcome)


def _display(outcome: Reply | CheckReport | Table | Log) -> None:
    if isinstance(outcome, Table | CheckReport) and outcome.rows:
        display(table_bundle(outcome.heads, outcome.rows))
    notes = outcome.notes if isinstance(outcome, Table | Log) else ()
    lines = "\n".join(filter(None, (text_of(outcome), *notes)))
    if isinstance(outcome, Reply) and outcome.markdown:
        display({"text/markdown": outcome.markdown, "text/plain": lines})
    elif lines:
        display({"text/plain": lines})


def _show_work(ip: Any, work: Work, waits: bool) -> None:
    if isinstance(work, Run):
        _show_run(ip, work, waits)
    else:
        _show_group(ip, work, waits)


def _show_run(ip: Any, run: Run, waits: bool) -> None:
    if waits:
        follow(ip, run, wait=True)
    elif run.where and run.is_over:
        show_turn(load_turn(TurnPaths(run.path)))
    else:
        (show_run if kernel.has_front_end(ip) else show_text)(run)


def _show_group(ip: Any, group: Group, waits: bool) -> None:
    if waits:
        follow_group(ip, group, wait=True)
    elif kernel.has_front_end(ip) or group.is_over:
        show_group(group)
    else:
        display({"text/plain": repr(group)})


def _names(verb: Verb) -> Iterator[str]:
    if "cell" in verb.interfaces:
        yield from ("", "runs") if verb.name == "runs" else (verb.name,)


def _aliases(verb: Verb) -> Iterator[str]:
    if "cell" in verb.interfaces:
        yield from verb.aliases


VERBS = VerbMapping(_names, _magic_of)
ALIASES = VerbMapping(_aliases, _magic_of)
"""The verbs by their old names, which are neither listed nor completed."""
