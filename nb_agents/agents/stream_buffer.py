"""The words of one open model call: an append a token to gather them, given out in batches.

A model's answer arrives as the JSON arguments of `new_answer`. What a person reads, and what an
immediate stop keeps, is the text inside: it is taken from the unfinished JSON at each batch.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from nb_agents.errors import ReplyTooLongError
from nb_agents.events import Channel, TextStreamed
from nb_agents.unicode import half_at_end, well_formed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent

__all__ = ["ANSWER_TOOL", "Draft", "answer_so_far", "read_arguments"]

MAX_REPLY_CHARS = 500_000
"""Words and thoughts of one reply, about 125,000 tokens; who streams on for ever is cut here."""
MAX_TOOL_CALLS = 256
"""Calls of one reply; OpenAI's models make 128 at most."""
MAX_PARTS = 1000
"""Stretches of text, thoughts and calls in one reply."""

ANSWER_TOOL = "new_answer"


@dataclass
class _Part:
    channel: Channel
    tool: str = ""
    chunks: list[str] = field(default_factory=list)
    given: int = 0
    is_new: bool = False

    def add(self, text: str) -> int:
        self.chunks.append(text)
        self.is_new = True
        return len(text)

    def take(self) -> str:
        """Give what is new since the last time."""
        if not self.is_new:
            return ""
        self.is_new = False
        whole = "".join(self.chunks)
        # The other half of a character may be in the next piece.
        half = half_at_end(whole)
        whole = well_formed(whole.removesuffix(half))
        self.chunks = [whole, half]
        text = answer_so_far(whole) if self.channel == "answer" else whole
        new, self.given = text[self.given :], max(self.given, len(text))
        return new


class Draft:
    """Gathers one call's stream.

    Args:
        agent: Whose call.
        call: Its number.
    """

    def __init__(self, agent: str, call: int) -> None:
        self._agent = agent
        self._call = call
        self._parts: list[_Part] = []
        self._open: dict[int, _Part] = {}
        self._size = 0
        self._kinds: Counter[str] = Counter()

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Take one event of the stream.

        Raises:
            ReplyTooLongError: It has streamed too much, or calls too many tools.
        """
        if event.event_kind == "part_delta":
            delta = event.delta
            if delta.part_delta_kind == "tool_call":
                text = _json_text(delta.args_delta)
            else:
                text = getattr(delta, "content_delta", None) or ""
            part = self._open.get(event.index)
        elif event.event_kind == "part_start":
            part, text = _start(event.part)
            self._count(event.part.part_kind)
            if part is not None:
                # An index may start anew; what came under it before is kept.
                self._parts.append(part)
                self._open[event.index] = part
        else:
            return
        if part is not None and text:
            room = MAX_REPLY_CHARS - self._size
            self._size += part.add(text[:room])
            if len(text) > room:
                raise ReplyTooLongError("The reply", MAX_REPLY_CHARS, "characters")

    def _count(self, kind: str) -> None:
        self._kinds[kind] += 1
        if self._kinds["tool-call"] > MAX_TOOL_CALLS:
            raise ReplyTooLongError("The reply", MAX_TOOL_CALLS, "tool calls")
        if self._kinds.total() > MAX_PARTS:
            raise ReplyTooLongError("The reply", MAX_PARTS, "parts")

    def take(self) -> list[TextStreamed]:
        """Give what arrived since the last time, as events."""
        return [
            TextStreamed(
                agent=self._agent, call=self._call, channel=p.channel, text=text, tool=p.tool
            )
            for p in self._parts
            if (text := p.take())
        ]


def _start(part: Any) -> tuple[_Part | None, str]:
    match part.part_kind:
        case "text":
            return _Part("text"), part.content
        case "thinking":
            return _Part("thinking"), part.content or ""
        case "tool-call":
            channel: Channel = "answer" if part.tool_name == ANSWER_TOOL else "call"
            return _Part(channel, part.tool_name), _json_text(part.args)
        case _:
            return None, ""


def _json_text(args: str | dict[str, Any] | None) -> str:
    return args if isinstance(args, str) else (json.dumps(args) if args else "")


def read_arguments(args: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Read a call's arguments, as leniently as models write them.

    Args:
        args: JSON text, or what a provider has parsed already.

    Returns:
        The arguments, or None when they can't be read. Raw line breaks in strings are taken;
        half surrogate pairs become U+FFFD, because no provider would take them back.
    """
    if not isinstance(args, str):
        return args or {}
    try:
        known = json.loads(_whole(args) if r"\u" in args else args or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    return known if isinstance(known, dict) else None


def answer_so_far(arguments: str) -> str:
    """Read the answer out of a call of `new_answer` whose JSON may be unfinished."""
    try:
        known = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        # What strict JSON refuses and models write: raw line breaks, half surrogate pairs.
        return _lenient_answer(arguments)
    content = known.get("content", "") if isinstance(known, dict) else ""
    return content if isinstance(content, str) else ""


_SURROGATES = re.compile(r"(\\\\)|(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F]..")
_CONTENT = re.compile(
    r'\s*\{\s*"content"\s*:\s*"((?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+)', re.DOTALL
)


def _whole(text: str) -> str:
    """Replace the escapes of half surrogate pairs."""
    return _SURROGATES.sub(lambda m: m[0] if m[1] or m[2] else r"\ufffd", text)


def _lenient_answer(arguments: str) -> str:
    found = _CONTENT.match(arguments)
    if not found:
        return ""
    body = found[1]
    if found.end() == len(arguments) or not arguments.startswith('"', found.end()):
        # The other half of a pair may be on its way.
        body = re.sub(r"\\u[dD][89abAB]..\Z", "", body)
    try:
        return str(json.loads(f'"{_whole(body)}"', strict=False))
    except ValueError:
        return ""
