"""The message of a model call that failed: one line, with what to check.

It quotes at most one sentence of the server, of bounded length, and none where the server refused a
key, as it may repeat part of it; whoever stores the line masks keys. Of an address it names host
and port.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from nb_agents.config.model_keys import ModelKeys
from nb_agents.errors import ReplyTooLongError
from nb_agents.models.backend import BrokenReplyError
from nb_agents.unicode import without_controls

MAX_MESSAGE = 300

MAX_SAID = 300
"""Characters quoted of a server; the rest of the message has as many more."""


def describe(error: Exception, arrived: int = 0) -> str:
    """Return the message of a failed model call.

    Args:
        error: What was raised.
        arrived: Number of words of the reply that had arrived.

    Returns:
        Some sentences, of at most `MAX_MESSAGE` characters besides the server's own.
    """
    too_long = limit_in(error)
    status = status_of(too_long or error)
    if status is not None:
        return _refused(status, too_long or error)
    if too_long or isinstance(error, BrokenReplyError):
        return str(too_long or error)
    import httpx2
    from pydantic_ai import exceptions as px

    from nb_agents.models.network import unconnected

    if isinstance(error, px.ModelConnectionError | httpx2.TransportError):
        is_late = isinstance(error, px.ModelTimeoutError)
        return unconnected(error, arrived, is_late=is_late)[:MAX_MESSAGE]
    if isinstance(error, px.ModelAPIError) and (said := _said_by(error)):
        return f"The server ended the reply with an error. {said}"
    if isinstance(error, px.UserError):
        return f"The request can't be made: {_shortened(str(error))}"
    cause = error.__cause__ or error
    if isinstance(error, px.UnexpectedModelBehavior) or isinstance(cause, json.JSONDecodeError):
        return "The server's answer can't be understood (malformed stream)."
    return f"The call failed: {type(cause).__name__}."[:MAX_MESSAGE]


def _refused(status: int, error: Exception) -> str:
    from pydantic_ai import exceptions as px

    from nb_agents.models.network import through

    # Google says so with 400.
    is_key = status == 401 or (status == 400 and isinstance(error, px.ModelAuthenticationError))
    text = _STATUS[401] if is_key else _STATUS.get(status, "The server refused the request")
    more = str(error) if isinstance(error, ReplyTooLongError) else _said_by(error)
    said = [f"{text} (HTTP {status})."]
    if asked := getattr(error, "retry_after", None):
        said.append(f"It asks to wait for {asked:.0f} s, which `max_delay` of `retry` may allow.")
    if not is_key:
        said += [more, *(_remedies(error) if status in _MENDABLE else ()), through(error)]
    return " ".join(filter(None, said))


def _said_by(error: Exception) -> str:
    """Return a sentence that quotes the server."""
    words = _words(getattr(error, "body", None))
    end = "" if words.endswith((".", "…", "!", "?")) else "."
    return f"It said: {words}{end}" if words else ""


def _words(body: Any) -> str:
    """Return the server's own message from the body of its error."""
    for _ in range(4):
        if isinstance(body, list):
            body = body[0] if body else None
        if isinstance(body, dict):
            names = ("error", "message", "detail", "msg")
            body = next((body[name] for name in names if body.get(name)), None)
    return _shortened(body) if isinstance(body, str) else ""


def _shortened(text: str) -> str:
    """Cut a text between two words: no mask would recognize half a key."""
    text = " ".join(without_controls(text).split())
    if len(text) <= MAX_SAID:
        return text
    cut = text[: MAX_SAID + 1].rpartition(" ")[0]
    return f"{cut} …" if cut else ""


def _remedies(error: Exception) -> Iterator[str]:
    """Yield sentences on what to change, where that is known."""
    from pydantic_ai import exceptions as px

    body = getattr(error, "body", None)
    words = _words(body)
    near: str | None = getattr(error, "suggested_model_id", None)
    if isinstance(error, px.ModelNotFoundError) and near:
        yield f"Did you mean {near!r}?"
    if isinstance(error, px.ModelContextWindowExceededError):
        yield _TOO_LONG
    elif remedy := next((text for said, text in _REMEDIES if said.search(words)), ""):
        yield remedy
    elif key := _key_in(body):
        yield f"Change or remove `{key}` in the agent's backend."


def _key_in(body: Any) -> str:
    """Return the team file's key for the parameter that the server rejected, if it named one."""
    fault = body.get("error", body) if isinstance(body, dict) else None
    name = fault.get("param") if isinstance(fault, dict) else None
    return name if name in ModelKeys.model_fields else ""


def is_throttled(error: Exception) -> bool:
    """Return whether a server refused a call because there are too many of them.

    Args:
        error: What was raised.
    """
    return status_of(error) == 429


def limit_in(error: BaseException) -> ReplyTooLongError | None:
    """Return the limit that a call exceeded, among the causes of an SDK's error.

    Args:
        error: What was raised.
    """
    from nb_agents.models.network import cause_of

    return cause_of(error, ReplyTooLongError)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status with which a server refused a call, or None.

    Args:
        error: What was raised.
    """
    status: int | None = getattr(error, "status_code", None)
    return status


_TOO_LONG = (
    "The conversation is too long for this model: take one that reads more, or give it less to "
    "read."
)
_REMEDIES = (
    (
        re.compile(r"context (?:length|window)|prompt is too long|input token count", re.I),
        _TOO_LONG,
    ),
    (
        re.compile(r"auto-tool-choice|tool-call-parser", re.I),
        "Start the server with both, so that its models can call tools.",
    ),
    (
        re.compile(r"tool.?choice|not support (?:tool|function)|tools? (?:is|are) not", re.I),
        "Agents need a model that calls tools: take another one, or another `base_url`.",
    ),
    (
        re.compile(r"use 'max_completion_tokens'", re.I),
        "Write `extra_body: {max_completion_tokens: N}` instead of `max_tokens`.",
    ),
    (
        re.compile(r"max_(?:completion_|output_)?tokens|maxOutputTokens"),
        "Write another `max_tokens` in the agent's backend: the server says what the model takes.",
    ),
)
"""What to change, by what a server says.

Source: the words of OpenAI, Anthropic, Google, Mistral, vLLM and Ollama for these.
"""

_MENDABLE = {400, 403, 404, 413, 422}
"""Statuses after which a change of the team's file may help."""

_STATUS = {
    400: "The server says that the request is wrong",
    401: "The server refused the key; check it",
    402: "The account's credit is used up",
    403: "The key may not use this model",
    404: "The server doesn't know this model or address",
    407: "The proxy wants a user and a password, which its variable may hold",
    408: "The server gave up waiting",
    413: "The conversation is too long for the server",
    429: "The server says: too many requests",
    500: "The server failed",
    502: "The server's gateway failed",
    503: "The server is overloaded or down",
    504: "The server's gateway timed out",
    529: "The server is overloaded",
}
