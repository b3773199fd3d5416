"""Buffers the stream of one model call, and recovers the answer from a truncated reply.

A model's answer arrives as the JSON arguments of a tool call. The text inside is extracted from the
unfinished JSON at each flush, so that the user can read it and an immediate stop can save it. A
token costs only an append. Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from nb_agents.agents import prompts
from nb_agents.config.decision_tools import ANSWER
from nb_agents.errors import ReplyTooLongError
from nb_agents.events import Channel, TextStreamed
from nb_agents.models.backend import ending_of
from nb_agents.unicode import trailing_half_pair, well_formed

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        ModelResponse,
        ModelResponsePart,
        ModelResponseStreamEvent,
        ToolCallPart,
    )

MAX_REPLY_CHARS = 500_000
"""Maximum length of a reply with its thoughts, in characters: about 125,000 tokens."""
MAX_TOOL_CALLS = 256
"""Maximum number of tool calls in a reply. OpenAI's models make at most 128."""
MAX_PARTS = 1000
"""Maximum number of parts (text, thoughts and calls) in a reply."""

_SURROGATES = re.compile(r"(\\\\)|(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F]..")
_CONTENT = re.compile(
    r'\s*\{\s*"content"\s*:\s*"((?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+)', re.DOTALL
)

END = "END"
"""What an agent replies if its truncated reply was already complete."""

_TAIL = 60
_SAME_START = 40
_MIN_OVERLAP = 16
_MAX_OVERLAP = 1000


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

    def text(self) -> str:
        """Return the text for the user: the answer inside the JSON, or the text itself."""
        whole = "".join(self.chunks)
        return answer_so_far(whole) if self.channel == "answer" else whole

    def take(self) -> str:
        """Return the text received since the last call."""
        if not self.is_new:
            return ""
        self.is_new = False
        whole = "".join(self.chunks)
        # The next chunk may contain the other half of a character.
        half = trailing_half_pair(whole)
        self.chunks = [well_formed(whole.removesuffix(half))]
        text = self.text()
        self.chunks.append(half)
        new, self.given = text[self.given :], max(self.given, len(text))
        return new


class StreamBuffer:
    """Collects the stream of one model call.

    Args:
        agent: The agent's id.
        call: The call's number.

    Attributes:
        chars: The number of characters received.
    """

    def __init__(self, agent: str, call: int) -> None:
        self._agent = agent
        self._call = call
        self._parts: list[_Part] = []
        self._open: dict[int, _Part] = {}
        self.chars = 0
        self._kinds: Counter[str] = Counter()

    @property
    def words(self) -> int:
        """The number of words received."""
        return sum(len(part.text().split()) for part in self._parts)

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Add one event of the stream.

        Raises:
            ReplyTooLongError: The reply is too long, or calls too many tools.
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
                # An index may be used again. The earlier part stays in the list.
                self._parts.append(part)
                self._open[event.index] = part
        else:
            return
        if part is not None and text:
            room = MAX_REPLY_CHARS - self.chars
            self.chars += part.add(text[:room])
            if len(text) > room:
                raise ReplyTooLongError("The reply", MAX_REPLY_CHARS, "characters")

    def _count(self, kind: str) -> None:
        self._kinds[kind] += 1
        if self._kinds["tool-call"] > MAX_TOOL_CALLS:
            raise ReplyTooLongError("The reply", MAX_TOOL_CALLS, "tool calls")
        if self._kinds.total() > MAX_PARTS:
            raise ReplyTooLongError("The reply", MAX_PARTS, "parts")

    def take(self) -> list[TextStreamed]:
        """Return the text that has arrived since the last call, as events."""
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
            channel: Channel = "answer" if part.tool_name == ANSWER.name else "call"
            return _Part(channel, part.tool_name), _json_text(part.args)
        case "builtin-tool-call":  # run by the provider
            return _Part("call", part.tool_name), _json_text(part.args)
        case _:
            return None, ""


def _json_text(args: str | dict[str, Any] | None) -> str:
    return args if isinstance(args, str) else (json.dumps(args) if args else "")


def read_arguments(args: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Parse a call's arguments leniently.

    Args:
        args: JSON text, or arguments that the provider has already parsed.

    Returns:
        The arguments, or None if they can't be parsed. Raw line breaks in strings are accepted.
        Lone surrogates become U+FFFD, because providers would reject them.
    """
    if not isinstance(args, str):
        return args or {}
    try:
        value = json.loads(_whole(args) if r"\u" in args else args or "{}", strict=False)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def answer_so_far(arguments: str) -> str:
    """Return the text in the JSON arguments of an answer, which may be unfinished."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        # Models write raw line breaks and lone surrogates, which strict JSON does not allow.
        return _lenient_answer(arguments)
    content = value.get("content", "") if isinstance(value, dict) else ""
    return content if isinstance(content, str) else ""


def _whole(text: str) -> str:
    """Replace escaped lone surrogates with an escaped U+FFFD."""
    return _SURROGATES.sub(lambda m: m[0] if m[1] or m[2] else r"\ufffd", text)


def _lenient_answer(arguments: str) -> str:
    match = _CONTENT.match(arguments)
    if not match:
        return ""
    body = match[1]
    if match.end() == len(arguments) or not arguments.startswith('"', match.end()):
        # The other half of a surrogate pair may arrive later.
        body = re.sub(r"\\u[dD][89abAB]..\Z", "", body)
    try:
        return str(json.loads(f'"{_whole(body)}"', strict=False))
    except ValueError:
        return ""


class Cut(NamedTuple):
    """Where and why a reply was truncated.

    Attributes:
        by: The cause, phrased to follow "cut off".
        text: The received part of the agent's answer, or "" if something else was cut off.
        is_call: Whether that answer was an argument of the answer tool rather than plain text.
        call: Index of the truncated call if it was to any other tool, or -1.
    """

    by: str
    text: str = ""
    is_call: bool = False
    call: int = -1


def cut_of(response: ModelResponse, *, text_counts: bool) -> Cut | None:
    """Return where and why a reply was cut off.

    Args:
        response: The reply.
        text_counts: Whether its plain text is an answer.

    Returns:
        The cut, or None if the reply was not cut off, its calls are complete, or its text does not
        count.
    """
    end = ending_of(response)
    if end.kind != "cut":
        return None
    calls = response.tool_calls
    if not calls:
        text = response.text or ""
        return Cut(end.by, text) if text_counts or not text.strip() else None
    last = calls[-1]
    if _last_part(response) is not last or _is_whole(last):
        return None
    if last.tool_name == ANSWER.name:
        return Cut(end.by, answer_so_far(_json_text(last.args)), is_call=True)
    return Cut(end.by, call=len(calls) - 1)


def _last_part(response: ModelResponse) -> ModelResponsePart:
    """Return the last part of a reply, ignoring blank text parts."""
    return [p for p in response.parts if p.part_kind != "text" or p.content.strip()][-1]


def _is_whole(call: ToolCallPart) -> bool:
    """Return whether the last call of a truncated reply is complete.

    A call without arguments counts as incomplete, because providers announce a call before its
    arguments, as "", {} or nothing.
    """
    args = call.args
    if isinstance(args, str):
        return bool(args.strip()) and read_arguments(args) is not None
    return bool(args)


def cut_message(cut: Cut, answer_so_far: str, names: str) -> str:
    """Return the message to an agent about its truncated reply.

    Args:
        cut: Where and why it was cut off.
        answer_so_far: The answer received so far.
        names: The names of the decision tools, joined by "or", or "" if only plain text counts.
    """
    if cut.text:
        how = prompts.REST_BY_CALL if cut.is_call else prompts.REST_AS_TEXT
        return prompts.CUT_ANSWER.format(by=cut.by, tail=answer_so_far[-_TAIL:], how=how, end=END)
    if cut.call >= 0:
        return prompts.CUT_CALL.format(by=cut.by)
    return prompts.CUT_WITHOUT_RESULT.format(
        by=cut.by, how=f"call {names}" if names else "write the result"
    )


def join(answer_so_far: str, more: str) -> str:
    """Join a truncated answer with its continuation.

    Args:
        answer_so_far: The answer received so far.
        more: The agent's next reply: the rest, the complete answer again, the rest after a repeated
            passage, or `END`.
    """
    if not answer_so_far or (
        len(answer_so_far) >= _SAME_START and more.startswith(answer_so_far[:_SAME_START])
    ):
        return more
    if more.strip().rstrip(".") == END:
        return answer_so_far
    for size in range(min(len(answer_so_far), len(more), _MAX_OVERLAP), _MIN_OVERLAP - 1, -1):
        if answer_so_far.endswith(more[:size]):
            return answer_so_far + more[size:]
    return answer_so_far + more


def mark_incomplete(answer: str, cut: Cut) -> str:
    """Return a truncated answer with a note that it was cut off."""
    return f"{answer.rstrip()}\n\n[Cut off here {cut.by}.]"
