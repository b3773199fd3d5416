"""Compares a request of a replay with the recorded one. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from itertools import groupby, repeat, zip_longest
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.config.secret_names import MASK

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


_WORD = re.compile(r"\S+")


class Difference(NamedTuple):
    """The first message in which a request differs from the recorded one.

    Attributes:
        message: The message's number in the request, starting at 1.
        text: The difference, in the lines of a unified diff.
    """

    message: int
    text: str


def first_difference(
    recorded: Sequence[ModelMessage],
    sent: Sequence[ModelMessage],
    rules: Sequence[Replacement],
    hide: Callable[[str], str] = str,
) -> Difference | None:
    """Return the first difference between two requests, or None if they are equal.

    Args:
        recorded: The messages of the recorded request.
        sent: The messages of the request of the replay.
        rules: The rules to apply to both.
        hide: Masks secrets, which the difference must not show.
    """
    patterns = [(re.compile(rule.pattern), rule.replacement) for rule in rules]

    def normalized(message: ModelMessage | None) -> str:
        text = "" if message is None else hide(_text_of(message))
        for pattern, replacement in patterns:
            text = pattern.sub(replacement, text)
        return text

    for number, (before, after) in enumerate(zip_longest(recorded, sent), 1):
        texts = normalized(before), normalized(after)
        if texts[0] != texts[1] and not _is_masked(*texts):
            return Difference(number, _diff(*texts))
    return None


def _is_masked(recorded: str, sent: str) -> bool:
    """Return whether the texts are equal but for secrets, which are masked in the recorded one."""
    first, *others = recorded.split(MASK)
    if not others or not sent.startswith(first):
        return False
    last = others.pop()
    at, end = len(first), len(sent) - len(last)
    for literal in others:
        after = sent.find(literal, at + 1, end)
        if after < 0 or not _WORD.fullmatch(sent, at, after):
            return False
        at = after + len(literal)
    return sent.endswith(last) and bool(_WORD.fullmatch(sent, at, end))


def _text_of(message: ModelMessage) -> str:
    return "\n".join(_text_of_part(part) for part in message.parts)


def _text_of_part(part: Any) -> str:
    """Return a part of a message as text, without ids and times."""
    name = f" {part.tool_name}" if hasattr(part, "tool_name") else ""
    if hasattr(part, "args_as_json_str"):
        return f"[{part.part_kind}{name}]\n{part.args_as_json_str()}"
    return f"[{part.part_kind}{name}]\n{getattr(part, 'content', '')}"


def _diff(recorded: str, sent: str) -> str:
    """Return the lines that differ. Of a long line, the part around the first difference."""
    lines = list(
        difflib.unified_diff(
            recorded.split("\n"), sent.split("\n"), "recorded", "now", lineterm="", n=1
        )
    )
    shown = lines[:2]
    for _, group in groupby(lines[2:], key=lambda line: line[:1] in ("-", "+")):
        changed = list(group)
        before, after = ([line for line in changed if line[:1] == mark] for mark in "-+")
        same = [
            len(commonprefix([old[1:], new[1:]])) + 1
            for old, new in zip_longest(before, after, fillvalue="")
        ]
        for each in (before, after) if before or after else (changed,):
            shown += map(_around, each, [*same, *repeat(0, len(each))])
    more = len(shown) - MAX_DIFF_LINES
    return "\n".join([*shown[:MAX_DIFF_LINES], *([f"… {more} more lines"] if more > 0 else [])])


def _around(line: str, position: int) -> str:
    """Return the part of a line of a diff around a position, with the line's mark."""
    if len(line) <= MAX_LINE:
        return line
    begin = max(1, position - MAX_LINE // 3)  # the same one in both versions of the line
    end = begin + MAX_LINE - 3
    cut = "…" if begin > 1 else ""
    return f"{line[0]}{cut}{line[begin:end]}{'…' if end < len(line) else ''}"
