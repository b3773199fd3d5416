"""What ``%agents VERB`` does, one function a verb."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nb_agents.cancel import StopResult
from nb_agents.config.recipe import is_recipe
from nb_agents.config.team import TeamSpec
from nb_agents.errors import UnknownRunError, UnknownSessionError, UserError
from nb_agents.jupyter import kernel, text
from nb_agents.jupyter.cards import show_turn
from nb_agents.jupyter.ipython import argument, arguments, display
from nb_agents.jupyter.panel import show_run, show_text, shown_path
from nb_agents.jupyter.recipe_verbs import RECIPE_VERBS, WITH_MESSAGE, check_recipe
from nb_agents.jupyter.session_verbs import (
    SESSION_VERBS,
    options_option,
    root_option,
    tools_option,
)
from nb_agents.jupyter.tables import show_table
from nb_agents.jupyter.waiting import stay
from nb_agents.models.check_report import report_on
from nb_agents.runs import registry
from nb_agents.runs.options import find_options
from nb_agents.runs.resume import preview
from nb_agents.runs.resume import resume as resume_turn
from nb_agents.runs.run import Run
from nb_agents.runs.status import log_lines
from nb_agents.session.history import PastTurn, load_turn
from nb_agents.session.journal import read_journal
from nb_agents.session.layout import (
    TurnPaths,
    find_session,
    session_root,
    turns_of,
)
from nb_agents.tools.announcements import announcements
from nb_agents.tools.functions import find_functions

__all__ = ["VERBS", "WITH_MESSAGE", "follow"]

_run = argument("run", nargs="?", default="", metavar="RUN", help="run id, such as r1; the latest")


@arguments("agents")
def table(ip: Any, args: Any) -> None:
    """Show this kernel's runs."""
    rows = [
        (
            run.id,
            text.chip(run.view),
            run.view.current_step if run.view.recipe else f"{run.view.round}/∞",
            text.elapsed(run.view, time.time())[0].removeprefix("Elapsed: "),
            f"{run.session}/{run.turn}",
            text.clip(run.view.task, 60),
        )
        for run in registry.runs()
    ]
    heads = ("run", "status", "round/step", "elapsed", "session/turn", "task")
    show_table(heads, rows, "No run was started in this kernel. %%agents starts one.")


@arguments("agents stop")
@_run
@argument("--now", action="store_true", help="cut the calls in flight")
@argument("--agent", metavar="A", help="stop this agent alone")
@argument("--reason", metavar="T", default="", help="why, for the record (quote it)")
def stop(ip: Any, args: Any) -> None:
    """Stop a run."""
    run = registry.find_run(args.run)
    agent = run.view.agents.get(args.agent)
    if agent and agent.outcome and not run.is_over:
        result = StopResult(False, "finished")
    else:
        result = run.stop(args.now, args.agent, args.reason, source="magic")
    what = f"agent {args.agent} of run {run.id}" if args.agent else f"run {run.id}"
    said = {
        "finished": f"{what} is over already; nothing was changed.",
        "asked": f"{what} is asked to stop; it will as soon as it can be reached.",
        "vetoed": f"{what} goes on: its before_cancel hook vetoed the stop. --now can't be vetoed.",
        "stopping": f"{what} is stopping; calls in flight may finish. --now cuts them.",
        "stopping-now": f"{what} is stopping now.",
    }
    sentence = said.get(result.status, result.status)
    display({"text/plain": sentence[:1].upper() + sentence[1:]})


@arguments("agents pause")
@_run
def pause(ip: Any, args: Any) -> None:
    """Let a run hold still at its next boundary; its time does not count meanwhile."""
    run = registry.find_run(args.run)
    run.pause()
    said = f"Run {run.id} is paused: calls in flight finish, none begins."
    display({"text/plain": f"{said} `%agents continue {run.id}` goes on."})


@arguments("agents continue")
@_run
def continue_(ip: Any, args: Any) -> None:
    """Let a paused run go on."""
    run = registry.find_run(args.run)
    if not run.view.is_paused:
        raise UserError(f"Run {run.id} is not paused; it is {run.status}.")
    run.resume()
    display({"text/plain": f"Run {run.id} goes on."})


@arguments("agents wait")
@_run
def wait(ip: Any, args: Any) -> None:
    """Stay in the cell until a run is over; an interrupt stops the run."""
    follow(ip, registry.find_run(args.run), wait=True)


@arguments("agents show")
@argument("what", nargs="?", default="", metavar="RUN|SESSION[/TURN]", help="default: the latest")
@root_option
def show(ip: Any, args: Any) -> None:
    """Show the live panel of a run, or the card of a turn on disk."""
    try:
        run = registry.find_run(args.what)
    except UnknownRunError:
        show_turn(_turn(args.what, session_root(args.session_root)))
        return
    (show_run if kernel.has_front_end(ip) else show_text)(run)


@arguments("agents check")
@argument("file", metavar="FILE", help="team file (MassGen's YAML or JSON), or recipe")
@argument("--config", "-c", "--agents-config", metavar="F", help="for a recipe: its team file")
def check(ip: Any, args: Any) -> None:
    """Show what would become of a team file or a recipe, without running it."""
    if is_recipe(args.file):
        check_recipe(args.file, TeamSpec.from_file(args.config) if args.config else None)
        return
    team = TeamSpec.from_file(args.file)
    report = report_on(team)
    gone = {each.agent for each in team.unsupported}
    able = [(a.id, a.backend) for a in team.everyone if a.id not in gone]
    tools = announcements(able, has_protected_paths=team.orchestrator.protects_paths)
    if report.agents:
        show_table(("agent", "type", "model", "key"), report.agents, "")
    said = "\n".join([*report.lines, *tools, report.verdict])
    display({"text/plain": f"{args.file}\n{said}"})


@arguments("agents log")
@_run
@root_option
def log(ip: Any, args: Any) -> None:
    """Show what happened in a turn, one line an event (streamed words left out)."""
    try:
        paths = TurnPaths(registry.find_run(args.run).path)
    except UnknownRunError:
        paths = _turn(args.run, session_root(args.session_root)).paths
    recovered = read_journal(paths.journal)
    lines = log_lines(recovered.events)
    debug = paths.path / "debug.log"
    if os.path.exists(debug):
        lines.append(f"(more in {shown_path(debug)})")
    display({"text/plain": "\n".join([*lines, *recovered.warnings])})


def follow(ip: Any, run: Run, *, wait: bool) -> None:
    """Show a run, and wait for it if that is asked or nobody could see it later.

    Args:
        ip: The shell.
        run: The run.
        wait: Whether the person asked to wait.
    """
    if kernel.has_front_end(ip):
        show_run(run)
        said = stay(ip, run) if wait or kernel.is_headless(ip) else ""
    else:
        said = stay(ip, run) if wait else ""
        show_text(run)
    if said:
        display({"text/plain": said})


@arguments("agents resume")
@argument("session", nargs="?", default="", metavar="SESSION", help="default: the one used last")
@argument("--config", "-c", metavar="F", help="team file (default: the turn's own)")
@argument("--orchestrator-timeout", type=float, metavar="S", help="seconds, counted anew")
@argument("--recipe", "-r", metavar="F", help="a changed recipe, in the place of the turn's own")
@tools_option
@options_option
@argument("--preview", action="store_true", help="only say what would run again")
@argument("--wait", action="store_true", help="stay in the cell until the run is over")
@root_option
def resume(ip: Any, args: Any) -> None:
    """Go on with an incomplete turn: same task, nothing that finished runs again."""
    if args.preview:
        told = preview(args.session, args.session_root, args.config, recipe=args.recipe)
        display({"text/plain": str(told)})
        return
    run = resume_turn(
        args.session,
        args.config,
        args.session_root,
        timeout=args.orchestrator_timeout,
        recipe=args.recipe,
        tools=find_functions(args.tools, ip.user_ns) if args.tools else (),
        options=find_options(args.options, ip.user_ns) if args.options else None,
    )
    follow(ip, run, wait=args.wait)


VERBS: dict[str, Callable[[Any, Any], None]] = {
    "": table,
    "stop": stop,
    "pause": pause,
    "continue": continue_,
    "wait": wait,
    "show": show,
    "check": check,
    "log": log,
    "resume": resume,
    **RECIPE_VERBS,
    **SESSION_VERBS,
}


def _turn(name: str, root: Path) -> PastTurn:
    """Find a turn by SESSION or SESSION/TURN; "" means the latest."""
    session, _, number = name.partition("/")
    turns = turns_of(find_session(root, session))
    if not number:
        return load_turn(turns[-1])
    for paths in turns:
        if str(paths.number) == number.removeprefix("turn_"):
            return load_turn(paths)
    raise UnknownSessionError(name, str(root), f"{session}/{turns[-1].number}")
