"""What a verb is declared with, and what it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from nb_agents.cancel import StopSource
from nb_agents.events import Event
from nb_agents.launch.once import EarlierOrNew
from nb_agents.presentation.asking import Door
from nb_agents.runs.run import Run

if TYPE_CHECKING:
    from nb_agents.sweeps.sweep import Sweep
    from nb_agents.sweeps.sweep_handle import SweepHandle

    Work = Run | SweepHandle

Interface = Literal["cell", "terminal", "http"]
"""A kind of user interface that verbs are asked in."""

LINES: tuple[Interface, ...] = ("cell", "terminal")
EVERYWHERE: tuple[Interface, ...] = (*LINES, "http")


@dataclass(frozen=True)
class Outcome:
    """What a verb did, and what a user interface shows of it.

    Attributes:
        said: The sentence for a person, or "".
        facts: The same for a program, as JSON.
        heads, rows: The columns and rows of a list.
        notes: Sentences about what the list or the log lacks.
        items: What a list or a log holds, for a program; None if that is the rows.
        markdown: The same as `said` for a notebook, or "".
        is_ok: Whether it is as a person would wish; a command's exit code says so.
        shows: The run or the sweep to show: live, or what became of it.
        begin: Begins the run to show.
        begin_sweep: Begins the sweep to show.
        waits: Whether to wait until what is shown is over.
        follows: Events to print as they come.
    """

    said: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    items: Sequence[Any] | None = None
    markdown: str = ""
    is_ok: bool = True
    shows: Work | None = None
    begin: Callable[[], EarlierOrNew] | None = None
    begin_sweep: Callable[[], Sweep] | None = None
    waits: bool = False
    follows: AsyncIterator[Event] | None = None


class Caller(NamedTuple):
    """Who asks.

    Attributes:
        source: The user interface, for the record.
        door: How that interface writes commands.
        root: The session root that limits the verb; None for all that this process can see.
        confirm: Asks a person a question of yes or no.
        names: The variables of the notebook.
    """

    source: StopSource
    door: Door
    root: str | Path | None = None
    confirm: Callable[[str], bool] = lambda question: True
    names: Mapping[str, Any] = {}


REQUIRED = object()
"""The default of an argument that can't be left out."""


class Parameter(NamedTuple):
    """An argument of a verb.

    Attributes:
        name: Its name in the function, which says what completes it.
        help: What it is, as a phrase.
        default: Its value when it is left out; False for a flag without a value, () for an option
            that can be repeated.
        is_option: Whether a line has it as an option.
        metavar: The name of its value in help.
        wire: Its name in a request, if that is another.
        flags: The option's spellings; by default ``--name``.
        kind: The type of its value.
        interfaces: Where it can be given.
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

    @property
    def is_required(self) -> bool:
        """Whether it can't be left out."""
        return self.default is REQUIRED

    @property
    def spellings(self) -> tuple[str, ...]:
        """The option's spellings on a line."""
        return self.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def usage(self) -> str:
        """The argument as help writes it."""
        shown = self.metavar or self.name.upper()
        if self.is_option:
            flag = self.spellings[0]
            shown = flag if self.default is False else f"{flag} {shown}"
        return shown if self.is_required else f"[{shown}]"


_RUN = Parameter("run", "run, session or session/turn; by default the one of here")
_TURN = Parameter(
    "turn",
    "run, session or session/turn; by default the one of here, else the last on disk",
    metavar="RUN|SESSION[/TURN]",
)
_ON: dict[str, Parameter] = {
    "run": _RUN,
    "turn": _TURN,
    "shown": _TURN,
    "session": Parameter("session", "the session's id", REQUIRED),
    "file": Parameter("file", "team file (MassGen's YAML or JSON), or recipe", REQUIRED),
}


class Verb(NamedTuple):
    """A verb, as every user interface offers it.

    Attributes:
        name: The word.
        act: Called with what it acts on, a `Caller`, and the parameters by name. The first line of
            its docstring is the verb's help.
        on: What it acts on: a live run or sweep, a turn, a turn or a sweep that is shown, a
            session, a file, or a session root.
        parameters: Its arguments, in the order of a line.
        needs_name: Whether a run must be named.
        ends_in_text: Whether the last argument is the rest of the line, quotes included.
        route: The last word of its address over HTTP; "" if it has none.
        interfaces: Where lines of it can be written.
    """

    name: str
    act: Callable[..., Outcome]
    on: Literal["run", "turn", "shown", "session", "file", "root"] = "run"
    parameters: tuple[Parameter, ...] = ()
    needs_name: bool = False
    ends_in_text: bool = False
    route: str = ""
    interfaces: tuple[Interface, ...] = LINES

    @property
    def help(self) -> str:
        """What it does, in a sentence."""
        return (self.act.__doc__ or "").partition("\n")[0]

    def on_line(self, interface: Interface) -> tuple[Parameter, ...]:
        """Return the arguments that a line has, what it acts on first."""
        first = _ON.get(self.on)
        if first and self.needs_name:
            first = first._replace(help="run, session or session/turn", default=REQUIRED)
        rest = (each for each in self.parameters if interface in each.interfaces)
        return (*((first,) if first else ()), *rest)
