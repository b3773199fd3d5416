"""What a verb is declared with, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nb_agents.cancel import StopSource
from nb_agents.presentation.asking import Door
from nb_agents.runs.run import Run


@dataclass(frozen=True)
class Outcome:
    """What a verb did.

    Attributes:
        said: The sentence for a person, or "".
        facts: The same for a program, as JSON.
        heads, rows: The columns and rows of a list.
        notes: Sentences about what the list lacks.
        begin: Begins a run, which the user interface then shows; None when there is none.
    """

    said: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    begin: Callable[[], Run] | None = None


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        source: The user interface, for the record.
        door: How that interface writes commands.
        root: The session root that limits the verb; None for all that this process can see.
        confirm: Asks a person a question of yes or no.
    """

    source: StopSource
    door: Door
    root: str | Path | None = None
    confirm: Callable[[str], bool] = lambda question: True


REQUIRED = object()
"""The default of an argument that can't be left out."""


class Parameter(NamedTuple):
    """An argument of a verb.

    Attributes:
        name: Its name in the function.
        help: What it is, as a phrase.
        default: Its value when it is left out; False for a flag without a value.
        is_option: Whether a line has it as ``--name``.
        metavar: The name of an option's value in help.
        wire: Its name in a request, if that is another.
        is_on_lines: Whether a cell and a terminal have it, and not a request alone.
    """

    name: str
    help: str
    default: Any = ""
    is_option: bool = False
    metavar: str = ""
    wire: str = ""
    is_on_lines: bool = True

    @property
    def is_required(self) -> bool:
        """Whether it can't be left out."""
        return self.default is REQUIRED

    @property
    def flag(self) -> str:
        """The option on a line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def usage(self) -> str:
        """The argument as help writes it."""
        shown = self.metavar or self.name.upper()
        if self.is_option:
            shown = self.flag if self.default is False else f"{self.flag} {shown}"
        return shown if self.is_required else f"[{shown}]"


class Verb(NamedTuple):
    """A verb, as every user interface offers it.

    Attributes:
        name: The word.
        act: Called with what it acts on, a `Caller`, and the parameters by name. The first line of
            its docstring is the verb's help.
        on: What it acts on: a run or a sweep, a turn (live or over), a session, or a session root.
        parameters: Its arguments, in the order of a line.
        needs_name: Whether a run must be named.
        ends_in_text: Whether the last argument is the rest of the line, quotes included.
        route: The last word of its address over HTTP; "" if it has none.
    """

    name: str
    act: Callable[..., Outcome]
    on: Literal["run", "turn", "session", "root"] = "run"
    parameters: tuple[Parameter, ...] = ()
    needs_name: bool = False
    ends_in_text: bool = False
    route: str = ""

    @property
    def help(self) -> str:
        """What it does, in a sentence."""
        return (self.act.__doc__ or "").partition("\n")[0]

    @property
    def on_lines(self) -> tuple[Parameter, ...]:
        """The arguments that a line has, what it acts on first."""
        named = {
            "run": Parameter("run", "run, session or session/turn; by default the one of here"),
            "turn": Parameter("run", "run, session or session/turn; by default the last one"),
            "session": Parameter("session", "the session's id", REQUIRED),
        }
        first = named.get(self.on)
        if first and self.needs_name:
            first = first._replace(help="run, session or session/turn", default=REQUIRED)
        rest = (each for each in self.parameters if each.is_on_lines)
        return (*((first,) if first else ()), *rest)

    @property
    def usage(self) -> str:
        """The verb and its arguments, as help writes them."""
        return " ".join([self.name, *(each.usage for each in self.on_lines)])
