"""Explains that ``%%agents`` must be the first line of its cell.

IPython mistakes ``%%agents`` on a later line for an unknown line magic, and the task below it for
Python code. The cell would end with an unrelated syntax error. Therefore such a cell is replaced,
before IPython parses it, with a cell that raises an error with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_AS_LINE_MAGIC = "%agents"
"""The name of the line magic that IPython looks up for a line that starts with ``%%agents``."""

_ERROR_CELL = [f"get_ipython().run_line_magic({_AS_LINE_MAGIC!r}, '')\n"]


def register(ip: InteractiveShell) -> None:
    """Make a shell report a misplaced ``%%agents``."""
    unregister(ip)
    manager: Any = ip.magics_manager
    manager.register_function(_refuse, "line", _AS_LINE_MAGIC)
    ip.input_transformers_cleanup.append(partial(_replace, ip))


def unregister(ip: InteractiveShell) -> None:
    """Undo `register`."""
    ip.magics_manager.magics["line"].pop(_AS_LINE_MAGIC, None)
    transforms = ip.input_transformers_cleanup
    transforms[:] = [each for each in transforms if getattr(each, "func", None) is not _replace]


def _refuse(line: str) -> None:
    raise UsageError(
        "%%agents must be the first line of its cell. Move the lines above it, including comments, "
        "to another cell."
    )


def _replace(ip: InteractiveShell, lines: Sequence[str]) -> Sequence[str]:
    """Return a cell unchanged, or the error cell if ``%%agents`` comes after Python code."""
    if not lines or lines[0].startswith("%%"):  # our own magic, or the body of another one
        return lines
    magics = (n for n, line in enumerate(lines) if line.split(maxsplit=1)[:1] == ["%%agents"])
    above = next((lines[:n] for n in magics), None)
    return lines if above is None or not _is_python(ip, above) else _ERROR_CELL


def _is_python(ip: Any, lines: Sequence[str]) -> bool:
    """Return whether lines are complete statements, so the next line is not inside a string."""
    try:
        ast.parse(ip.transform_cell("".join(lines)))
    except (SyntaxError, ValueError):
        return False
    return True
