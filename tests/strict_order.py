"""Checks the order of messages as the strictest server of each protocol does.

For chat completions these are the chat templates of Mistral, Gemma and Llama, which vLLM and
llama.cpp apply, and Mistral's API. For Anthropic, Google and OpenAI's Responses they are the APIs.

Source: https://docs.mistral.ai/capabilities/function_calling and mistral-common's
`protocol/instruct/validator.py`; https://platform.claude.com/docs/en/agents-and-tools/tool-use;
https://ai.google.dev/gemini-api/docs/function-calling.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["order_fault"]


def order_fault(protocol: str, body: Mapping[str, Any], *, is_paused: bool = False) -> str:
    """Return why a strict server rejects the conversation of a request, or "".

    Args:
        protocol: The API's protocol.
        body: The request's body. A body without a conversation has no fault.
        is_paused: Whether the server has paused a reply. Then the conversation may end with it.
    """
    check = {"openai": _chat, "responses": _responses, "anthropic": _anthropic, "google": _google}
    faults = check[protocol](body)
    return next((each for each in faults if not (is_paused and each.startswith(_ENDS))), "")


def _chat(body: Mapping[str, Any]) -> Iterator[str]:
    messages = [m for m in body.get("messages") or () if isinstance(m, dict)]
    before, waiting = "", list[str]()
    for number, message in enumerate(messages):
        role = str(message.get("role")).replace("developer", "system")
        if role == "tool" and waiting:
            if message.get("tool_call_id") != waiting.pop(0):
                yield f"messages.{number}: a tool result that is not of the next call"
        elif waiting:
            yield f"messages.{number}: {role!r} before the results of {waiting}"
        elif role not in _AFTER[before]:
            yield f"messages.{number}: unexpected role {role!r} after role {before!r}"
        if role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
            yield from _assistant(number, message)
        elif role == "user" and not _has_text(message.get("content")):
            yield f"messages.{number}: an empty user message"
        before = role
    if messages and before not in ("user", "tool"):
        yield f"{_ENDS} in role {before!r}"


_ENDS = "the conversation ends"
_AFTER = {
    "": ("system", "user"),
    "system": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "tool": ("assistant",),
}


def _assistant(number: int, message: Mapping[str, Any]) -> Iterator[str]:
    calls = message.get("tool_calls") or ()
    if not calls and not _has_text(message.get("content")):
        yield f"messages.{number}: an assistant message without content and tool calls"
    for call in calls:
        if not _is_object(call["function"]["arguments"]):
            yield f"messages.{number}: arguments that are not a JSON object"


def _responses(body: Mapping[str, Any]) -> Iterator[str]:
    value = body.get("input")
    items = [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    waiting = list[str]()
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "function_call_output":
            if item["call_id"] not in waiting:
                yield f"input.{number}: no tool call found for {item['call_id']!r}"
            waiting = [each for each in waiting if each != item["call_id"]]
        elif waiting and item.get("role") in ("user", "system"):
            yield f"input.{number}: no tool output found for {waiting}"
        if kind == "function_call":
            waiting.append(item["call_id"])
            if not _is_object(item["arguments"]):
                yield f"input.{number}: arguments that are not a JSON object"
        after = items[number + 1] if number + 1 < len(items) else {"role": "user"}
        if kind == "reasoning" and after.get("role") in ("user", "system"):
            yield f"input.{number}: reasoning without its required following item"
        if item.get("role") == "system" and number:
            yield f"input.{number}: a system message that is not the first"
    if waiting:
        yield f"no tool output found for {waiting}"


def _anthropic(body: Mapping[str, Any]) -> Iterator[str]:
    messages = [m for m in body.get("messages") or () if isinstance(m, dict)]
    waiting = list[str]()
    for number, message in enumerate(messages):
        role, blocks = message.get("role"), _blocks(message.get("content"))
        if role not in ("user", "assistant") or (number == 0 and role != "user"):
            yield f"messages.{number}: unexpected role {role!r}"
        for block in _within(blocks):
            if block.get("type") == "text" and not str(block.get("text")).strip():
                yield f"messages.{number}: text content blocks must contain non-whitespace text"
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if sorted(r["tool_use_id"] for r in results) != sorted(waiting):
            yield f"messages.{number}: tool_use ids without tool_result blocks after: {waiting}"
        if results != blocks[: len(results)]:
            yield f"messages.{number}: tool_result blocks must come first"
        waiting = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        is_thought = bool(blocks) and blocks[-1].get("type") in ("thinking", "redacted_thinking")
        if role == "assistant" and is_thought:
            yield f"messages.{number}: the final block cannot be `thinking`"
    if waiting:
        yield f"tool_use ids without tool_result blocks after: {waiting}"
    if messages and messages[-1].get("role") == "assistant":
        yield f"{_ENDS} in role 'assistant'"


def _google(body: Mapping[str, Any]) -> Iterator[str]:
    contents = [c for c in body.get("contents") or () if isinstance(c, dict)]
    before, waiting = "", 0
    for number, content in enumerate(contents):
        role, parts = content.get("role", "user"), content.get("parts") or ()
        calls = sum("functionCall" in part for part in parts)
        results = sum("functionResponse" in part for part in parts)
        if number == 0 and role != "user":
            yield f"contents.0: unexpected role {role!r}"
        if not parts or any(part == {"text": ""} for part in parts):
            yield f"contents.{number}: an empty part"
        if results > waiting or (waiting and not results):
            yield f"contents.{number}: {results} function responses to {waiting} function calls"
        if calls and before not in ("user", "function"):
            yield f"contents.{number}: a function call turn after {before!r}"
        waiting += calls - results
        before = "function" if results else role
    if waiting:
        yield f"{waiting} function calls without a response"
    if contents and before not in ("user", "function"):
        yield f"{_ENDS} in role {before!r}"


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, TypeError):
        return False


def _has_text(content: Any) -> bool:
    return bool(content.strip() if isinstance(content, str) else content)


def _blocks(content: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, dict)]


def _within(blocks: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield blocks and the blocks inside tool results."""
    for block in blocks:
        yield block
        if block.get("type") == "tool_result":
            yield from _blocks(block.get("content"))
