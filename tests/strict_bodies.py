"""Checks the body of a request as strictly as the providers' APIs.

The types come from the providers' SDKs, which are generated from the APIs. Unknown keys at any
depth and values of a wrong type are errors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.alias_generators import to_camel

from tests.strict_tools import tools_fault

__all__ = ["fault_of", "load"]

_SAMPLING: dict[str, tuple[float, float]] = {
    "temperature": (0, 1),
    "top_k": (0, 10_000),
    "top_p": (0, 1),
}
"""Parameters of Anthropic's API that its SDK supports only through `extra_body`."""

MAX_CACHED = 4
"""Maximum number of cache marks in a request to Anthropic."""


def fault_of(protocol: str, body: Mapping[str, Any], besides: frozenset[str]) -> str:
    """Return why an API rejects the body of a request, or "".

    Args:
        protocol: The API's protocol.
        body: The request's body.
        besides: Additional top-level keys that the server accepts.
    """
    body = {key: value for key, value in body.items() if key not in besides}
    if protocol == "anthropic":
        if fault := _anthropic_fault(body):
            return fault
        body = {key: value for key, value in body.items() if key not in _SAMPLING}
    try:
        _exhaust(_adapter(protocol).validate_python([body], strict=protocol != "google"))
    except ValidationError as exc:
        error = exc.errors()[0]
        path = ".".join(str(part) for part in error["loc"][1:])
        is_unknown = error["type"] == "extra_forbidden"
        return f"Unrecognized request argument supplied: {path}" if is_unknown else f"{path}: {exc}"
    if protocol in ("openai", "anthropic") and (id := _repeated_id(body["messages"])):
        return f"Duplicate value for 'tool_call_id' of {id!r}"
    if protocol == "openai" and {"max_tokens", "max_completion_tokens"} <= body.keys():
        return "max_tokens and max_completion_tokens are both set"
    return tools_fault(protocol, body)


def load(protocols: tuple[str, ...] = ("openai", "responses", "anthropic", "google")) -> None:
    """Import the SDKs, which takes several seconds."""
    for each in protocols:
        _adapter(each)


@cache
def _adapter(protocol: str) -> TypeAdapter[Any]:
    with warnings.catch_warnings():
        # Anthropic's types allow other keys in one place.
        warnings.simplefilter("ignore")
        return TypeAdapter(list[_kind(protocol)], config=ConfigDict(extra="forbid"))  # type: ignore[misc]


def _kind(protocol: str) -> Any:
    match protocol:
        case "openai":
            from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

            return CompletionCreateParamsStreaming
        case "responses":
            from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

            return ResponseCreateParamsStreaming
        case "anthropic":
            from anthropic.types.beta.message_create_params import MessageCreateParamsStreaming

            return MessageCreateParamsStreaming
    return _google()


def _google() -> type[BaseModel]:
    from google.genai import types

    fields: dict[str, Any] = {
        "contents": (list[types.Content], ...),
        "system_instruction": (types.Content | None, None),
        "tools": (list[types.Tool] | None, None),
        "tool_config": (types.ToolConfig | None, None),
        "safety_settings": (list[types.SafetySetting] | None, None),
        "generation_config": (types.GenerationConfig | None, None),
        "cached_content": (str | None, None),
        "service_tier": (types.ServiceTier | None, None),
        "labels": (dict[str, str] | None, None),
    }
    config = ConfigDict(extra="forbid", alias_generator=to_camel)
    return create_model("GenerateContentRequest", __config__=config, **fields)


def _exhaust(value: Any) -> None:
    """Iterate over all values, because pydantic validates iterables lazily."""
    if isinstance(value, dict):
        for each in value.values():
            _exhaust(each)
    elif not isinstance(value, str | BaseModel) and hasattr(value, "__iter__"):
        for each in value:
            _exhaust(each)


def _anthropic_fault(body: Mapping[str, Any]) -> str:
    for name, (low, high) in _SAMPLING.items():
        if name in body and not low <= body[name] <= high:
            return f"{name}: Input should be between {low} and {high}"
    if sum(1 for _ in _marks(body)) > MAX_CACHED:
        return f"A maximum of {MAX_CACHED} blocks with cache_control may be provided."
    thinking = body.get("thinking") or {}
    if thinking.get("type") == "enabled" and not (
        1024 <= thinking.get("budget_tokens", 0) < body["max_tokens"]
    ):
        return "thinking.enabled.budget_tokens: Input should be from 1024 and below max_tokens"
    return ""


def _repeated_id(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return the first duplicate id of tool calls in a conversation, or ""."""
    ids = set()
    for message in messages:
        content = message.get("content")
        blocks = [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        for call in (*(message.get("tool_calls") or ()), *uses):
            if call["id"] in ids:
                return str(call["id"])
            ids.add(call["id"])
    return ""


def _marks(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "cache_control" in value:
            yield value["cache_control"]
        for each in value.values():
            yield from _marks(each)
    elif isinstance(value, list):
        for each in value:
            yield from _marks(each)
