"""The names that we use of IPython, typed once: its magics and its display carry no types."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, TypeVar, cast

from IPython.core import magic, magic_arguments
from IPython.core.error import UsageError
from IPython.display import display as _display

__all__ = [
    "Magics",
    "UsageError",
    "argument",
    "arguments",
    "cell_magic",
    "display",
    "line_magic",
    "magics_class",
    "parse_line",
    "parse_message",
]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

Magics = magic.Magics
magics_class: Callable[[C], C] = magic.magics_class
cell_magic = cast("Callable[[str], Callable[[F], F]]", magic.cell_magic)
line_magic = cast("Callable[[str], Callable[[F], F]]", magic.line_magic)
arguments: Callable[[str], Callable[[F], F]] = magic_arguments.magic_arguments
argument: Callable[..., Callable[[F], F]] = magic_arguments.argument
display: Callable[..., Any] = _display


def parse_line(function: Any, line: str) -> Any:
    """Parse a magic's line by the arguments that its function declares.

    IPython's own ``parse_argstring`` leaves the quotes on: ``--reason "too slow"`` would keep them.

    Args:
        function: Declared with `argument`.
        line: Words, quoted where they have spaces; a backslash is only itself (Windows' paths).

    Returns:
        The namespace.

    Raises:
        UsageError: The arguments don't fit.
        ValueError: A quote is not closed.
    """
    words = shlex.shlex(line, posix=True, punctuation_chars=False)
    words.whitespace_split = True
    words.commenters = words.escape = ""
    return function.parser.parse_args(list(words))


def parse_message(function: Any, line: str) -> Any:
    """Parse a magic's line of one word and a message, in which quotes are only themselves.

    Args:
        function: Declared with `argument`: the word, and the message as one more.
        line: The line; quotes around the whole message are left out.

    Returns:
        The namespace.

    Raises:
        UsageError: There is no word.
    """
    word, _, message = line.strip().partition(" ")
    message = message.strip()
    if message[:1] in ("'", '"') and message[:1] == message[-1:]:
        message = message[1:-1]
    # Without the dashes a message might be taken for an option.
    return function.parser.parse_args(["--", *filter(None, (word, message))])
