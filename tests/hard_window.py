"""A model with a fixed context window: it rejects longer requests with its provider's error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from tests.model_server import Reply, Request

BYTES_PER_TOKEN = 4


def tokens_of(request: Request) -> int:
    """Return the exact number of tokens of a request: four bytes each, tools included."""
    text = request.prompt + json.dumps(request.body.get("tools") or [])
    return len(text.encode()) // BYTES_PER_TOKEN


def refusal(protocol: str, sent: int, window: int) -> Reply:
    """Return how a provider refuses a request that is too long."""
    match protocol:
        case "anthropic":
            text = f"prompt is too long: {sent} tokens > {window} maximum"
        case "google":
            text = (
                f"The input token count ({sent}) exceeds the maximum number of tokens allowed "
                f"({window})."
            )
        case _:
            text = (
                f"This model's maximum context length is {window} tokens. However, your messages "
                f"resulted in {sent} tokens. Please reduce the length of the messages."
            )
    return Reply(status=400, error=text)


class HardWindow:
    """The replies of a model with a hard window.

    Args:
        window: The number of tokens that it accepts.
        answer: Returns the reply to a request that fits.

    Attributes:
        refused: The sizes of the refused requests.
        accepted: The sizes of the others.
    """

    def __init__(self, window: int, answer: Callable[[Request], Reply]) -> None:
        self._window = window
        self._answer = answer
        self.refused: list[int] = []
        self.accepted: list[int] = []
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        sent = tokens_of(request)
        if sent > self._window:
            self.refused.append(sent)
            return refusal(request.protocol, sent, self._window)
        self.accepted.append(sent)
        self.requests.append(request)
        return replace(self._answer(request), input_tokens=sent)
