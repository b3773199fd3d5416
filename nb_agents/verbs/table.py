"""The table of verbs, from which each user interface makes its commands, help and schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nb_agents.presentation.asking import CELL
from nb_agents.session.layout import LISTED, session_root
from nb_agents.session.lookup import find_session
from nb_agents.verbs import (
    comparing,
    on_files,
    on_runs,
    on_sessions,
    on_turns,
    once_setting,
    parameters,
    resuming,
)
from nb_agents.verbs.verb import REQUIRED, Caller, Outcome, Parameter, Verb


def _with_text(name: str, act: Callable[..., Outcome], *parameters: Parameter) -> Verb:
    """Return a verb on a run that is named, whose line ends in a text."""
    return Verb(name, act, "run", parameters, needs_name=True, ends_in_text=True, route=name)


_ALL = (
    Verb("stop", on_runs.stop, parameters=parameters.STOP, route="stop"),
    Verb("pause", on_runs.pause, route="pause"),
    Verb("continue", on_runs.continue_, route="resume"),
    _with_text("say", on_runs.say, parameters.TEXT),
    _with_text("approve", on_runs.approve, *parameters.DECISION),
    _with_text("deny", on_runs.deny, *parameters.DECISION),
    _with_text("answer", on_runs.answer, parameters.TEXT),
    Verb("runs", on_turns.runs, "root"),
    Verb(
        "once",
        once_setting.once,
        "root",
        (Parameter("switch", "on or off; by default it says which", metavar="on|off"),),
        interfaces=("cell",),
    ),
    Verb("show", on_turns.show, "shown", parameters.SHOW),
    Verb("log", on_turns.log, "turn"),
    Verb("follow", on_turns.follow, "turn", interfaces=("terminal",)),
    Verb("wait", on_turns.wait),
    Verb("resume", resuming.resume, "root", parameters.RESUME),
    Verb("rewind", resuming.rewind, "turn", parameters.REWIND, route="rewind"),
    Verb("check", on_files.check, "file", parameters.CHECK),
    Verb("plan", on_files.plan, "file"),
    Verb(
        "sessions",
        on_sessions.sessions,
        "root",
        (Parameter("all", f"and not only the {LISTED} used last", False, is_option=True),),
    ),
    Verb(
        "diff",
        comparing.diff,
        "root",
        (
            Parameter("first", "session/turn", REQUIRED, metavar="A"),
            Parameter("second", "session/turn", REQUIRED, metavar="B"),
        ),
    ),
    Verb("sweeps", on_sessions.sweeps, "root"),
    Verb("rename", on_sessions.rename, "session", (Parameter("name", "its new id", REQUIRED),)),
    Verb(
        "export",
        on_sessions.export,
        "session",
        (Parameter("file", "the zip (default: SESSION.zip here)", None),),
    ),
    Verb("delete", on_sessions.delete, "session", (parameters.YES,)),
    Verb("prune", on_sessions.prune, "root", parameters.PRUNE),
)
VERBS = {verb.name: verb for verb in _ALL}
ROUTES = {verb.route: verb for verb in _ALL if verb.route}


def carry_out(verb: Verb, caller: Caller, given: Mapping[str, Any]) -> Outcome:
    """Carry out a verb of a line.

    Args:
        verb: The verb.
        caller: Who asks.
        given: The arguments of the line by the names of `Verb.on_line`.

    Raises:
        UserError: What it acts on is not there, or it can't be done.
    """
    interface = "cell" if caller.door is CELL else "terminal"
    declared = (each for each in verb.parameters if interface in each.interfaces)
    values = {each.name: given[each.name] for each in declared}
    return verb.act(_found(verb, caller, given), caller, **values)


def _found(verb: Verb, caller: Caller, given: Mapping[str, Any]) -> Any:
    """Return what the verb of a line acts on."""
    match verb.on:
        case "run":
            return on_runs.find_work(given["run"], caller, given.get("agent"))
        case "shown":
            return on_runs.find_shown(given["turn"], caller)
        case "turn":
            return on_turns.find_past(given["turn"], caller)
        case "session":
            return find_session(session_root(caller.root), given["session"])
        case "file":
            return given["file"]
        case "root":
            return session_root(caller.root)
