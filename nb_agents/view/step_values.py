"""The values of steps' results: text, or the JSON in that text.

Every value can be written as JSON again: it has no infinite numbers, no lone surrogates and limited
nesting.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from nb_agents.unicode import well_formed

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"[\[{]")
MISSING = object()
"""The value of a text without JSON."""
_MAX_DEPTH = 100
_MAX_EFFORT = 20_000_000
"""Approximate number of characters to scan before the search for JSON in text gives up."""


def value_of(text: str, parse_json: bool = False) -> Any:
    """Return the value of a step's output.

    Args:
        text: The text that its agent or command wrote.
        parse_json: Whether to look for JSON inside other text too.

    Returns:
        The parsed JSON, or else the text without leading and trailing whitespace. A number that
        JSON would write differently (``1.10``) stays text.

    Example:
        >>> value_of('{"ok": true}'), value_of(" done ")
        ({'ok': True}, 'done')
        >>> value_of("Here: [1, 2] it is.", parse_json=True)
        [1, 2]
    """
    text = text.strip()
    parsed = json_in(text, parse_json)
    return text if parsed is MISSING else parsed


def json_in(text: str, within: bool) -> Any:
    """Parse the JSON that a text is, or contains if `within`. Returns `MISSING` without any."""
    whole = _loads(text)
    if whole is not MISSING or not within:
        return whole
    fenced = map(_loads, reversed(_FENCE.findall(text)))
    parsed = next((each for each in fenced if each is not MISSING), MISSING)
    return _first_in(text) if parsed is MISSING else parsed


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def _loads(text: str) -> Any:
    text = text.strip()
    try:
        value = _checked_value(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return MISSING
    if isinstance(value, int | float) and json.dumps(value) != text:
        return MISSING
    return value


def _first_in(text: str) -> Any:
    """Return the first non-empty object or array inside a text, or `MISSING`."""
    at, effort = 0, _MAX_EFFORT
    while effort > 0 and (opening := _OPENING.search(text, at)):
        start = opening.start()
        try:
            value, at = _DECODER.raw_decode(text, start)
            if value:
                return _checked_value(value)
        except json.JSONDecodeError as exc:
            at = start + 1
            read = (len(text) if exc.msg.startswith("Unterminated") else exc.pos) - start
            effort -= read + exc.pos // 16  # the decoder also counted the lines before the error
        except (ValueError, RecursionError):
            at = max(at, start + 1)
            effort -= _MAX_EFFORT // 1000
    return MISSING


def _checked_value(value: Any, room: int = _MAX_DEPTH) -> Any:
    """Return a JSON value with valid Unicode strings. Raises ValueError if nested too deeply."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict | list) and not room:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {_checked_value(key): _checked_value(each, room - 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_checked_value(each, room - 1) for each in value]
    return value
