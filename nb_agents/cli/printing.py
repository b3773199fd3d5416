"""Prints to the terminal, without control sequences and secrets of this process.

Control characters are removed from text, and characters that can't be encoded are replaced. In
JSON, both are escaped, so the data does not change. If output fails (closed pipe, full disk), the
command ends but the run does not stop.
"""

from __future__ import annotations

import errno
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
from nb_agents.unicode import json_text, without_controls

_COMMANDS = {
    "`%agents`": "`nb-agents runs`",
    "%%agents --continue": "nb-agents run --continue",
    "%%agents": "nb-agents run",
    "%agents": "nb-agents",
    "%env ": "export ",
}
"""Notebook commands in error messages, and the terminal's equivalents. The first match wins."""

MAX_WIDTH = 1000

_NOT_PRINTED = re.compile(r"[\x7f-\x9f\ud800-\udfff]")
"""Characters that `json.dumps` leaves as they are, but a terminal interprets or can't show."""


@cache
def mask() -> Mask:
    """Return the mask that hides the secrets of this process."""
    return Mask(secrets_of_environment())


def shown(text: str) -> str:
    """Return text without secrets and control characters."""
    return without_controls(mask().text(text))


def prepare_streams() -> None:
    """Reopen closed standard streams, and make all of them replace characters they can't encode.

    A service manager or `<&-` may have closed them. Python then uses None for such a stream, and
    the next opened file gets its descriptor, so output of a library could be written into a
    journal.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_text(text: str) -> None:
    """Print text.

    Raises:
        typer.Exit: The output can't be written.
    """
    _print(f"{shown(text)}\n")


def warn(text: str) -> None:
    """Print text on stderr. Errors are ignored."""
    with suppress(OSError):
        _write(sys.stderr, f"{shown(text)}\n")


def print_error(exc: UserError) -> None:
    """Print a user error on stderr."""
    warn(in_terminal(exc))


def in_terminal(exc: UserError) -> str:
    """Return an error's message with terminal commands instead of notebook commands."""
    sentence = str(exc)
    for cell, command in _COMMANDS.items():
        sentence = sentence.replace(cell, command)
    return sentence


def say_json(value: Any) -> None:
    """Print a value as a line of JSON that is safe for any terminal."""
    is_utf = str(getattr(sys.stdout, "encoding", "utf-8")).lower().startswith("utf")
    line = json_text(mask().value(value), ensure_ascii=not is_utf, default=str)
    _print(_NOT_PRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", line) + "\n")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table with column titles."""
    grid = Table(box=None)
    for head in heads:
        grid.add_column(head, no_wrap=head != "task")  # users type and copy names
    for row in rows:
        grid.add_row(*(Text(" ".join(shown(cell).split())) for cell in row))
    # Programs that read the output expect one row per line.
    console = Console(width=None if sys.stdout.isatty() else MAX_WIDTH)
    with console.capture() as captured:
        console.print(grid)
    _print(captured.get())


def _print(text: str) -> None:
    try:
        _write(sys.stdout, text)
    except OSError as exc:
        _discard(sys.stdout)
        if exc.errno != errno.EPIPE:
            warn(f"The output can't be written: {exc.strerror or exc}.")
        raise typer.Exit(1) from None


def _write(stream: IO[str], text: str) -> None:
    stream.write(text)
    stream.flush()


def _discard(stream: IO[str]) -> None:
    """Discard the buffer of a stream, which Python would otherwise write at exit."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
