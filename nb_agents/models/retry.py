"""When a failed model call is tried again, and what is said of it. Pure functions.

The loop that obeys them is in `nb_agents.agents.agent`, with a stop's checkpoint before each
attempt and during each wait.
"""

from __future__ import annotations

import json

__all__ = ["MAX_ATTEMPTS", "describe", "retry_delay_s"]

MAX_ATTEMPTS = 4
"""First try and three more."""

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 60.0
"""A server that asks for a longer wait than this is taken as down for this run."""

_TRANSIENT_STATUS = {408, 409, 425, 429, *range(500, 600)}
"""Statuses that pass; those of errors that pydantic-ai has put into no category."""

MAX_MESSAGE = 300


def retry_delay_s(error: Exception, attempt: int) -> float | None:
    """Decide whether a failed call is tried again.

    Args:
        error: What pydantic-ai (or the connection) raised.
        attempt: How many attempts were made, from 1.

    Returns:
        Seconds to wait, or None to give up: the request itself was refused (401, 400, …), the
        quota is spent, attempts are used up, or the server asks for too long a wait.
    """
    if attempt >= MAX_ATTEMPTS or not _is_transient(error):
        return None
    asked = getattr(error, "retry_after", None)
    if asked is not None:
        return float(asked) if asked <= MAX_DELAY_S else None
    return float(FIRST_DELAY_S * 2 ** (attempt - 1))


def _is_transient(error: Exception) -> bool:
    import httpx2
    from pydantic_ai import exceptions as px

    transient = (
        px.ModelRateLimitError,
        px.ModelUnavailableError,
        px.ModelServerError,
        px.ModelConnectionError,
        px.UnexpectedModelBehavior,
        httpx2.TransportError,
        json.JSONDecodeError,
    )
    final = (px.ModelQuotaExceededError, px.ModelRequestRejectedError)
    if isinstance(error, final):
        return False
    # An error whose kind the provider did not tell, such as one sent inside an open stream.
    is_untold = type(error) is px.ModelAPIError
    return is_untold or isinstance(error, transient) or _status(error) in _TRANSIENT_STATUS


def _status(error: Exception) -> int | None:
    status: int | None = getattr(error, "status_code", None)
    return status


def describe(error: Exception) -> str:
    """Say what went wrong in one line that is safe to store: no body, no headers, no keys.

    Args:
        error: What was raised.

    Returns:
        A sentence of at most `MAX_MESSAGE` characters.
    """
    status = _status(error)
    if status is not None:
        text = _STATUS.get(status, "The server refused the request")
        return f"{text} (HTTP {status})."
    import httpx2
    from pydantic_ai import exceptions as px

    if isinstance(error, px.ModelTimeoutError | httpx2.TimeoutException):
        return "The server did not answer in time."
    if isinstance(error, px.ModelConnectionError | httpx2.TransportError):
        return "The connection to the server failed or was dropped."
    cause = error.__cause__ or error
    if isinstance(error, px.UnexpectedModelBehavior) or isinstance(cause, json.JSONDecodeError):
        return "The server's answer can't be understood (malformed stream)."
    return f"The call failed: {type(cause).__name__}."[:MAX_MESSAGE]


_STATUS = {
    400: "The server says that the request is wrong",
    401: "The server refused the key; check it",
    402: "The account's credit is used up",
    403: "The key may not use this model",
    404: "The server doesn't know this model or address",
    408: "The server gave up waiting",
    413: "The conversation is too long for the server",
    429: "The server says: too many requests",
    500: "The server failed",
    502: "The server's gateway failed",
    503: "The server is overloaded or down",
    504: "The server's gateway timed out",
    529: "The server is overloaded",
}
