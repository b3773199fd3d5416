"""One-line error messages for failed model calls, with advice.

A message quotes at most one sentence from the server, of limited length. It quotes nothing if the
server rejected the API key, because the server's text may contain part of the key. The code that
stores the message masks keys. A URL is reduced to host and port.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nb_agents.config.model_keys import ModelKeys
from nb_agents.errors import ReplyTooLongError
from nb_agents.models.backend import BatchEndedError, BrokenReplyError
from nb_agents.models.context_window import ConversationCutError, ConversationTooLongError
from nb_agents.models.network import cause_of, connection_message, proxy_advice
from nb_agents.unicode import without_controls

MAX_MESSAGE = 300

MAX_QUOTE = 300
"""The maximum length of the quoted text. `MAX_MESSAGE` limits the rest of the message."""


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """How long a failed call may wait for its provider.

    Attributes:
        limit_s: The value of `wait_for_quota`, in seconds.
        waited_s: Seconds since the call first failed.
        is_final: Whether the call is given up.
    """

    limit_s: float = 0.0
    waited_s: float = 0.0
    is_final: bool = True

    def advice(self, asked_s: float) -> str:
        """Return a sentence about the wait that a server asks for, or ""."""
        left_s = max(0.0, self.limit_s - self.waited_s)
        asked = f"It asks to wait {asked_s:,.0f} s"
        if not self.is_final or 0 < asked_s <= left_s:
            return f"{asked}."
        if not self.limit_s:
            return f"{asked}. To allow that, set `wait_for_quota`."
        more = f"{left_s:,.0f} s more" if self.waited_s >= 1 else f"{self.limit_s:,.0f} s"
        return f"{asked}, but `wait_for_quota` allows only {more}."


def describe(error: Exception, arrived: int = 0, quota: QuotaLimit = QuotaLimit()) -> str:
    """Return the message of a failed model call.

    Args:
        arrived: Number of words of the reply that had been received.
        quota: How long the call may wait for its provider.

    Returns:
        At most `MAX_MESSAGE` characters, not counting the quoted text.
    """
    if isinstance(error, ConversationCutError | ConversationTooLongError):
        return str(error)
    too_long = limit_in(error)
    status = status_of(too_long or error)
    if status is not None:
        return _refused(status, too_long or error, quota)
    if too_long or isinstance(error, BrokenReplyError | BatchEndedError):
        return str(too_long or error)
    import httpx2
    from pydantic_ai import exceptions as px

    if isinstance(error, px.ModelConnectionError | httpx2.TransportError):
        is_late = isinstance(error, px.ModelTimeoutError)
        return connection_message(error, arrived, is_late=is_late)[:MAX_MESSAGE]
    if isinstance(error, px.ModelAPIError) and (quote := _quote(error)):
        return f"The server ended the reply with an error. {quote}"
    if isinstance(error, px.UserError):
        return f"The request can't be made: {_shortened(str(error))}"
    cause = error.__cause__ or error
    if isinstance(error, px.UnexpectedModelBehavior) or isinstance(cause, json.JSONDecodeError):
        return "The server's reply is invalid (malformed stream)."
    return f"The call failed with {type(cause).__name__}."[:MAX_MESSAGE]


def _refused(status: int, error: Exception, quota: QuotaLimit) -> str:
    from pydantic_ai import exceptions as px

    # Google reports an invalid key with status 400.
    is_key = status == 401 or (status == 400 and isinstance(error, px.ModelAuthenticationError))
    meaning = 401 if is_key else 429 if is_throttled(error) else status
    if meaning >= 500 and is_too_long(error):
        meaning = 413
    text = _STATUS.get(meaning, "The server refused the request")
    quote = str(error) if isinstance(error, ReplyTooLongError) else _quote(error)
    sentences = [f"{text} (HTTP {status})."]
    if wait_s := getattr(error, "retry_after", None):
        sentences.append(quota.advice(wait_s))
    if not is_key:
        sentences += [
            quote,
            *(_remedies(error) if meaning in _FIXABLE else ()),
            proxy_advice(error),
        ]
    return " ".join(filter(None, sentences))


def _quote(error: Exception) -> str:
    """Return a sentence that quotes the server's error message, or ""."""
    text = _short_message(getattr(error, "body", None))
    end = "" if text.endswith((".", "…", "!", "?")) else "."
    return f"It said: {text}{end}" if text else ""


def _short_message(body: Any) -> str:
    """Return the shortened error message from the body of a server's error response."""
    return _shortened(_message(body))


def _message(body: Any) -> str:
    for _ in range(4):
        if isinstance(body, list):
            body = body[0] if body else None
        if isinstance(body, dict):
            names = ("error", "message", "detail", "msg")
            body = next((body[name] for name in names if body.get(name)), None)
    return body if isinstance(body, str) else ""


def _shortened(text: str) -> str:
    """Truncate text between two words, because masking would not recognize half a key."""
    text = " ".join(without_controls(text).split())
    if len(text) <= MAX_QUOTE:
        return text
    cut = text[: MAX_QUOTE + 1].rpartition(" ")[0]
    return f"{cut} …" if cut else ""


def _remedies(error: Exception) -> Iterator[str]:
    """Yield advice on what to change."""
    from pydantic_ai import exceptions as px

    body = getattr(error, "body", None)
    message = _short_message(body)
    near: str | None = getattr(error, "suggested_model_id", None)
    if isinstance(error, px.ModelNotFoundError) and near:
        yield f"Did you mean {near!r}?"
    if is_too_long(error):
        yield _TOO_LONG
    elif remedy := next((text for pattern, text in _REMEDIES if pattern.search(message)), ""):
        yield remedy
    elif key := _key_in(body):
        yield f"Change or remove `{key}` in the agent's backend."


def _key_in(body: Any) -> str:
    """Return the key in the team file for the parameter that the server rejected, or ""."""
    fault = body.get("error", body) if isinstance(body, dict) else None
    name = fault.get("param") if isinstance(fault, dict) else None
    return name if name in ModelKeys.model_fields else ""


def is_throttled(error: Exception) -> bool:
    """Return whether a server rejected a call because of a rate limit on calls or tokens."""
    status = status_of(error)
    # Groq sends 413 when its limit of tokens per minute is exceeded.
    return status == 429 or (status == 413 and _RATE.search(_error_text(error)) is not None)


def is_too_long(error: Exception) -> bool:
    """Return whether a server rejected a call because the conversation is too long."""
    from pydantic_ai import exceptions as px

    if isinstance(error, ConversationCutError | ConversationTooLongError):
        return True
    status = status_of(error)
    if is_throttled(error) or (status is not None and status not in _FIXABLE and status < 500):
        return False
    if isinstance(error, px.ModelContextWindowExceededError):
        return True
    pattern = _FULL if status is None or status >= 500 else _LONG
    return status == 413 or re.search(pattern, _error_text(error), re.I) is not None


def _error_text(error: Exception) -> str:
    """Return the type, code and message of a server's error."""
    body = getattr(error, "body", None)
    fault = body.get("error", body) if isinstance(body, dict) else None
    kinds = [fault.get("type"), fault.get("code")] if isinstance(fault, dict) else []
    return " ".join([*map(str, kinds), _message(body)])


def limit_in(error: BaseException) -> ReplyTooLongError | None:
    """Return the `ReplyTooLongError` in an exception's chain of causes, or None."""
    return cause_of(error, ReplyTooLongError)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an error, or None."""
    status: int | None = getattr(error, "status_code", None)
    return status


_TOO_LONG = (
    "The conversation is too long for this model. Use a model with a larger context window, or "
    "shorten the task."
)
_RATE = re.compile(r"rate.?limit|tokens per (?:minute|day)", re.I)
_FULL = r"exceed_context_size|exceeds the available context size"
"""Messages of llama.cpp, which sends some of them with HTTP 500."""
_LONG = "|".join(
    [
        _FULL,
        "context[ _](?:length|window)",  # OpenAI, SGLang, LM Studio, Ollama
        "(?:prompt|input) is too long",  # Anthropic, Bedrock
        "exceed context limit",  # Anthropic, with max_tokens
        "input token count",  # Google
        "too many tokens",  # Cohere
        r"max_(?:completion_)?tokens\W+must be at least 1\b",  # vLLM, without room for a reply
    ]
)
"""Error messages for conversations that are too long."""
_REMEDIES = (
    (
        re.compile(r"auto-tool-choice|tool-call-parser", re.I),
        "Start the server with both options, so that its models can call tools.",
    ),
    (
        re.compile(r"tool.?choice|not support (?:tool|function)|tools? (?:is|are) not", re.I),
        "Agents need a model that can call tools. Use another model or another `base_url`.",
    ),
    (
        re.compile(r"use 'max_completion_tokens'", re.I),
        "Write `extra_body: {max_completion_tokens: N}` instead of `max_tokens`.",
    ),
    (
        re.compile(r"max_(?:completion_|output_)?tokens|maxOutputTokens"),
        "Change `max_tokens` in the agent's backend to what the server's message allows.",
    ),
)
"""Patterns of error messages, each with the advice to give.

Source: the messages of OpenAI, Anthropic, Google, Mistral, vLLM and Ollama.
"""

_FIXABLE = {400, 403, 404, 413, 422}
"""HTTP statuses for which changing the team file may help."""

_STATUS = {
    400: "The server rejected the request as invalid",
    401: "The server refused the key; check it",
    402: "The account's credit is used up",
    403: "The key has no access to this model",
    404: "The server doesn't know this model or address",
    407: "The proxy requires a user and password; add them to its variable",
    408: "The server timed out",
    413: "The conversation is too long for the server",
    429: "The server received too many requests",
    500: "The server failed",
    502: "The server's gateway failed",
    503: "The server is overloaded or down",
    504: "The server's gateway timed out",
    529: "The server is overloaded",
}
