"""Replies that a provider pauses while its own tools run long: sent back as they are, they go on.

A paused reply is the conversation's last message until the next one, with which it is one reply.

Source: https://platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (`pause_turn`);
pydantic-ai's agents join such replies in the same way (`models/_continuation.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

__all__ = ["MAX_PAUSES", "is_paused", "joined"]

MAX_PAUSES = 10
"""In one reply: a model that never ends it must end somewhere. As pydantic-ai's agents have it."""


def is_paused(message: ModelMessage) -> bool:
    """Tell whether a message is a reply that is to go on."""
    return message.kind == "response" and message.state == "suspended"


def joined(messages: list[ModelMessage], response: ModelResponse) -> ModelResponse:
    """Join a reply to the paused one that it goes on with, which is taken out of the conversation.

    Args:
        messages: The conversation.
        response: The reply.

    Returns:
        The reply from its beginning; its usage is that of its last part.
    """
    before = messages[-1]
    if before.kind != "response" or not is_paused(before):
        return response
    messages.pop()
    details = {**(before.provider_details or {}), **(response.provider_details or {})}
    parts = [*before.parts, *response.parts]
    return replace(response, parts=parts, provider_details=details or None)
