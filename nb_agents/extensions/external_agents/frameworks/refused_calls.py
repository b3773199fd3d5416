"""Reads whether a framework's error means that a provider refuses calls or is down. Pure functions.

Frameworks raise the exceptions of pydantic-ai, of a provider's SDK or of an HTTP library, often as
the cause of their own. Their attributes are read, so that no library needs to be imported.

Source: openai 3.57, anthropic 2.14 (``status_code``, ``response``, ``body``), google-genai 2.34
(``code``, ``response``, ``details``), httpx 0.28 (``response``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from nb_agents.errors import error_message
from nb_agents.models.failures import is_throttled
from nb_agents.models.network import causes
from nb_agents.models.retry import MIN_PROBE_S, AgentRefusedError, is_transient, time_to_retry
from nb_agents.models.retry_time import MAX_TEXT

_TOO_MANY, _DOWN, _NO_CREDIT = 429, 503, 402
_HTTP_LIBRARIES = frozenset({"httpx", "httpx2"})

_KINDS = {
    "rate_limit_error": _TOO_MANY,
    "rate_limit_exceeded": _TOO_MANY,
    "overloaded_error": 529,
    "server_error": _DOWN,
}
"""The HTTP status for each type or code of an error that arrives within a stream."""

_CREDIT = re.compile(r"billing|insufficient.?quota|credit", re.I)
"""Errors that more money, not time, resolves. They are not waited for without a time."""


class RefusedCallError(AgentRefusedError):
    """A model call of a framework's agent failed, because its provider refuses calls or is down.

    Args:
        message: The framework's error.
        status_code: As for `AgentRefusedError`.
        body: As for `AgentRefusedError`.
        headers: The response's headers, or None.
        retry_after: Seconds that the provider asks to wait, or None.
    """

    probe_s = MIN_PROBE_S

    def __init__(
        self,
        message: str,
        status_code: int,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__("", message, status_code, body)
        self.headers = headers
        self.retry_after = retry_after


def refusal_in(error: BaseException) -> RefusedCallError | None:
    """Return the refusal of a provider in an exception's chain of causes, or None.

    The first exception with a known meaning counts. Of a group, such as that of a fallback model,
    any refusal counts.

    Args:
        error: The exception of a framework.
    """
    from pydantic_ai.exceptions import ModelAPIError

    for cause in causes(error):
        if isinstance(cause, BaseExceptionGroup):
            return next(filter(None, map(refusal_in, cause.exceptions)), None)
        if isinstance(cause, ModelAPIError):
            return _of_pydantic(cause)
        if (status := _status_of(cause)) is not None:
            return _of_sdk(cause, status)
    return None


def _of_pydantic(error: Exception) -> RefusedCallError | None:
    from pydantic_ai.exceptions import ModelQuotaExceededError

    is_used_up = isinstance(error, ModelQuotaExceededError)
    if is_used_up and time_to_retry(error, time.time()) is None:
        return None
    is_quota = is_used_up or is_throttled(error)
    if not (is_quota or is_transient(error)):
        return None
    return RefusedCallError(
        error_message(error),
        _TOO_MANY if is_quota else _DOWN,
        getattr(error, "body", None),
        getattr(error, "headers", None),
        getattr(error, "retry_after", None),
    )


def _of_sdk(error: BaseException, status: int) -> RefusedCallError | None:
    message = error_message(error)
    body = {"message": message[:MAX_TEXT], "data": _body_of(error)}
    refusal = RefusedCallError(message, status, body, _headers_of(error))
    if status == _NO_CREDIT or _CREDIT.search(message[:MAX_TEXT]):
        refusal.status_code = _TOO_MANY
        return refusal if time_to_retry(refusal, time.time()) is not None else None
    return refusal if is_throttled(refusal) or is_transient(refusal) else None


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an exception has or stands for, or None if it has no meaning."""
    response = getattr(error, "response", None)
    named = (getattr(error, "status_code", None), getattr(error, "code", None))
    for value in (*named, getattr(response, "status_code", None)):
        if isinstance(value, int) and 400 <= value < 600:
            return value
    for value in _kinds_of(_body_of(error)):
        if value in _KINDS:
            return _KINDS[value]
        if re.fullmatch("[45][0-9][0-9]", value):
            return int(value)
    return _DOWN if _is_of_connection(error) else None


def _kinds_of(body: object) -> list[str]:
    """Return the type and code of the error in a body."""
    fault = body.get("error", body) if isinstance(body, Mapping) else None
    return [str(fault.get(key)) for key in ("type", "code")] if isinstance(fault, Mapping) else []


def _is_of_connection(error: BaseException) -> bool:
    """Return whether a server could not be reached or the connection to it was lost."""
    if isinstance(error, ConnectionError):
        return True
    return any(
        kind.__name__ == "TransportError" and kind.__module__.split(".")[0] in _HTTP_LIBRARIES
        for kind in type(error).__mro__
    )


def _body_of(error: BaseException) -> object:
    body = getattr(error, "body", None)
    return getattr(error, "details", None) if body is None else body


def _headers_of(error: BaseException) -> Mapping[str, str] | None:
    response: Any = getattr(error, "response", None)
    headers = getattr(error, "headers", None) or getattr(response, "headers", None)
    return {str(k): str(v) for k, v in headers.items()} if isinstance(headers, Mapping) else None
