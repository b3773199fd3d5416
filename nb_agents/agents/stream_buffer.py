"""Buffer the stream of one model call, and recover the answer from a truncated reply.

A model's answer arrives as the JSON arguments of an answer. What a person reads, and what an
immediate stop keeps, is the text inside: it is taken from the unfinished JSON at each batch.
Gathering costs an append a token. Pure.
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
from nb_agents.unicode import half_at_end, well_formed

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, ToolCallPart

MAX_REPLY_CHARS = 500_000
"""Limit of one reply with its thoughts, about 125,000 tokens; it cuts endless streams."""
MAX_TOOL_CALLS = 256
"""Calls of one reply; OpenAI's models make 128 at most."""
MAX_PARTS = 1000
"""Stretches of text, thoughts and calls in one reply."""

_SURROGATES = re.compile(r"(\\\\)|(\\u[dD][89abAB]..\\u[dD][c-fC-F]..)|\\u[dD][89a-fA-F]..")
_CONTENT = re.compile(
    r'\s*\{\s*"content"\s*:\s*"((?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+)', re.DOTALL
)

END = "END"
"""What an agent writes when its truncated reply was already complete."""

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
        """Return the text as a person reads it."""
        whole = "".join(self.chunks)
        return answer_so_far(whole) if self.channel == "answer" else whole

    def take(self) -> str:
        """Return the text that has arrived since the last call."""
        if not self.is_new:
            return ""
        self.is_new = False
        whole = "".join(self.chunks)
        # The other half of a character may be in the next piece.
        half = half_at_end(whole)
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
    """

    def __init__(self, agent: str, call: int) -> None:
        self._agent = agent
        self._call = call
        self._parts: list[_Part] = []
        self._open: dict[int, _Part] = {}
        self._size = 0
        self._kinds: Counter[str] = Counter()

    @property
    def words(self) -> int:
        """How many words have arrived."""
        return sum(len(part.text().split()) for part in self._parts)

    def add(self, event: ModelResponseStreamEvent) -> None:
        """Add one event of the stream.

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
                # An index may be used again; what arrived under it before is kept.
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
        """Return what has arrived since the last call, as events."""
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
        case "builtin-tool-call":  # which the provider runs
            return _Part("call", part.tool_name), _json_text(part.args)
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
    """Read the answer out of a call of an answer whose JSON may be unfinished."""
    try:
        known = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        # What strict JSON refuses and models write: raw line breaks, half surrogate pairs.
        return _lenient_answer(arguments)
    content = known.get("content", "") if isinstance(known, dict) else ""
    return content if isinstance(content, str) else ""


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


class Cut(NamedTuple):
    """How a reply broke off.

    Attributes:
        by: The cause, in words.
        text: The part of an answer that arrived; "" when the reply broke off elsewhere.
        is_call: Whether it broke off in a call, not in plain text.
        call: Position of another tool's call that it broke off in, or -1.
    """

    by: str
    text: str = ""
    is_call: bool = False
    call: int = -1


def cut_of(response: ModelResponse, *, text_counts: bool) -> Cut | None:
    """Return how a reply was cut off.

    Args:
        response: The reply.
        text_counts: Whether its plain text is an answer.

    Returns:
        How it was cut off; None when its calls are complete, or when its text does not count.
    """
    end = ending_of(response)
    if end.kind != "cut":
        return None
    calls = response.tool_calls
    if not calls:
        text = response.text or ""
        return Cut(end.by, text) if text_counts or not text.strip() else None
    last = calls[-1]
    if response.parts[-1] is not last or _is_whole(last):
        return None
    if last.tool_name == ANSWER.name:
        return Cut(end.by, answer_so_far(str(last.args)), is_call=True)
    return Cut(end.by, call=len(calls) - 1)


def _is_whole(call: ToolCallPart) -> bool:
    args = call.args
    return not isinstance(args, str) or bool(args.strip() and read_arguments(args) is not None)


def cut_message(cut: Cut, kept: str, names: str) -> str:
    """Return the message to an agent about its truncated reply.

    Args:
        cut: How it broke off.
        kept: Its answer so far.
        names: The tools that end a turn, in words; "" for plain text.
    """
    if cut.text:
        how = prompts.REST_BY_CALL if cut.is_call else prompts.REST_AS_TEXT
        return prompts.CUT_ANSWER.format(by=cut.by, tail=kept[-_TAIL:], how=how, end=END)
    if cut.call >= 0:
        return prompts.CUT_CALL.format(by=cut.by)
    return prompts.CUT_SILENT.format(by=cut.by, how=f"calling {names}" if names else "writing it")


def join(kept: str, more: str) -> str:
    """Join an answer that was cut off with its continuation.

    Args:
        kept: The answer so far.
        more: What the agent wrote next: the rest, or the whole again, or some last words and then
            the rest, or `END`.

    Returns:
        The answer.
    """
    if not kept or (len(kept) >= _SAME_START and more.startswith(kept[:_SAME_START])):
        return more
    if more.strip().rstrip(".") == END:
        return kept
    for size in range(min(len(kept), len(more), _MAX_OVERLAP), _MIN_OVERLAP - 1, -1):
        if kept.endswith(more[:size]):
            return kept + more[size:]
    return kept + more


def marked(answer: str, cut: Cut) -> str:
    """Return a truncated answer with a line that says so."""
    return f"{answer.rstrip()}\n\n[Cut off here {cut.by}.]"
