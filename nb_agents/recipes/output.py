"""What a step gave, as a value: text, or the JSON that is in it.

Whoever wrote the text, the value can be written as JSON again: no infinite numbers, no halves of
characters, no endless nesting.

Source: Amplifier's recipes parse output that is JSON as a whole; ``parse_json`` also finds JSON in
a fence, or the first object or array in the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nb_agents.unicode import well_formed

__all__ = ["JSON_RIDER", "Output", "final_text", "value_of"]

JSON_RIDER = """

End with the result as JSON, as a whole or in one ```json block: it is parsed. Quote strings and
names with double quotes, and leave out comments and trailing commas."""
"""Put after the prompt of a step with ``parse_json``."""

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_OPENING = re.compile(r"[\[{]")
_MISSING = object()
_DEPTH = 100
_EFFORT = 20_000_000
"""Characters that may be read in vain, about, before the search for an object or array gives up."""


@dataclass(frozen=True)
class Output:
    """What a step gave.

    Attributes:
        text: As its agent or its command wrote it.
    """

    text: str = ""

    @cached_property
    def value(self) -> Any:
        """Its value, not to be changed."""
        return value_of(self.text)

    @cached_property
    def found(self) -> Any:
        """Its value when JSON is looked for within the text, too; not to be changed."""
        return value_of(self.text, parse_json=True)


def value_of(text: str, parse_json: bool = False) -> Any:
    """Give the value of a step's output.

    Args:
        text: What its agent or its command wrote.
        parse_json: Whether to look for JSON within it, too, and to take a text or a number for
            JSON.

    Returns:
        The JSON's value, or the text without blank ends. A number that would be written in
        another way (``1.10``) stays text.

    Example:
        >>> value_of('{"ok": true}'), value_of(" done ")
        ({'ok': True}, 'done')
        >>> value_of("Here: [1, 2] it is.", parse_json=True)
        [1, 2]
    """
    text = text.strip()
    whole = _loads(text)
    if isinstance(whole, dict | list):
        return whole
    if not parse_json:
        return text
    candidates = (whole, *map(_loads, reversed(_FENCE.findall(text))))
    found = next((each for each in candidates if each is not _MISSING), _MISSING)
    if found is _MISSING:
        found = _first_in(text)
    return text if found is _MISSING else found


def final_text(outputs: Mapping[str, Any]) -> str:
    """Give what stands for a whole recipe: its ``final_output``, else its last output.

    Args:
        outputs: By name, in the order in which they were set.

    Returns:
        Text; JSON for what is none.
    """
    if not outputs:
        return ""
    value = outputs.get("final_output", list(outputs.values())[-1])
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


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
        value = _plain(_DECODER.decode(text))
    except (ValueError, RecursionError):
        return _MISSING
    if isinstance(value, int | float) and json.dumps(value) != text:
        return _MISSING
    return value


def _first_in(text: str) -> Any:
    """Give the first object or array with something in it, or `_MISSING`."""
    at, effort = 0, _EFFORT
    while effort > 0 and (opening := _OPENING.search(text, at)):
        start = opening.start()
        try:
            value, at = _DECODER.raw_decode(text, start)
            if value:
                return _plain(value)
        except json.JSONDecodeError as exc:
            at = start + 1
            read = (len(text) if exc.msg.startswith("Unterminated") else exc.pos) - start
            effort -= read + exc.pos // 16  # the error has counted the lines up to its place
        except (ValueError, RecursionError):
            at = max(at, start + 1)
            effort -= _EFFORT // 1000
    return _MISSING


def _plain(value: Any, room: int = _DEPTH) -> Any:
    """Give a value without halves of characters; refuse one that is nested too deeply."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict | list) and not room:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        return {_plain(key): _plain(each, room - 1) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each, room - 1) for each in value]
    return value
