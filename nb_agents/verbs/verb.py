"""The types used to declare verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nb_agents.cancel import StopSource
from nb_agents.presentation.asking import EntryPoint
from nb_agents.verbs.outcome import Outcome

Interface = Literal["cell", "terminal", "http"]
"""A kind of user interface that offers verbs."""

MAX_TEXT = 20_000
"""Maximum length of text in requests, in characters. The same as `MAX_SAID` of a run."""

LINES: tuple[Interface, ...] = ("cell", "terminal")
EVERYWHERE: tuple[Interface, ...] = (*LINES, "http")


class Caller(NamedTuple):
    """The user interface that makes a request.

    Attributes:
        source: The name of the interface, for the journal.
        entry_point: The command syntax of the interface.
        root: The session root to search, or None for all runs that this process can see.
        confirm: Asks the user a yes/no question.
        names: The variables of the notebook.
        user: The name with which the user has signed in to the Jupyter server, or "".
    """

    source: StopSource
    entry_point: EntryPoint
    root: str | os.PathLike[str] | None = None
    confirm: Callable[[str], bool] = lambda question: True
    names: Mapping[str, Any] = {}
    user: str = ""


REQUIRED = object()
"""The default of a required argument."""


class Parameter(NamedTuple):
    """An argument of a verb.

    Attributes:
        name: The name of the function's parameter. It also determines the tab completion.
        help: A phrase that describes it.
        default: The default value. False marks a flag without a value, and () an option that can be
            repeated.
        is_option: Whether it is an option on a line rather than a positional argument.
        metavar: The name of its value in help.
        wire: Its name in a request, if different.
        flags: The option's spellings. By default, ``--name``.
        kind: The type of its value.
        interfaces: The interfaces that accept it.
        max_chars: Maximum length of its text in a request.
        values: The number of its values on a line. The metavar names each of them.
    """

    name: str
    help: str
    default: Any = ""
    is_option: bool = False
    metavar: str = ""
    wire: str = ""
    flags: tuple[str, ...] = ()
    kind: type[str] | type[int] | type[float] | type[Path] = str
    interfaces: tuple[Interface, ...] = EVERYWHERE
    max_chars: int = MAX_TEXT
    values: int = 1

    @property
    def is_required(self) -> bool:
        """Whether the argument is required."""
        return self.default is REQUIRED

    @property
    def spellings(self) -> tuple[str, ...]:
        """The option's spellings on a line."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def usage(self) -> str:
        """The argument as shown in help."""
        value_name = self.metavar or self.name.upper()
        if self.is_option:
            flag = self.spellings[0]
            value_name = flag if self.default is False else f"{flag} {value_name}"
        return value_name if self.is_required else f"[{value_name}]"


_RUN = Parameter(
    "run",
    "run, session, session/turn or path (default: the current run of this notebook or directory)",
)
_TURN = Parameter(
    "turn",
    "run, session, session/turn or path (default: the current run of this notebook or directory, "
    "or the last turn on disk)",
    metavar="RUN|SESSION[/TURN]",
)
_ON: dict[str, Parameter] = {
    "run": _RUN,
    "turn": _TURN,
    "shown": _TURN,
    "session": Parameter("session", "session id or path", REQUIRED),
    "file": Parameter("file", "team file or recipe", REQUIRED),
}


class Verb(NamedTuple):
    """A verb, with everything that user interfaces need to offer it.

    Attributes:
        name: The command word.
        act: Called with the target, a `Caller`, and the parameters by name. The first line of its
            docstring is the verb's help.
        on: The kind of target: a live run or group, a turn, a turn or group to show, a session, a
            file, or a session root.
        parameters: The arguments in their order on a line.
        needs_name: Whether the name of the run is required.
        ends_in_text: Whether the last argument is the rest of the line, quotes included.
        route: The last word of its URL path in the REST API, or "" if it has none.
        interfaces: The interfaces that offer it.
        aliases: Old names, which still work but are not listed.
        target_help: A phrase that describes the target, if it is not the usual one of its kind.
    """

    name: str
    act: Callable[..., Outcome]
    on: Literal["run", "turn", "shown", "session", "file", "root"] = "run"
    parameters: tuple[Parameter, ...] = ()
    needs_name: bool = False
    ends_in_text: bool = False
    route: str = ""
    interfaces: tuple[Interface, ...] = LINES
    aliases: tuple[str, ...] = ()
    target_help: str = ""

    @property
    def help(self) -> str:
        """The verb's help, one sentence."""
        return (self.act.__doc__ or "").partition("\n")[0]

    def on_line(self, interface: Interface) -> tuple[Parameter, ...]:
        """Return the verb's arguments in an interface, with the target first."""
        first = _ON.get(self.on)
        if first and self.needs_name:
            first = first._replace(help="run, session or session/turn", default=REQUIRED)
        if first and self.target_help:
            first = first._replace(help=self.target_help)
        rest = (each for each in self.parameters if interface in each.interfaces)
        return (*((first,) if first else ()), *rest)


class Command(NamedTuple):
    """A command of the command line that is not a verb.

    Attributes:
        act: Called with the values of the parameters by name. Its docstring is the command's help.
        parameters: The command's arguments. Those that are not offered in a terminal are skipped.
        epilog: The last lines of the command's help.
        is_hidden: Whether to leave it out of the list of commands.
    """

    act: Callable[..., None]
    parameters: tuple[Parameter, ...] = ()
    epilog: str = ""
    is_hidden: bool = False
