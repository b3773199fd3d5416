"""The table of verbs, from which each user interface creates its commands, help and schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from nb_agents.errors import UnknownSessionError
from nb_agents.plugins import ExtensionPoint
from nb_agents.presentation.asking import CELL
from nb_agents.session.layout import LISTED, session_root
from nb_agents.session.lookup import find_session, parse_reference, parse_session_reference
from nb_agents.verbs import (
    comparing,
    diagnosing,
    on_files,
    on_runs,
    on_sessions,
    on_turns,
    once_setting,
    parameters,
    resuming,
)
from nb_agents.verbs.outcome import Outcome
from nb_agents.verbs.verb import REQUIRED, Caller, Parameter, Verb

_T = TypeVar("_T")


def _with_text(name: str, act: Callable[..., Outcome], *parameters: Parameter) -> Verb:
    """Return a verb that requires the name of a run and takes the rest of the line as text."""
    return Verb(name, act, "run", parameters, needs_name=True, ends_in_text=True, route=name)


_ADDED: ExtensionPoint[Verb] = ExtensionPoint("verbs")
_FIRST = (
    Verb("stop", on_runs.stop, parameters=parameters.STOP, route="stop"),
    Verb("pause", on_runs.pause, route="pause"),
    Verb("unpause", on_runs.unpause, route="unpause", aliases=("continue",)),
    _with_text("say", on_runs.say, parameters.TEXT),
    Verb("fold", on_runs.fold, parameters=parameters.FOLD, route="fold"),
    _with_text("approve", on_runs.approve, *parameters.DECISION),
    _with_text("deny", on_runs.deny, *parameters.DECISION),
    _with_text("answer", on_runs.answer, parameters.TEXT),
    Verb("runs", on_turns.runs, "root"),
    Verb(
        "once",
        once_setting.once,
        "root",
        (
            Parameter(
                "switch", "on or off; if missing, shows the current setting", metavar="on|off"
            ),
        ),
        interfaces=("cell",),
    ),
    Verb("show", on_turns.show, "shown", parameters.SHOW),
    Verb("log", on_turns.log, "turn"),
    Verb("why", diagnosing.why, "turn"),
    Verb("follow", on_turns.follow, "turn", interfaces=("terminal",)),
    Verb("wait", on_turns.wait),
    Verb("resume", resuming.resume, "root", parameters.RESUME),
    Verb("rewind", resuming.rewind, "turn", parameters.REWIND, route="rewind"),
    Verb("check", on_files.check, "file", parameters.CHECK),
    Verb("plan", on_files.plan, "file", target_help="recipe"),
    Verb(
        "sessions",
        on_sessions.sessions,
        "root",
        (
            Parameter(
                "all",
                f"list all sessions instead of the {LISTED} most recently used",
                False,
                is_option=True,
            ),
        ),
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
)
_LAST = (
    Verb("rename", on_sessions.rename, "session", (Parameter("name", "new session id", REQUIRED),)),
    Verb(
        "export",
        on_sessions.export,
        "session",
        (
            Parameter("file", "zip file to write (default: SESSION.zip in this directory)", None),
            Parameter(
                "html",
                "also write an HTML page next to the zip file, to read without nb_agents and "
                "without a network",
                False,
                is_option=True,
            ),
        ),
    ),
    Verb("verify", on_sessions.verify, "file", target_help="zip file of an exported session"),
    Verb("delete", on_sessions.delete, "session", (parameters.YES,)),
    Verb("prune", on_sessions.prune, "root", parameters.PRUNE),
    Verb("doctor", diagnosing.doctor, "root", parameters.DOCTOR),
)
_CORE = {verb.name: verb for verb in (*_FIRST, *_LAST)}


class VerbMapping(Mapping[str, _T], Generic[_T]):
    """Objects that are made from verbs. Includes verbs of extensions that are registered later.

    Args:
        names: Returns the keys of a verb.
        make: Makes the object of a verb, when it is first used.
    """

    def __init__(self, names: Callable[[Verb], Iterator[str]], make: Callable[[Verb], _T]) -> None:
        self._names, self._make = names, make
        self._made: dict[str, tuple[Verb, _T]] = {}

    def __getitem__(self, name: str) -> _T:
        """Return the object made from the verb with a name."""
        verb = self._verbs()[name]
        loaded_verb = self._made.get(name)
        if loaded_verb is None or loaded_verb[0] is not verb:
            loaded_verb = self._made[name] = verb, self._make(verb)
        return loaded_verb[1]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order in which help lists them."""
        return iter(self._verbs())

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._verbs())

    def _verbs(self) -> dict[str, Verb]:
        return {name: verb for verb in _all_verbs() for name in self._names(verb)}


def _all_verbs() -> Iterator[Verb]:
    """Yield all verbs. An extension can't replace one of the core."""
    yield from _FIRST
    yield from (verb for name, verb in _ADDED.all().items() if name not in _CORE)
    yield from _LAST


def _same(verb: Verb) -> Verb:
    return verb


VERBS = VerbMapping(lambda verb: iter((verb.name,)), _same)
"""The verbs by name."""
ALIASES = VerbMapping(lambda verb: iter(verb.aliases), _same)
"""The verbs by their old names, which still work but are not listed."""


def by_route(make: Callable[[Verb], _T]) -> VerbMapping[_T]:
    """Return objects made from the verbs of the REST API, by the last word of their URL path."""
    return VerbMapping(_routes_of, make)


def _routes_of(verb: Verb) -> Iterator[str]:
    owner = next((each for each in _CORE.values() if each.route == verb.route), verb)
    if verb.route and owner is verb:
        yield verb.route


ROUTES = by_route(_same)


def run_verb(verb: Verb, caller: Caller, arguments: Mapping[str, Any]) -> Outcome:
    """Run the verb on a line of a cell or terminal.

    Args:
        caller: The user interface that makes the request.
        arguments: The arguments of the command, by the names of `Verb.on_line`.

    Raises:
        UserError: The run, session or file does not exist, or the verb can't be applied to it.
    """
    interface = "cell" if caller.entry_point is CELL else "terminal"
    declared = (each for each in verb.parameters if interface in each.interfaces)
    values = {each.name: arguments[each.name] for each in declared}
    return verb.act(_target(verb, caller, arguments), caller, **values)


def _target(verb: Verb, caller: Caller, arguments: Mapping[str, Any]) -> Any:
    """Return the run, turn, session, file or root that a verb acts on."""
    match verb.on:
        case "run":
            name, located = _locate(arguments["run"], caller)
            return on_runs.find_work(name, located, arguments.get("agent"))
        case "shown":
            return on_runs.find_to_show(*_locate(arguments["turn"], caller))
        case "turn":
            return on_turns.find_turn_handle(*_locate(arguments["turn"], caller))
        case "session":
            named = parse_session_reference(arguments["session"], caller.root)
            try:
                return find_session(session_root(named.root), named.name)
            except UnknownSessionError:
                on_turns.refuse_group(named.name, caller._replace(root=named.root))
                raise
        case "file":
            return arguments["file"]
        case "root":
            return session_root(caller.root)


def _locate(name: str, caller: Caller) -> tuple[str, Caller]:
    """Return the run or session named by a path, and a caller limited to the path's root."""
    named = parse_reference(name, caller.root)
    return named.name, caller._replace(root=named.root)
