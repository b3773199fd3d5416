"""Print to the terminal, without control sequences and secrets of this process.

JSON stays the data that it is, so there the controls are written as escapes, and so is what the
output's encoding lacks; in words, that is replaced. An output that fails (a closed pipe, a full
disk) ends the command, but no run.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from io import TextIOWrapper
from typing import IO, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import UserError
from nb_agents.masking import Mask
from nb_agents.unicode import without_controls

_COMMANDS = {
    "`%agents`": "`nb-agents runs`",
    "%%agents --continue": "nb-agents run --continue",
    "%%agents": "nb-agents run",
    "%agents": "nb-agents",
    "%env ": "export ",
}
"""Commands of a notebook in error messages, and those of a terminal; the first match counts."""

MAX_WIDTH = 1000

_NOT_PRINTED = re.compile(r"[\x7f-\x9f\ud800-\udfff]")
"""Characters that `json.dumps` keeps and a terminal interprets or can't show."""


@cache
def mask() -> Mask:
    """Return the mask of this process's secrets."""
    return Mask(secrets_of_environment())


def shown(text: str) -> str:
    """Return a text as the terminal may show it."""
    return without_controls(mask().text(text))


def replace_what_is_lacking() -> None:
    """Let the standard streams replace characters that their encoding lacks."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str) -> None:
    """Print a text.

    Raises:
        typer.Exit: The output can't be written.
    """
    _print(f"{shown(text)}\n")


def warn(text: str) -> None:
    """Print a text on the error output, if it can be written."""
    with suppress(OSError):
        _write(sys.stderr, f"{shown(text)}\n")


def complain(exc: UserError) -> None:
    """Print a user's error on the error output."""
    warn(in_terminal(exc))


def in_terminal(exc: UserError) -> str:
    """Return an error's sentence with a terminal's commands where it names a notebook's."""
    sentence = str(exc)
    for cell, command in _COMMANDS.items():
        sentence = sentence.replace(cell, command)
    return sentence


def say_json(value: Any) -> None:
    """Print a value as one line of JSON that any terminal can be sent."""
    is_utf = str(getattr(sys.stdout, "encoding", "utf-8")).lower().startswith("utf")
    line = json.dumps(mask().value(value), ensure_ascii=not is_utf, default=str)
    _print(_NOT_PRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", line) + "\n")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their heads."""
    drawn = Table(box=None)
    for head in heads:
        drawn.add_column(head, no_wrap=head != "task")  # names are there to be typed
    for row in rows:
        drawn.add_row(*(Text(" ".join(shown(cell).split())) for cell in row))
    # A program that reads it wants a row a line.
    console = Console(width=None if sys.stdout.isatty() else MAX_WIDTH)
    with console.capture() as captured:
        console.print(drawn)
    _print(captured.get())


def _print(text: str) -> None:
    try:
        _write(sys.stdout, text)
    except OSError as exc:
        _discard(sys.stdout)
        if exc.errno != errno.EPIPE:
            warn(f"The output can't be written: {exc.strerror or exc}.")
        raise typer.Exit(1) from None


def _write(stream: IO[str] | None, text: str) -> None:
    if stream is not None:  # closed before the command began
        stream.write(text)
        stream.flush()


def _discard(stream: IO[str]) -> None:
    """Discard the buffer of a stream, which Python would write at its exit."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
