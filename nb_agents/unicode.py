"""Makes Unicode and JSON values well-formed, and removes terminal control sequences from text.

JSON, YAML, file names and user code can produce a string with a lone surrogate, which can't be
encoded as UTF-8 for a provider, a notebook or a file. Values are made well-formed where they enter:
each event when it is recorded, and the values that are sent to models and processes (model replies,
tool results, files, user messages). NUL and other invisible characters are left alone.

The same applies to values that Python's JSON module accepts and other parsers do not: NaN and
infinity, integers of thousands of digits, and values that are nested too deeply.

Models, tools and files can contain sequences that move a terminal's cursor, clear the screen or
write to the clipboard. They are removed when text is shown: in
`nb_agents.jupyter.ipython.display`, in error messages and in the log. Data (an answer, a journal, a
tool result) is stored unchanged.

This module imports nothing of nb_agents.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

_Value = TypeVar("_Value")

MAX_DEPTH = 100
"""Maximum nesting of mappings, lists and dataclasses."""
TOO_DEEP = "[nested too deeply]"
_MAX_BITS = 13_000
"""Maximum size of an integer in bits, because Python refuses to print more than 4,300 digits."""

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
# Source: https://www.unicode.org/reports/tr9/ (bidirectional controls), and what no font shows.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


def well_formed(value: _Value, *, texts_only: bool = False) -> _Value:
    r"""Return a value with valid Unicode strings and JSON numbers at all levels of nesting.

    Args:
        value: A string or number, or dataclasses, mappings, lists and tuples of them.
        texts_only: Whether to leave numbers unchanged, for callers that reject invalid numbers.

    Returns:
        The value itself if it is well-formed, or else a copy. In the copy, adjacent halves of a
        surrogate pair are joined, and a lone surrogate becomes U+FFFD. A number that JSON does not
        have becomes a string, or 0 in a field of a dataclass. Parts that are nested too deeply
        become `TOO_DEEP`.

    Example:
        >>> well_formed(["\ud83d\ude00", {"\ud83d": 1}]) == ["😀", {"\ufffd": 1}]
        True
        >>> well_formed({"loss": float("nan")})
        {'loss': 'NaN'}
    """
    try:
        whole = _well_formed(value, texts_only)
    except _TooDeepError:
        value = _shallow(value, ())
        whole = _well_formed(value, texts_only)
    return value if whole is None else whole


def trailing_half_pair(text: str) -> str:
    """Return the first half of a surrogate pair at the end of a string, or ""."""
    return text[-1:] if "\ud800" <= text[-1:] < "\udc00" else ""


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields. Cached, because it is called for each event."""
    return tuple(each.name for each in fields(kind))


def _well_formed(value: Any, texts_only: bool, depth: int = 0) -> Any:
    """Return a well-formed copy, or None if the value is already well-formed."""
    if isinstance(value, str):
        return None if value.isascii() else _whole_text(value)
    if value is None or isinstance(value, int | float):
        return None if texts_only else _whole_number(value)
    if not _has_parts(value):
        return None
    if depth > MAX_DEPTH:
        raise _TooDeepError
    if isinstance(value, dict):
        names = _whole_items(value, texts_only, depth)
        parts = _whole_items(value.values(), texts_only, depth)
        if names is None and parts is None:
            return None
        return dict(zip(names or value, parts or value.values(), strict=True))
    if isinstance(value, list | tuple):
        items = _whole_items(value, texts_only, depth)
        return items and (items if isinstance(value, list) else tuple(items))
    return _whole_dataclass(value, texts_only, depth)


def _has_parts(value: Any) -> bool:
    is_plain = isinstance(value, dict | list | tuple)
    return is_plain or (is_dataclass(value) and not isinstance(value, type))


class _TooDeepError(Exception):
    """Raised when a value is nested too deeply or contains itself."""


def _shallow(value: Any, above: tuple[int, ...]) -> Any:
    """Return a copy with `TOO_DEEP` instead of parts that are too deep or contain themselves."""
    if not _has_parts(value):
        return value
    if len(above) > MAX_DEPTH or id(value) in above:
        return TOO_DEEP
    path = (*above, id(value))
    if isinstance(value, dict):
        return {name: _shallow(each, path) for name, each in value.items()}
    if isinstance(value, list | tuple):
        items = [_shallow(each, path) for each in value]
        return items if isinstance(value, list) else tuple(items)
    parts = {name: getattr(value, name) for name in field_names(value.__class__)}
    shallow = {name: _shallow(part, path) for name, part in parts.items()}
    return replace(value, **{n: part for n, part in shallow.items() if part is not parts[n]})


def _whole_dataclass(value: Any, texts_only: bool, depth: int) -> Any:
    changed: dict[str, Any] = {}
    for name in field_names(value.__class__):
        part = getattr(value, name)
        whole = _well_formed(part, texts_only, depth + 1)
        if whole is not None:  # a number stays a number, because other code calculates with it
            changed[name] = 0 if isinstance(part, int | float) else whole
    return replace(value, **changed) if changed else None


def _whole_number(value: int | float | None) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if value is None or value.bit_length() <= _MAX_BITS:
        return None
    return f"[a number of {value.bit_length()} bits]"


_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


def json_text(value: Any, **how: Any) -> str:
    """Return a value as standard JSON, without NaN. ``how`` is passed to `json.dumps`."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except (ValueError, RecursionError):
        return json.dumps(well_formed(value), allow_nan=False, **how)


def _whole_items(values: Collection[Any], texts_only: bool, depth: int) -> list[Any] | None:
    wholes = [_well_formed(value, texts_only, depth + 1) for value in values]
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
    r"""Remove terminal control sequences and characters from text.

    Line ends and tabs remain. A carriage return becomes a line end, and a lone surrogate U+FFFD.

    Example:
        >>> without_controls("\x1b]52;c;cm0gLXJm\x07done\x1b[2J\x9b1m!")
        'done!'
    """
    text = _LINE_END.sub("\n", _SEQUENCE.sub("", text))
    # The rest of an incomplete sequence can't form a new one without its control characters.
    return _HALF_PAIR.sub("\ufffd", _CONTROL.sub("", text))


def visible(value: _Value) -> _Value:
    r"""Return a value in whose strings all characters that affect display are visible.

    Control characters, bidirectional controls such as U+202E and invisible characters become escape
    sequences, so that a string can't look like another one. Line feeds and tabs are kept.

    Args:
        value: A string, or dataclasses, mappings, lists and tuples of strings.

    Example:
        >>> visible(("invoice\u202efdp.exe", 1))
        ('invoice\\u202efdp.exe', 1)
    """
    result: Any = value
    if isinstance(result, str):
        result = _INVISIBLE.sub(lambda each: ascii(each[0])[1:-1], result)
    elif isinstance(result, dict):
        result = {visible(name): visible(each) for name, each in result.items()}
    elif isinstance(result, tuple) and hasattr(result, "_make"):
        result = result._make(map(visible, result))
    elif isinstance(result, list | tuple):
        result = type(result)(map(visible, result))
    elif is_dataclass(result) and not isinstance(result, type):
        parts = {name: getattr(result, name) for name in field_names(result.__class__)}
        result = replace(result, **{name: visible(part) for name, part in parts.items()})
    return cast(_Value, result)


class WithoutControls(logging.Filter):
    """A log filter that removes terminal control sequences from messages and tracebacks."""

    _formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Clean the record in place, and return True for all records."""
        try:
            record.msg = without_controls(record.getMessage())
        except Exception:  # the arguments can't be formatted, which the handler reports
            return True
        record.args = ()
        if record.exc_info and not record.exc_text:
            record.exc_text = self._formatter.formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = without_controls(record.exc_text)
        return True
