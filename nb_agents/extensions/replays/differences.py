"""Compares a request of a replay with the recorded one. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

MAX_DIFF_LINES = 40
"""Maximum number of lines of a shown difference."""
MAX_LINE = 300
"""Maximum length of each of these lines, in characters."""


class Replacement(NamedTuple):
    """Replaces volatile text before requests are compared.

    Attributes:
        pattern: A regular expression.
        replacement: The text that replaces each match.
    """

    pattern: str
    replacement: str


_DURATION = r"\d+(?:\.\d+)? ?(?:s|min|h|seconds?|minutes?|hours?)\b"

DEFAULT_RULES = (
    Replacement(r"(?:/[^\s/\"'<>]+)+/turn_\d+", "<turn>"),
    Replacement(
        r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?", "<time>"
    ),
    Replacement(r"\b\d\d:\d\d(?::\d\d)?\b", "<time>"),
    Replacement(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
    Replacement(rf"\b{_DURATION}(?: {_DURATION})*", "<duration>"),
)
"""The paths of turns, times, UUIDs and durations."""


class Difference(NamedTuple):
    """The first message in which a request differs from the recorded one.

    Attributes:
        message: The message's number in the request, starting at 1.
        text: The difference, in the lines of a unified diff.
    """

    message: int
    text: str


def first_difference(
    recorded: Sequence[ModelMessage], sent: Sequence[ModelMessage], rules: Sequence[Replacement]
) -> Difference | None:
    """Return the first difference between two requests, or None if they are equal.

    Args:
        recorded: The messages of the recorded request.
        sent: The messages of the request of the replay.
        rules: The rules to apply to both.
    """
    patterns = [(re.compile(rule.pattern), rule.replacement) for rule in rules]

    def normalized(message: ModelMessage | None) -> str:
        text = "" if message is None else _text_of(message)
        for pattern, replacement in patterns:
            text = pattern.sub(replacement, text)
        return text

    for number, (before, after) in enumerate(zip_longest(recorded, sent), 1):
        texts = normalized(before), normalized(after)
        if texts[0] != texts[1]:
            return Difference(number, _diff(*texts))
    return None


def _text_of(message: ModelMessage) -> str:
    return "\n".join(_text_of_part(part) for part in message.parts)


def _text_of_part(part: Any) -> str:
    """Return a part of a message as text, without ids and times."""
    name = f" {part.tool_name}" if hasattr(part, "tool_name") else ""
    if hasattr(part, "args_as_json_str"):
        return f"[{part.part_kind}{name}]\n{part.args_as_json_str()}"
    return f"[{part.part_kind}{name}]\n{getattr(part, 'content', '')}"


def _diff(recorded: str, sent: str) -> str:
    lines = [
        line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"
        for line in difflib.unified_diff(
            recorded.splitlines(), sent.splitlines(), "recorded", "now", lineterm="", n=1
        )
    ]
    more = len(lines) - MAX_DIFF_LINES
    return "\n".join([*lines[:MAX_DIFF_LINES], *([f"… {more} more lines"] if more > 0 else [])])
