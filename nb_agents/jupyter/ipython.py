"""The names that we use of IPython, typed once: its magics and its display carry no types.

`display` is the one way out: what strangers wrote is shown as a terminal and a Markdown page may,
and what was written without us (a person's recipe, an old session) without this process's secrets.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from IPython.core import magic, magic_arguments
from IPython.core.error import UsageError
from IPython.display import display as untyped_display

from nb_agents.config.secrets import secrets_of_environment
from nb_agents.jupyter.markdown import without_html
from nb_agents.masking import Mask
from nb_agents.terminal import without_controls

__all__ = [
    "Magics",
    "UsageError",
    "argument",
    "arguments",
    "cell_magic",
    "display",
    "harmless",
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
_display: Callable[..., Any] = untyped_display
arguments: Callable[[str], Callable[[F], F]] = magic_arguments.magic_arguments
argument: Callable[..., Callable[[F], F]] = magic_arguments.argument


def display(bundle: Mapping[str, Any], *, display_id: bool | None = None) -> Any:
    """Display a mime bundle in the current cell.

    Args:
        bundle: It is made `harmless`.
        display_id: Whether it can be updated later.

    Returns:
        The handle of a display that can be updated, else None.
    """
    return _display(harmless(bundle), raw=True, display_id=display_id)


def harmless(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mime bundle without secrets, terminal's controls, and raw HTML in its Markdown."""
    made = Mask(secrets_of_environment()).value(dict(bundle))
    for mime in made.keys() & {"text/plain", "text/markdown"}:
        made[mime] = without_controls(made[mime])
    if "text/markdown" in made:
        made["text/markdown"] = without_html(made["text/markdown"])
    return made


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
