"""The words of one open model call: gathered at the cost of an append a token, given out in batches.

A model's answer arrives as the JSON arguments of `new_answer`. What a person reads, and what an
immediate stop keeps, is the text inside: it is taken from the unfinished JSON at each batch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from nb_agents.events import Channel, TextStreamed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent

__all__ = ["Draft", "ReplyTooLongError"]

MAX_REPLY_CHARS = 2_000_000
"""No model answers so much; a server that streams on for ever is cut here."""

ANSWER_TOOL = "new_answer"


class ReplyTooLongError(Exception):
    """A model streamed more than `MAX_REPLY_CHARS`."""


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
        self.chunks = [whole]
        text = _answer_so_far(whole) if self.channel == "answer" else whole
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
        self._parts: dict[int, _Part] = {}
        self._size = 0

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Take one event of the stream.

        Raises:
            ReplyTooLongError: The call has streamed too much.
        """
        if event.event_kind == "part_delta":
            delta = event.delta
            if delta.part_delta_kind == "tool_call":
                text = _json_text(delta.args_delta)
            else:
                text = getattr(delta, "content_delta", None) or ""
            part = self._parts.get(event.index)
        elif event.event_kind == "part_start":
            part, text = _start(event.part)
            if part is not None:
                self._parts[event.index] = part
        else:
            return
        if part is not None and text:
            self._size += part.add(text)
            if self._size > MAX_REPLY_CHARS:
                raise ReplyTooLongError(f"more than {MAX_REPLY_CHARS} characters")

    def take(self) -> list[TextStreamed]:
        """Give what arrived since the last time, as events."""
        return [
            TextStreamed(
                agent=self._agent, call=self._call, channel=p.channel, text=text, tool=p.tool
            )
            for p in self._parts.values()
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


def _answer_so_far(arguments: str) -> str:
    try:
        known = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return ""
    content = known.get("content", "") if isinstance(known, dict) else ""
    return content if isinstance(content, str) else ""
