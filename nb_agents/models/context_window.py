"""Estimates how much of a model's context window a conversation uses.

Tokens are estimated from what the provider reported for the previous reply and from the text that
was added since. Before the first reply, three bytes of UTF-8 count as a token. That overestimates
English text by about a third, and is about right for Chinese or Japanese.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from nb_agents.nouns import token_count

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse

BYTES_PER_TOKEN = 3

_MIN_RATIO, _MAX_RATIO = 0.1, 1.0
"""Limits for the measured number of tokens per byte, in case a server reports wrong numbers."""

_MIN_GROWTH = 1.1
_MIN_GROWTH_BYTES = 2000
"""Growth in bytes after which a server must report more tokens than before.

Otherwise the server has truncated the conversation.
"""
_MIN_CUT_TOKENS = 1000
"""A server that reports fewer tokens has no window this small: it does not count the input."""


class ConversationCutError(Exception):
    """Raised when a server dropped the beginning of a conversation without an error.

    Attributes:
        read: The number of tokens that the server has read.
    """

    def __init__(self, sent: int, read: int) -> None:
        super().__init__(
            f"The server read only {read:,} of about {token_count(sent)} and dropped the rest "
            "without an error. For Ollama, increase OLLAMA_CONTEXT_LENGTH."
        )
        self.read = read


class ConversationTooLongError(Exception):
    """Raised instead of a request that the server would cut without an error."""

    def __init__(self) -> None:
        super().__init__(
            "The server would drop a part of the conversation without an error. Increase its "
            "context window (for Ollama, OLLAMA_CONTEXT_LENGTH), or shorten the task."
        )


def sizes(sent: int, window: int) -> str:
    """Return a sentence with the size of a request and the window, in tokens."""
    window_text = f", and the context window has {window:,}" if window else ""
    return f"The conversation has about {token_count(sent)}{window_text}."


class RefusedSize(NamedTuple):
    """The sizes, in tokens, in a server's error about a conversation that is too long.

    Attributes:
        limit: The context window, or 0 if the message does not contain it.
        sent: The size of the rejected conversation, or 0 if the message does not contain it.
    """

    limit: int = 0
    sent: int = 0


_NUMBER = r"(\d[\d,_]*)"
_REFUSALS = (
    # Anthropic: "prompt is too long: 210000 tokens > 200000 maximum"
    (re.compile(rf"{_NUMBER} tokens? > {_NUMBER}"), ("sent", "limit")),
    # Anthropic: "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000"
    (re.compile(rf"context limit: {_NUMBER} \+ {_NUMBER} > {_NUMBER}"), ("sent", "", "limit")),
    # Google: "The input token count (70000) exceeds the maximum number of tokens allowed (65536)"
    (re.compile(rf"token count \(?{_NUMBER}\)? exceeds .*? \(?{_NUMBER}\)?"), ("sent", "limit")),
    # llama.cpp: "the request exceeds the available context size (4096 tokens)"
    (re.compile(rf"context size \(?{_NUMBER}"), ("limit",)),
    # OpenAI, vLLM, OpenRouter: "maximum context length is 8192 tokens. However, your messages
    # resulted in 9000 tokens", "you requested about 9000 tokens"
    (
        re.compile(
            rf"context (?:length|window)\D{{0,20}} {_NUMBER}(?:.*?(?:resulted in|requested)"
            rf"\D{{0,12}}{_NUMBER})?",
            re.S,
        ),
        ("limit", "sent"),
    ),
)


def refused_size(error: BaseException) -> RefusedSize:
    """Return the context window and the request's size, as a server's error message reports them.

    Source: error messages of OpenAI, vLLM, OpenRouter, Anthropic, Google and llama.cpp.
    """
    body = getattr(error, "body", None)
    fault = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(fault, dict) and (limit := _number(fault.get("n_ctx"))):  # llama.cpp
        return RefusedSize(limit, _number(fault.get("n_prompt_tokens")))
    text = str(body or error)
    for pattern, names in _REFUSALS:
        if (match := pattern.search(text)) is not None:
            values = dict(zip(names, map(_number, match.groups()), strict=True))
            return RefusedSize(values.get("limit", 0), values.get("sent", 0))
    return RefusedSize()


def _number(value: Any) -> int:
    digits = re.sub(r"\D", "", str(value or ""))
    return int(digits) if 0 < len(digits) <= 9 else 0


class ContextMeter:
    """Estimates the tokens of a conversation.

    Attributes:
        ratio: Tokens per byte, as last measured.
    """

    def __init__(self) -> None:
        self.ratio = 1 / BYTES_PER_TOKEN
        self._tokens = self._bytes = 0
        self._last_request = (0, 0)

    def estimate(self, size: int) -> int:
        """Return the approximate number of tokens of a conversation.

        Args:
            size: The size of its text in bytes.
        """
        if self._bytes and size >= self._bytes:
            return self._tokens + int((size - self._bytes) * self.ratio)
        return int(size * self.ratio)

    def measure(self, size: int, tokens: int) -> None:
        """Record how many tokens a provider has counted in a conversation.

        Args:
            size: The size of its text in bytes.
            tokens: The number of tokens. A number that is too small for the text, such as 0 or a
                constant, means that it is unknown.
        """
        if size and tokens >= _MIN_RATIO * size:
            self.calibrate(tokens / size)
            self._tokens, self._bytes = tokens, size

    @property
    def is_measured(self) -> bool:
        """Whether a provider has counted the tokens of a conversation."""
        return bool(self._bytes)

    def calibrate(self, ratio: float) -> None:
        """Set the number of tokens per byte, as an earlier process has measured it."""
        self.ratio = min(max(ratio, _MIN_RATIO), _MAX_RATIO)

    def was_cut(self, size: int, tokens: int) -> bool:
        """Return whether a server has truncated a conversation without an error, as Ollama does.

        Args:
            size: The size of the request's text in bytes.
            tokens: The number of tokens that the server reported for it. 0 means unknown.
        """
        (last_size, last_tokens), self._last_request = self._last_request, (size, tokens)
        has_grown = size >= max(_MIN_GROWTH * last_size, last_size + _MIN_GROWTH_BYTES)
        counts = last_tokens >= max(_MIN_CUT_TOKENS, _MIN_RATIO * last_size)
        return has_grown and counts and 0 < tokens <= last_tokens


def text_bytes(messages: Iterable[ModelMessage]) -> int:
    """Return the size of the text in messages, in bytes of UTF-8. Files don't count."""
    parts = (part for message in messages for part in message.parts)
    return sum(_bytes(getattr(part, n, None)) for part in parts for n in ("content", "args"))


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, dict):
        return sum(_bytes(str(key)) + _bytes(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    return len(str(value)) if isinstance(value, int | float) else 0


def input_tokens(response: ModelResponse) -> int:
    """Return the number of tokens in the conversation that a response answers, or 0 if unknown."""
    return response.usage.input_tokens
