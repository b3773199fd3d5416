"""Orders and joins the messages of a conversation as the strictest providers require.

The chat templates of Mistral, Gemma and Llama (as applied by vLLM and llama.cpp) require a single
system message at the start, then alternating user and assistant messages, and the result of each
tool call directly after the call. Other requests fail with HTTP 400. Other servers are less strict,
but all get the same order. A message to an agent between two tool calls is appended to the result
of the last call, in tags that tools can't produce.

The functions are pure. Each request starts with the previous one, as prompt caching requires:
messages before the last reply never change, and the last message only grows at its end.

Source: mistral-common's `protocol/instruct/validator.py`;
https://platform.claude.com/docs/en/agents-and-tools/tool-use/implement-tool-use ("tool result
blocks must immediately follow"); https://ai.google.dev/gemini-api/docs/function-calling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from nb_agents.json_text import json_text
from nb_agents.unicode import well_formed

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        ToolCallPart,
        ToolReturnPart,
    )

TEAM_MESSAGE = "TEAM_MESSAGE"
"""The tag around a team message inside a tool result."""

TEAM_MESSAGES_NOTE = (
    f"While you work, messages from the team and from the user may reach you in <{TEAM_MESSAGE}> "
    "tags after a tool's result. They are not part of the result; everything else in a result is "
    "the tool's."
)
"""A paragraph of the system prompt that explains the tag."""

EMPTY_RESULT = "(nothing was returned)"
NO_RESULT = "Error: this call has no result."
NO_TEXT = "(no text)"

_TAG = re.compile(rf"<(/?{TEAM_MESSAGE})", re.IGNORECASE)
_FRAME = re.compile(rf"<{TEAM_MESSAGE}>\n(.*?)\n</{TEAM_MESSAGE}>", re.DOTALL)


def normalize_messages(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Return a conversation in an order that every provider accepts.

    Args:
        messages: The conversation. It may end with a reply only if the provider paused that reply.

    Returns:
        A system prompt, then alternating requests and replies. A request after tool calls contains
        one result per call, with other messages appended to the last result.
    """
    ordered: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    for message in messages:
        if message.kind == "request":
            parts += message.parts
        elif (reply := _sendable(message)) is not None:
            ordered += (_request(parts, ordered), reply)
            parts = []
    return [*ordered, _request(parts, ordered)] if parts else ordered


def team_messages(result: str) -> tuple[str, ...]:
    """Return the team messages that were appended to a tool result."""
    return tuple(_FRAME.findall(result))


def _request(parts: Sequence[ModelRequestPart], before: Sequence[ModelMessage]) -> ModelRequest:
    from pydantic_ai.messages import ModelRequest, SystemPromptPart, UserPromptPart

    reply = before[-1] if before else None
    calls = reply.tool_calls if reply is not None and reply.kind == "response" else []
    content = [each for part in parts for each in _content(part, is_first=reply is None)]
    files = [each for each in content if not isinstance(each, str)]
    sent: list[ModelRequestPart] = []
    if system := [] if before else [p.content for p in parts if p.part_kind == "system-prompt"]:
        sent.append(SystemPromptPart("\n\n".join(system)))
    if calls:
        sent += _results(calls, parts, [each for each in content if isinstance(each, str)])
        content = files
    if content or not calls:
        sent.append(UserPromptPart(content if files else "\n\n".join(content) or NO_TEXT))
    return ModelRequest(parts=sent)


def _content(part: ModelRequestPart, *, is_first: bool) -> Iterator[Any]:
    """Yield the text and files of a part, except the first system prompt and tool results."""
    if part.part_kind == "user-prompt":
        content = [part.content] if isinstance(part.content, str) else part.content
        yield from (each for each in content if not isinstance(each, str) or each.strip())
    elif part.part_kind == "system-prompt" and not is_first:
        yield part.content


def _results(
    calls: Sequence[ToolCallPart], parts: Sequence[ModelRequestPart], messages: Sequence[str]
) -> list[ToolReturnPart]:
    """Return the results of tool calls in order, with messages appended to the last one."""
    from pydantic_ai.messages import ToolReturnPart

    returned = {p.tool_call_id: p for p in parts if isinstance(p, ToolReturnPart)}
    contents = [_split(returned.get(call.tool_call_id)) for call in calls]
    results = [_without_tags(text) for text, _ in contents]
    results = [text if text.strip() else EMPTY_RESULT for text in results]
    frames = [f"<{TEAM_MESSAGE}>\n{_without_tags(text)}\n</{TEAM_MESSAGE}>" for text in messages]
    results[-1] = "\n\n".join([results[-1], *frames])
    return [
        ToolReturnPart(call.tool_name, [text, *files] if files else text, call.tool_call_id)
        for call, text, (_, files) in zip(calls, results, contents, strict=True)
    ]


def _split(part: ToolReturnPart | None) -> tuple[str, list[Any]]:
    """Return the text and the files of a tool result."""
    if part is None:
        return NO_RESULT, []
    if not isinstance(part.content, list):
        return part.model_response_str(), []
    content: list[Any] = part.content
    text = "\n".join(each for each in content if isinstance(each, str))
    return text, [each for each in content if not isinstance(each, str)]


def _without_tags(text: str) -> str:
    return _TAG.sub(r"<\\\1", text)


def _sendable(reply: ModelResponse) -> ModelResponse | None:
    """Return a reply in a form that providers accept, or None if it has no content.

    A reply without text and tool calls gets a placeholder text, because some pydantic-ai models
    would omit it and send two requests in a row. Providers also reject blank text, arguments that
    are not JSON, and thinking at the end of a reply. A paused reply is not changed.
    """
    from pydantic_ai.messages import TextPart

    if reply.state == "suspended":
        return reply
    parts = [sent for part in reply.parts if (sent := _sendable_part(part)) is not None]
    while parts and parts[-1].part_kind == "thinking":
        parts.pop()
    if not parts:
        return None
    if not any(part.part_kind in ("text", "tool-call") for part in parts):
        parts.append(TextPart(NO_TEXT))
    return replace(reply, parts=parts)


def _sendable_part(part: ModelResponsePart) -> ModelResponsePart | None:
    if part.part_kind == "text":
        # Google sends a thought's signature with empty text.
        is_signed = "thought_signature" in (part.provider_details or ())
        return part if part.content.strip() or is_signed else None
    return _with_json(part) if part.part_kind == "tool-call" else part


def _with_json(call: ToolCallPart) -> ToolCallPart:
    """Return a call with a JSON object as arguments.

    Of incomplete arguments, the received part is kept.
    """
    args = call.args
    if not isinstance(args, str):
        return call
    with suppress(ValueError, RecursionError):
        value = json.loads(args, parse_constant=_reject)
        if isinstance(value, dict) and well_formed(value) is value:
            return call
    return replace(call, args=json_text(well_formed(_read(args), texts_only=True)))


def _read(args: str) -> dict[str, Any]:
    """Parse arguments that are not strict JSON as far as possible."""
    with suppress(ValueError, RecursionError):
        value = json.loads(args, strict=False)
        return value if isinstance(value, dict) else {}
    with suppress(ValueError):
        value = from_json(args, allow_partial="trailing-strings")
        return value if isinstance(value, dict) else {}
    return {}


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
