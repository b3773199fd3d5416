"""The table of verbs, from which each user interface makes its commands, help and schemas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nb_agents.session.layout import LISTED, session_root
from nb_agents.session.lookup import find_session
from nb_agents.verbs import comparing, on_runs, on_sessions
from nb_agents.verbs.verb import REQUIRED, Caller, Outcome, Parameter, Verb

_TEXT = Parameter("message", "the text", REQUIRED, metavar="TEXT", wire="text")
_MESSAGE = Parameter("message", "what is said about it")
_GATE = Parameter(
    "gate", "which gate; by default the one that has waited longest", is_on_lines=False
)
_YES = Parameter("yes", "don't ask", False, is_option=True)


def _with_text(name: str, act: Callable[..., Outcome], *parameters: Parameter) -> Verb:
    """Return a verb on a run that is named, whose line ends in a text."""
    return Verb(name, act, "run", parameters, needs_name=True, ends_in_text=True, route=name)


_ALL = (
    Verb(
        "stop",
        on_runs.stop,
        parameters=(
            Parameter("now", "cut the calls in flight", False, is_option=True, wire="immediate"),
            Parameter("agent", "stop this agent alone", None, is_option=True, metavar="A"),
            Parameter("reason", "why, for the record", is_option=True, metavar="T"),
        ),
        route="stop",
    ),
    Verb("pause", on_runs.pause, route="pause"),
    Verb("continue", on_runs.continue_, route="resume"),
    _with_text("say", on_runs.say, _TEXT),
    _with_text("approve", on_runs.approve, _MESSAGE, _GATE),
    _with_text("deny", on_runs.deny, _MESSAGE, _GATE),
    _with_text("answer", on_runs.answer, _TEXT),
    Verb(
        "rewind",
        on_runs.rewind,
        "turn",
        (
            Parameter(
                "to",
                "an event's number, words, or a time",
                REQUIRED,
                is_option=True,
                metavar="POINT",
            ),
            Parameter("say", "a text for the agents", is_option=True, metavar="TEXT"),
            Parameter("agent", "the text is for this agent alone", None, True, "A"),
            Parameter("preview", "only say what would be kept and left out", False, True),
            Parameter("now", "cut the calls in flight of a live turn", False, True),
            Parameter("trust", "go on with a session that you have not made here", False, True),
        ),
        route="rewind",
    ),
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
    Verb("delete", on_sessions.delete, "session", (_YES,)),
    Verb(
        "prune",
        on_sessions.prune,
        "root",
        (
            Parameter(
                "older",
                "last used longer ago: 12h, 30d, 8w",
                REQUIRED,
                is_option=True,
                metavar="AGE",
            ),
            Parameter("keep_answers", "keep answers, metadata and receipts", False, is_option=True),
            Parameter("incomplete", "those, too, that could be resumed", False, is_option=True),
            _YES._replace(help="remove it; without, only say what would go"),
        ),
    ),
)
VERBS = {verb.name: verb for verb in _ALL}
ROUTES = {verb.route: verb for verb in _ALL if verb.route}


def carry_out(verb: Verb, caller: Caller, given: dict[str, Any]) -> Outcome:
    """Carry out a verb of a line.

    Args:
        verb: The verb.
        caller: Who asks.
        given: The arguments of the line by the names of `Verb.on_lines`.

    Raises:
        UserError: What it acts on is not there, or it can't be done.
    """
    values = {each.name: given[each.name] for each in verb.parameters if each.is_on_lines}
    on: Any
    if verb.on == "run":
        on = on_runs.find_work(given["run"], caller, values.get("agent"))
    elif verb.on == "turn":
        on = on_runs.find_ended(given["run"], caller)
    elif verb.on == "session":
        on = find_session(_root(caller), given["session"])
    else:
        on = _root(caller)
    return verb.act(on, caller, **values)


def _root(caller: Caller) -> Path:
    return session_root(caller.root)
