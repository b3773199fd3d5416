"""The names that we use of IPython, typed once: its magics and its display carry no types."""

from __future__ import annotations

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
    "parse_argstring",
]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

Magics = magic.Magics
magics_class: Callable[[C], C] = magic.magics_class
cell_magic = cast("Callable[[str], Callable[[F], F]]", magic.cell_magic)
line_magic = cast("Callable[[str], Callable[[F], F]]", magic.line_magic)
arguments: Callable[[str], Callable[[F], F]] = magic_arguments.magic_arguments
argument: Callable[..., Callable[[F], F]] = magic_arguments.argument
parse_argstring: Callable[[Callable[..., Any], str], Any] = magic_arguments.parse_argstring
display: Callable[..., Any] = _display
