"""The application, and how a command is added to it."""

from __future__ import annotations

import atexit
import gc
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from nb_agents.cli.printing import complain, replace_what_is_lacking
from nb_agents.errors import UserError
from nb_agents.presentation.arguments import files_at, session_names
from nb_agents.runs.finding import runs
from nb_agents.verbs.verb import Parameter

COMPLETE, FAILED, USAGE, INCOMPLETE = 0, 1, 2, 3

app = typer.Typer(
    help="Teams of LLM agents that you can stop at any moment without losing anything.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line; a person's mistake is one sentence and no traceback."""
    # A search for cycles in all that was loaded would be a quarter of a short command's time.
    atexit.register(gc.freeze)
    replace_what_is_lacking()
    try:
        app()
    except UserError as exc:
        complain(exc)
        sys.exit(USAGE)


def live_names() -> list[str]:
    """Return the names of the live runs."""
    return [f"{run.session}/{run.turn}" for run in runs()]


def _files(incomplete: str) -> list[str]:
    found = files_at(incomplete)
    # A shell ends the word when one is left, so that directory's files would be out of reach.
    while len(found) == 1 and found[0].endswith("/") and (inside := files_at(found[0])):
        found = inside
    return found


_COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "config": _files,
    "file": _files,
    "recipe": _files,
    "run": live_names,
    "session": session_names,
    "turn": lambda: [*live_names(), *session_names()],
}
"""What completes an argument, by its name."""

ROOT = Parameter(
    "root", "where sessions are", None, is_option=True, flags=("--session-root",), kind=Path
)
JSON = Parameter("as_json", "answer in JSON", False, is_option=True, flags=("--json",))


def add_command(
    name: str, act: Callable[..., None], parameters: Iterable[Parameter], epilog: str = ""
) -> None:
    """Add a command to the application.

    Args:
        name: Its word.
        act: Called with the values of the parameters by name; its docstring is the command's help.
        parameters: Its arguments, of which those of a terminal count.
        epilog: What its help ends in.
    """

    @wraps(act)
    def command(**given: Any) -> None:
        act(**given)

    declared = [_keyword(each) for each in parameters if "terminal" in each.interfaces]
    signature = inspect.Signature(declared)
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {}
    app.command(name, epilog=epilog)(command)


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
