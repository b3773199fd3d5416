"""The Typer application, and functions that add commands to it."""

from __future__ import annotations

import atexit
import gc
import inspect
import signal
import sys
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nb_agents.cli.printing import prepare_streams, print_error
from nb_agents.errors import UserError
from nb_agents.launch.finding import runs
from nb_agents.plugins import ExtensionPoint
from nb_agents.presentation.arguments import complete_path, session_names
from nb_agents.verbs.verb import Command, Parameter

COMPLETE, FAILED, USAGE, INCOMPLETE = 0, 1, 2, 3
INTERRUPTED = 128 + signal.SIGINT
"""The exit code after an interrupt before anything was started, the same as in shells."""


class _PlainFlags:
    """Mixin that shows flags in help without a value type."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return params


class CliCommand(_PlainFlags, TyperCommand):
    """A command whose help shows flags without a type."""


COMMANDS = ExtensionPoint[Command]("commands")
"""The commands that extensions add."""

_added: list[Mapping[str, Command]] = [COMMANDS]


def add_commands(commands: Mapping[str, Command]) -> None:
    """Register commands, each of which is created when it is first used.

    Args:
        commands: The commands by name.
    """
    _added.append(commands)


class _Commands(UserDict[str, Any]):
    """The commands by name. Commands of extensions are imported on first use."""

    def __missing__(self, name: str) -> Any:
        if (added_command := next((each[name] for each in _added if name in each), None)) is None:
            raise KeyError(name)
        one = typer.Typer(cls=_Group, add_completion=False)
        _add_to(one, name, added_command)
        command = self.data[name] = typer.main.get_group(one).commands[name]
        return command

    def __contains__(self, name: object) -> bool:
        return name in self.data or any(name in each for each in _added)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain([*self.data], *_added)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Group(_PlainFlags, TyperGroup):
    """The group of all commands. Its help shows flags without a type."""

    def __init__(self, *, commands: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.commands = _Commands(commands or {})


app = typer.Typer(
    cls=_Group,
    help="Teams of LLM agents that you can stop at any moment without losing anything.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line. A user error prints one sentence instead of a traceback."""
    # Garbage collection at exit would take a quarter of the time of a short command.
    atexit.register(gc.freeze)
    try:
        prepare_streams()
        app()
    except UserError as exc:
        print_error(exc)
        sys.exit(USAGE)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def live_names() -> list[str]:
    """Return the session/turn names of the live runs."""
    return [f"{run.session}/{run.turn}" for run in runs()]


def _files(incomplete: str) -> list[str]:
    matches = complete_path(incomplete)
    # A shell ends the word after a single match, so a single directory is replaced with its files.
    while len(matches) == 1 and matches[0].endswith("/") and (inside := complete_path(matches[0])):
        matches = inside
    return matches


_COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "config": _files,
    "file": _files,
    "recipe": _files,
    "run": live_names,
    "session": session_names,
    "turn": lambda: [*live_names(), *session_names()],
}
"""The completion function of an argument, by the argument's name."""

ROOT = Parameter(
    "root",
    "session root: the directory that contains the sessions",
    None,
    is_option=True,
    flags=("--session-root",),
    kind=Path,
)
JSON = Parameter("as_json", "print JSON", False, is_option=True, flags=("--json",))


def add_command(name: str, command: Command) -> None:
    """Add a command to the application."""
    _add_to(app, name, command)


def _add_to(typer_app: typer.Typer, name: str, command: Command) -> None:
    @wraps(command.act)
    def act(**arguments: Any) -> None:
        command.act(**arguments)

    declared = [_keyword(each) for each in command.parameters if "terminal" in each.interfaces]
    act.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    act.__annotations__ = {}
    add = typer_app.command(name, cls=CliCommand, epilog=command.epilog, hidden=command.is_hidden)
    add(act)


def _keyword(parameter: Parameter) -> inspect.Parameter:
    help = f"{parameter.help[:1].upper()}{parameter.help[1:]}."
    completion = _COMPLETIONS.get(parameter.name)
    more: dict[str, Any] = {"help": help, "autocompletion": completion}
    if parameter.is_option:
        info = typer.Option(*parameter.spellings, **more)
    else:
        info = typer.Argument(**more)
    kind: Any = parameter.kind
    default = parameter.default
    if default is False:
        kind = bool
    elif default == ():
        kind = list[str]
    elif default is None:
        kind = parameter.kind | None
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if parameter.is_required else default,
        annotation=Annotated[kind, info],
    )
