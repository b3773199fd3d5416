"""Text that can be stored, sent and shown: well-formed, and nothing that moves a cursor.

JSON, YAML, a file's name or a person's own code can give Python a text with half a surrogate pair,
which nothing that writes UTF-8 takes: no provider, no notebook, no file. Text is made well-formed
where it enters: each event as it is recorded, and what goes on to models and processes besides (a
model's reply, a tool's result, our files, a person's words). NUL and other characters that nobody
sees are text like any other.

Models, tools and files can write what moves a terminal's cursor, clears it or fills its clipboard.
Whatever prints takes that out: `nb_agents.jupyter.ipython.display`, the errors' sentences, the
log. Data (an answer, a journal, a tool's result) stays what was written.

This module imports nothing of nb_agents.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

_Value = TypeVar("_Value")

# Source: ECMA-48, https://ecma-international.org/publications-and-standards/standards/ecma-48/
_SEQUENCE = re.compile(
    r"""
    (?: \x1b\[ | \x9b ) [0-?]* [ -/]* [@-~]              # CSI: cursor, colours, clearing
    | (?: \x1b[\]PX^_] | [\x90\x98\x9d-\x9f] )           # OSC and other strings: clipboard, title
      [^\x07\x1b\x80-\x9f]* (?: \x07 | \x1b\\ | \x9c )   #   ... up to their end, when there is one
    | \x1b [ -/]* [0-~]
    """,
    re.VERBOSE,
)
_LINE_END = re.compile(r"\r\n?|\x85")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


def well_formed(value: _Value) -> _Value:
    r"""Return a value whose texts are well-formed, however deep they lie.

    Args:
        value: A text, or dataclasses, mappings, lists and tuples with texts in them.

    Returns:
        The value itself when it was well-formed; else a copy, in which two halves side by side are
        the character that they stand for, and one alone is U+FFFD.

    Example:
        >>> well_formed(["\ud83d\ude00", {"\ud83d": 1}]) == ["😀", {"\ufffd": 1}]
        True
    """
    whole = _whole(value)
    return value if whole is None else whole


def half_at_end(text: str) -> str:
    """Return the half of a character that a text ends in, whose other half may come; else ""."""
    return text[-1:] if "\ud800" <= text[-1:] < "\udc00" else ""


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields; each event is gone through by them."""
    return tuple(each.name for each in fields(kind))


def _whole(value: Any) -> Any:
    """Return a well-formed copy, or None when the value is well-formed already."""
    if isinstance(value, str):
        return None if value.isascii() else _whole_text(value)
    if value is None or isinstance(value, int | float):
        return None
    if isinstance(value, dict):
        names, parts = _whole_items(value), _whole_items(value.values())
        if names is None and parts is None:
            return None
        return dict(zip(names or value, parts or value.values(), strict=True))
    if isinstance(value, list | tuple):
        items = _whole_items(value)
        return items and (items if isinstance(value, list) else tuple(items))
    if is_dataclass(value) and not isinstance(value, type):
        found = {name: _whole(getattr(value, name)) for name in field_names(value.__class__)}
        changed = {name: whole for name, whole in found.items() if whole is not None}
        return replace(value, **changed) if changed else None
    return None


def _whole_items(values: Collection[Any]) -> list[Any] | None:
    wholes = [_whole(value) for value in values]
    if wholes.count(None) == len(wholes):
        return None
    pairs = zip(values, wholes, strict=True)
    return [value if whole is None else whole for value, whole in pairs]


def _whole_text(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return None


def without_controls(text: str) -> str:
    r"""Return a text as a terminal may show it.

    Args:
        text: Any text.

    Returns:
        The text without control sequences and characters, but for line ends and tabs: a carriage
        return is a line end, half a surrogate pair is U+FFFD.

    Example:
        >>> without_controls("\x1b]52;c;cm0gLXJm\x07done\x1b[2J\x9b1m!")
        'done!'
    """
    text = _LINE_END.sub("\n", _SEQUENCE.sub("", text))
    # Whatever is left of a sequence that never ends can't begin one any more.
    return _HALF_PAIR.sub("\ufffd", _CONTROL.sub("", text))


class WithoutControls(logging.Filter):
    """Takes control sequences out of log records, tracebacks included, before any handler."""

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record; all are let through."""
        try:
            record.msg = without_controls(record.getMessage())
        except Exception:  # arguments that can't be formatted: the handler tells about those
            return True
        record.args = ()
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = without_controls(record.exc_text)
        return True
