"""The one way out to the terminal: no control sequence, no secret of this process.

JSON stays the data that it is, so there the controls are written as escapes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.errors import UserError
from nb_agents.masking import Mask
from nb_agents.unicode import without_controls

__all__ = ["complain", "in_terminal", "mask", "say", "say_json", "shown", "table"]

_COMMANDS = {
    "`%agents`": "`nb-agents runs`",
    "%%agents --continue": "nb-agents run --continue",
    "%%agents": "nb-agents run",
    "%agents": "nb-agents",
    "%env ": "export ",
}
"""What a remedy names, and what that is in a terminal; the first that fits counts."""

MAX_WIDTH = 1000

_NOT_PRINTED = re.compile(r"[\x7f-\x9f\ud800-\udfff]")
"""What `json.dumps` leaves as it is, and a terminal obeys or can't be sent."""


@cache
def mask() -> Mask:
    """Return what hides the secrets of this process; made once."""
    return Mask(secrets_of_environment())


def shown(text: str) -> str:
    """Return a text as the terminal may show it."""
    return without_controls(mask().text(text))


def say(text: str) -> None:
    """Print a text."""
    typer.echo(shown(text))


def complain(exc: UserError) -> None:
    """Print a person's mistake on the error output."""
    typer.echo(shown(in_terminal(exc)), err=True)


def in_terminal(exc: UserError) -> str:
    """Return an error's sentence with a terminal's commands where it names a notebook's."""
    sentence = str(exc)
    for cell, command in _COMMANDS.items():
        sentence = sentence.replace(cell, command)
    return sentence


def say_json(value: Any) -> None:
    """Print a value as one line of JSON that any terminal can be sent."""
    line = json.dumps(mask().value(value), ensure_ascii=False, default=str)
    typer.echo(_NOT_PRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", line))


def table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], as_json: bool, empty: str
) -> None:
    """Print rows under their heads, or as JSON objects, or a sentence when there are none."""
    rows = list(rows)
    if as_json:
        say_json([dict(zip(heads, row, strict=True)) for row in rows])
    elif not rows:
        say(empty)
    else:
        drawn = Table(box=None)
        for head in heads:
            drawn.add_column(head, no_wrap=head != "task")  # names are there to be typed
        for row in rows:
            drawn.add_row(*(Text(" ".join(shown(cell).split())) for cell in row))
        # A program that reads it wants a row a line.
        Console(width=None if sys.stdout.isatty() else MAX_WIDTH).print(drawn)
