"""What ``%agents VERB`` does with runs and with sessions on disk, one function a verb."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nb_agents.errors import UnknownRunError, UserError
from nb_agents.jupyter import kernel
from nb_agents.jupyter.ipython import argument, arguments, display, root_option, show_table
from nb_agents.jupyter.panel import show_run, show_sweep, show_text, show_turn
from nb_agents.jupyter.sweep_verbs import (
    dead_sweeps,
    follow_sweep,
    shown_sweep,
    work_elsewhere,
)
from nb_agents.jupyter.waiting import follow, follow_new
from nb_agents.launch.api import resume as resume_turn
from nb_agents.launch.file_report import check_file
from nb_agents.launch.once import EarlierOrNew, resume_once
from nb_agents.launch.resume import preview
from nb_agents.launch.team_report import AgentReport
from nb_agents.options import RunOptions
from nb_agents.presentation import text
from nb_agents.presentation.arguments import context_of
from nb_agents.presentation.asking import CELL, question
from nb_agents.presentation.sweep_list import live_work, place_of, sweep_row
from nb_agents.runs.finding import find_known, find_run
from nb_agents.runs.status import log_lines
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import LISTED, TurnPaths, session_root, sessions_in, turns_of
from nb_agents.session.lookup import find_turn
from nb_agents.session.views import read_json
from nb_agents.tools.functions import find_functions
from nb_agents.unicode import without_controls
from nb_agents.verbs.on_sessions import readable, unread
from nb_agents.verbs.table import VERBS as TABLE
from nb_agents.verbs.table import carry_out
from nb_agents.verbs.verb import Caller, Outcome, Parameter, Verb

set_option = argument(
    "--set",
    dest="settings",
    action="append",
    default=[],
    metavar="NAME=VALUE",
    help="a value that the recipe starts with",
)
bundle_option = argument(
    "--bundle",
    dest="bundles",
    action="append",
    default=[],
    metavar="NAME=DIR",
    help="where the recipes of a bundle are, which steps name as @NAME:path",
)
tools_option = argument(
    "--tools", metavar="F,G", help="functions of the notebook that the agents may call"
)
options_option = argument(
    "--options", metavar="NAME", help="a variable with RunOptions: retries, stops, approvals"
)
cluster_option = argument(
    "--cluster", metavar="ADDRESS", help="on the workers of a Dask cluster; local:N begins one here"
)
trust_option = argument(
    "--trust", action="store_true", help="go on with a session that you have not made here"
)
_FLAGS = {
    "session_root": "--session-root",
    "timeout": "--orchestrator-timeout",
    "from_turn": "--from",
    "skip_unsupported": "--skip-unsupported",
    "debug": "--debug",
    "detach": "--detach",
    "cluster": "--cluster",
    "trust": "--trust",
}
"""The flags that stand for an option, by its name."""


def _made(verb: Verb) -> Callable[[Any, Any], None]:
    """Return what ``%agents`` does with a verb of the table."""

    def act(ip: Any, args: Any) -> None:
        caller = Caller("magic", CELL, args.session_root, _confirm)
        done = carry_out(verb, caller, vars(args))
        _show(done)
        if (begin := done.begin) is not None:
            follow_new(ip, lambda: EarlierOrNew(begin(), False), wait=False)

    act.__doc__ = verb.help
    act = root_option(act)
    for each in reversed(verb.on_lines):
        act = _declared(each)(act)
    return arguments(f"agents {verb.name}")(act)


def _declared(parameter: Parameter) -> Callable[[Any], Any]:
    names = (parameter.flag,) if parameter.is_option else (parameter.name,)
    more: dict[str, Any] = {"help": parameter.help}
    if parameter.default is False:
        return argument(*names, action="store_true", **more)
    more["metavar"] = parameter.metavar or parameter.name.upper()
    if parameter.is_option and parameter.is_required:
        more["required"] = True
    elif not parameter.is_required:
        more["default"] = parameter.default
        if not parameter.is_option:
            more["nargs"] = "?"
    return argument(*names, **more)


def _confirm(question: str) -> bool:
    return input(without_controls(f"{question} [y/N] ")).strip().lower() in ("y", "yes")


def _show(outcome: Outcome) -> None:
    if outcome.rows:
        show_table(outcome.heads, outcome.rows, "")
    said = "\n".join(filter(None, (outcome.said, *outcome.notes)))
    if said:
        _say(said)


def tell_of_dead_turns() -> None:
    """Print which turns were cut off when their kernel died; reading them mends their files."""
    found = sessions_in(session_root())
    said = [str(each) for each in found.unreadable]
    # Of those that nobody has used since long this was told before.
    for path in found.by_use[:LISTED]:
        said += readable(path, _dead)
    said += dead_sweeps(session_root())
    said += work_elsewhere(session_root())
    for sentence in said:
        _say(sentence)


def _dead(session: Path) -> list[str]:
    last = turns_of(session)[-1]
    is_dead = _never_ended(last) and not last.is_live()
    return [_died(load_turn(last))] if is_dead else []


def _died(turn: PastTurn) -> str:
    name = turn.paths.session
    go_on = f"%agents resume {name}" if turn.view.recipe else "%%agents --continue"
    said = (
        f"Incomplete turn {name}/{turn.paths.number}: its kernel died. Kept: {_kept(turn)}. "
        f"`%agents show {name}` shows it, `{go_on}` goes on."
    )
    return " ".join([said, *map(question, turn.view.gates.values()), *unread([turn])])


def _never_ended(paths: TurnPaths) -> bool:
    data = read_json(paths.metadata)
    if not data:
        return os.path.lexists(paths.journal)
    return data.get("run_status") in ("pending", "in-progress", "awaiting")


def _kept(turn: PastTurn) -> str:
    if turn.view.recipe:
        steps = [s for s in turn.view.steps.values() if s.unit in ("agent", "bash")]
        done = sum(s.status == "ok" for s in steps)
        return f"{done} step(s), {turn.view.file_count or 0} file(s)"
    agents = turn.view.agents.values()
    answers, partial = sum(1 for a in agents if a.answers), sum(1 for a in agents if a.unsubmitted)
    return f"{answers} answer(s), {partial} partial text(s), {turn.view.file_count or 0} file(s)"


def _say(sentence: str) -> None:
    display({"text/plain": sentence})


def _run(function: Any) -> Any:
    """Declare what names a run, by default the latest, and its session root."""
    name = argument(
        "run", nargs="?", default="", metavar="RUN", help="run id (default: the latest)"
    )
    return name(root_option(function))


@arguments("agents")
@root_option
def table(ip: Any, args: Any) -> None:
    """Show this kernel's runs, and the live ones of other processes; sweeps as a whole."""
    alone, live = live_work(args.session_root)
    rows = [
        (
            run.id,
            text.chip(run.view),
            run.view.current_step if run.view.recipe else f"{run.view.round}/∞",
            text.elapsed(run.view, time.time())[0].removeprefix("Elapsed: "),
            f"{run.session}/{run.turn}",
            place_of(run),
            text.clip(run.view.task, 60),
        )
        for run in alone
    ]
    for path, where in live.items():
        name, state, done, *_, task = sweep_row(path)
        rows.append((name, state, done, "", name, where, task))
    heads = ("run", "status", "round/step", "elapsed", "session/turn", "where", "task")
    show_table(heads, rows, "No run was started in this kernel. %%agents starts one.")


@arguments("agents wait")
@_run
def wait(ip: Any, args: Any) -> None:
    """Stay in the cell until a run, or a sweep, is over; an interrupt stops it."""
    if (sweep := shown_sweep(args.run, args.session_root)) is not None:
        follow_sweep(ip, sweep, wait=True)
        return
    follow(ip, find_known(args.run, args.session_root), wait=True)


@arguments("agents show")
@argument("what", nargs="?", default="", metavar="RUN|SESSION[/TURN]", help="default: the latest")
@argument(
    "--tools", metavar="F,G", help="offer these functions to a detached run, as after a restart"
)
@root_option
def show(ip: Any, args: Any) -> None:
    """Show the live panel of a run or a sweep, or the card of a turn on disk."""
    if (sweep := shown_sweep(args.what, args.session_root)) is not None:
        if kernel.has_front_end(ip) or sweep.is_over:
            show_sweep(sweep)
        else:
            _say(repr(sweep))
        return
    functions = find_functions(args.tools, ip.user_ns) if args.tools else ()
    try:
        run = find_run(args.what, args.session_root)
        if functions:
            run.offer(functions)
    except UnknownRunError:
        if functions:
            raise
        show_turn(load_turn(find_turn(session_root(args.session_root), args.what)))
        return
    (show_run if kernel.has_front_end(ip) else show_text)(run)


@arguments("agents check")
@argument("file", metavar="FILE", help="team file (MassGen's YAML or JSON), or recipe")
@argument("--config", "-c", "--agents-config", metavar="F", help="for a recipe: its team file")
@bundle_option
@argument(
    "--connect", action="store_true", help="load custom tools and start MCP servers, to try them"
)
def check(ip: Any, args: Any) -> None:
    """Show what would become of a team file or a recipe, without running it."""
    told = check_file(args.file, args.config, args.bundles, connects=args.connect)
    if told.agents:
        show_table(AgentReport._fields, told.agents, "")
    _say("\n".join(told.lines))


@arguments("agents log")
@_run
def log(ip: Any, args: Any) -> None:
    """Show what happened in a turn, one line an event (streamed words left out)."""
    try:
        paths = TurnPaths(find_known(args.run, args.session_root).path)
    except UnknownRunError:
        paths = find_turn(session_root(args.session_root), args.run)
    recovered = read_journal(paths.journal)
    lines = log_lines(recovered.events)
    debug = paths.path / "debug.log"
    if os.path.exists(debug):
        lines.append(f"(more in {text.shown_path(debug)})")
    display({"text/plain": "\n".join([*lines, *recovered.warnings])})


def options_of(args: Any, namespace: Mapping[str, Any]) -> RunOptions:
    """Combine ``--options`` with the flags beside it.

    Args:
        args: The line's.
        namespace: The notebook's names, where ``--options NAME`` looks.

    Raises:
        UserError: There is no such variable, it holds something else, or one is given twice.
    """
    given = _named_options(args.options, namespace) if args.options else RunOptions()
    flags: dict[str, Any] = {}
    for name, flag in _FLAGS.items():
        value = getattr(args, name, None)
        if value is None or value is False:
            continue
        if getattr(given, name):
            raise UserError(f"{flag} is given, and --options {args.options} has it too. Drop one.")
        flags[name] = value
    return replace(given, **flags)


def _named_options(name: str, namespace: Mapping[str, Any]) -> RunOptions:
    if name not in namespace:
        raise UserError(
            f"--options {name}: no variable {name!r} is defined. Define it in a cell before: "
            f"{name} = nb_agents.RunOptions(…)"
        )
    found = namespace[name]
    if not isinstance(found, RunOptions):
        kind = type(found).__name__
        raise UserError(
            f"--options {name}: {name!r} is of type {kind}, not RunOptions. Make it with "
            "nb_agents.RunOptions(…)."
        )
    return found


@arguments("agents resume")
@argument("session", nargs="?", default="", metavar="SESSION", help="default: this notebook's last")
@argument(
    "--config", "-c", "--agents-config", metavar="F", help="team file (default: the turn's own)"
)
@argument(
    "--orchestrator-timeout", dest="timeout", type=float, metavar="S", help="seconds, counted anew"
)
@argument("--recipe", "-r", metavar="F", help="a changed recipe, in the place of the turn's own")
@set_option
@argument(
    "--from",
    dest="from_step",
    default="",
    metavar="STEP",
    help="step of a recipe that runs again, with all after it",
)
@tools_option
@options_option
@argument("--preview", action="store_true", help="only say what would run again")
@argument(
    "--detach", action="store_true", help="in a process of its own, which outlives the kernel"
)
@cluster_option
@trust_option
@argument("--wait", action="store_true", help="stay in the cell until the run is over")
@root_option
def resume(ip: Any, args: Any) -> None:
    """Go on with an incomplete turn: same task, nothing that finished runs again."""
    options = options_of(args, ip.user_ns)
    context = context_of("", args.settings, {})
    if args.preview:
        root = options.session_root
        told = preview(
            args.session,
            args.config,
            recipe=args.recipe,
            context=context,
            from_step=args.from_step,
            session_root=root,
        )
        display({"text/plain": str(told)})
        return
    again = partial(
        resume_turn,
        args.session,
        args.config,
        recipe=args.recipe,
        context=context,
        from_step=args.from_step,
        tools=find_functions(args.tools, ip.user_ns) if args.tools else (),
        options=options,
    )
    is_new = bool(args.from_step or args.recipe or args.settings)
    begin = partial(resume_once, args.session, options, again, is_new=is_new)
    follow_new(ip, begin, wait=args.wait)


@arguments("agents plan")
@argument("file", metavar="RECIPE", help="recipe file")
def plan(ip: Any, args: Any) -> None:
    """Draw a recipe, without running it."""
    from nb_agents.config.recipe import Recipe
    from nb_agents.recipes.check import check as checked
    from nb_agents.recipes.diagram import mermaid

    recipe = Recipe.from_file(args.file)
    drawn = f"```mermaid\n{mermaid(recipe)}\n```"
    display({"text/markdown": drawn, "text/plain": "\n".join(checked(recipe).plan)})


VERBS: dict[str, Callable[[Any, Any], None]] = {
    "": table,
    **{name: _made(verb) for name, verb in TABLE.items()},
    "wait": wait,
    "show": show,
    "check": check,
    "log": log,
    "resume": resume,
    "plan": plan,
}
