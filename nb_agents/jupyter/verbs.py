"""The verbs of ``%agents``, made from the table of verbs, and what a cell shows of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import argument, arguments, display, root_option, table_bundle
from nb_agents.jupyter.panel import show_run, show_sweep, show_text, show_turn
from nb_agents.jupyter.sweep_cell import follow_sweep
from nb_agents.jupyter.waiting import follow, follow_new, pressing_new
from nb_agents.presentation.asking import CELL
from nb_agents.runs.run import Run
from nb_agents.session.history import load_turn
from nb_agents.session.layout import TurnPaths
from nb_agents.unicode import without_controls
from nb_agents.verbs.table import VERBS as TABLE
from nb_agents.verbs.table import carry_out
from nb_agents.verbs.verb import Caller, Outcome, Parameter, Verb

if TYPE_CHECKING:
    from nb_agents.verbs.verb import Work


def _made(verb: Verb) -> Callable[[Any, Any], None]:
    """Return what ``%agents`` does with a verb of the table."""

    def act(ip: Any, args: Any) -> None:
        caller = Caller("magic", CELL, args.session_root, _confirm, ip.user_ns)
        _show(ip, carry_out(verb, caller, vars(args)))

    act.__doc__ = verb.help
    made: Callable[[Any, Any], None] = declared(*verb.on_line("cell"))(root_option(act))
    return arguments(f"agents {verb.name}")(made)


def declared(*parameters: Parameter) -> Callable[[Any], Any]:
    """Declare the arguments of a magic."""

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
    return argument(*names, type=parameter.kind, **more)


def _confirm(question: str) -> bool:
    return input(without_controls(f"{question} [y/N] ")).strip().lower() in ("y", "yes")


def _show(ip: Any, outcome: Outcome) -> None:
    if outcome.begin:
        follow_new(ip, outcome.begin, wait=outcome.waits)
        return
    if outcome.begin_sweep:
        with pressing_new(ip, wait=outcome.waits):
            follow_sweep(ip, outcome.begin_sweep(), wait=outcome.waits)
        return
    if outcome.shows is not None:
        _show_work(ip, outcome.shows, outcome.waits)
        return
    if outcome.rows:
        display(table_bundle(outcome.heads, outcome.rows))
    said = "\n".join(filter(None, (outcome.said, *outcome.notes)))
    if outcome.markdown:
        display({"text/markdown": outcome.markdown, "text/plain": said})
    elif said:
        display({"text/plain": said})


def _show_work(ip: Any, work: Work, waits: bool) -> None:
    if isinstance(work, Run):
        if waits:
            follow(ip, work, wait=True)
        elif work.where and work.is_over:
            show_turn(load_turn(TurnPaths(work.path)))
        else:
            (show_run if kernel.has_front_end(ip) else show_text)(work)
    elif waits:
        follow_sweep(ip, work, wait=True)
    elif kernel.has_front_end(ip) or work.is_over:
        show_sweep(work)
    else:
        display({"text/plain": repr(work)})


VERBS: dict[str, Callable[[Any, Any], None]] = {
    "": _made(TABLE["runs"]),
    **{name: _made(verb) for name, verb in TABLE.items() if "cell" in verb.interfaces},
}
