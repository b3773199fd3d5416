"""Typed wrappers of IPython's untyped magics and display.

All output goes through `display`, which removes terminal controls, raw HTML in Markdown, and the
secrets of this process.
"""

from __future__ import annotations

import re
import shlex
from argparse import Action
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from IPython.core import magic, magic_arguments
from IPython.core.error import UsageError
from IPython.display import display as untyped_display
from markupsafe import escape

from nb_agents.nouns import nearest
from nb_agents.presentation.markdown import sanitize
from nb_agents.unicode import without_controls

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

Magics = magic.Magics
magics_class: Callable[[C], C] = magic.magics_class
cell_magic = cast("Callable[[str], Callable[[F], F]]", magic.cell_magic)
line_magic = cast("Callable[[str], Callable[[F], F]]", magic.line_magic)
_display: Callable[..., Any] = untyped_display
arguments: Callable[[str], Callable[[F], F]] = magic_arguments.magic_arguments
argument: Callable[..., Callable[[F], F]] = magic_arguments.argument

root_option = argument(
    "--session-root", metavar="DIR", help="session root: the directory that contains the sessions"
)

_LINE_END = re.compile(r"\s*\n\s*")
_OPTION = re.compile(r"--\w[\w-]*[ =]\s*(?:\"[^\"]*\"|'[^']*'|\S+)\s+")


def display(bundle: Mapping[str, Any], *, display_id: bool | None = None) -> Any:
    """Display a mime bundle in the current cell, after passing it through `sanitize`.

    Args:
        bundle: The mime bundle.
        display_id: Whether the display can be updated later.

    Returns:
        The handle of a display that can be updated, or None.
    """
    return _display(sanitize(bundle), raw=True, display_id=display_id)


def parse_line(function: Any, line: str) -> Any:
    """Parse a magic's line with the arguments that its function declares.

    IPython's ``parse_argstring`` keeps quotes: ``--reason "too slow"`` would include them.

    Args:
        function: A magic, declared with `argument`.
        line: The arguments. Those with spaces must be quoted. A backslash has no special meaning,
            because of Windows paths.

    Returns:
        The argparse namespace.

    Raises:
        UsageError: The arguments are invalid.
        ValueError: A quote is not closed.
    """
    words = _words(line)
    try:
        return function.parser.parse_args(words)
    except UsageError as exc:
        options = [name for action in actions_of(function) for name in action.option_strings]
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in options and option in str(exc):
                near = nearest(option, options)
                hint = f" Did you mean {near}?" if near else ""
                raise UsageError(f"There is no option {option}.{hint}") from None
        raise


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = lexer.escape = ""
    return list(lexer)


def actions_of(function: Any) -> Sequence[Action]:
    """Return the argparse actions of a magic's function, declared with `argument`."""
    declared: Sequence[Action] = function.parser._actions
    return declared


def parse_message(function: Any, line: str) -> Any:
    """Parse a magic's line of one word and a message. Quotes in the message are ordinary text.

    Args:
        function: A magic, declared with `argument`, with two positional arguments.
        line: The line, with options before the word. Quotes around the whole message are removed.

    Returns:
        The argparse namespace.

    Raises:
        UsageError: There is no word.
    """
    options, line = list[str](), line.strip()
    while option := _OPTION.match(line):
        options += _words(option[0])
        line = line[option.end() :]
    word, _, message = line.partition(" ")
    message = message.strip()
    if message[:1] in ("'", '"') and message[:1] == message[-1:]:
        message = message[1:-1]
    # Without "--", a message that starts with dashes would be parsed as an option.
    return function.parser.parse_args([*options, "--", *filter(None, (word, message))])


def table_bundle(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the mime bundle of a table."""
    rows = [[_LINE_END.sub(" ", without_controls(cell)) for cell in row] for row in rows]
    return {"text/html": _html(heads, rows), "text/plain": _text(heads, rows)}


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th style="text-align:left">{escape(h)}</th>' for h in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{escape(c)}</td>' for c in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _text(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(r[i]) for r in [heads, *rows]) for i in range(len(heads))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in [heads, *rows]]
    return "\n".join(line.rstrip() for line in lines)
