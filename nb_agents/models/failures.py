"""What is said of a model call that failed: one line, safe to store, with what to look at.

No body, no header and no key is in it, of an address its host and port alone.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any, TypeVar

from nb_agents.errors import ReplyTooLongError
from nb_agents.models.backend import BrokenReplyError

__all__ = ["describe", "is_throttled", "limit_in", "status_of"]

MAX_MESSAGE = 300

MAX_CAUSES = 20
"""Causes of an error that are looked at; a chain of them may be a circle."""

E = TypeVar("E", bound=BaseException)


def describe(error: Exception, arrived: int = 0) -> str:
    """Say what went wrong, and what to look at where the server could not be reached.

    Args:
        error: What was raised.
        arrived: How many words of the reply had come by then.

    Returns:
        A sentence or two of at most `MAX_MESSAGE` characters.
    """
    too_long = limit_in(error)
    status = status_of(too_long or error)
    if status is not None:
        text = _STATUS.get(status, "The server refused the request")
        said = f"{text} (HTTP {status})."
        return f"{said} {too_long}" if too_long else said
    if too_long or isinstance(error, BrokenReplyError):
        return str(too_long or error)
    import httpx2
    from pydantic_ai import exceptions as px

    if isinstance(error, px.ModelTimeoutError | httpx2.TimeoutException):
        return f"The {_server(error)} did not answer in time."
    if isinstance(error, px.ModelConnectionError | httpx2.TransportError):
        return _unconnected(error, arrived)[:MAX_MESSAGE]
    cause = error.__cause__ or error
    if isinstance(error, px.UnexpectedModelBehavior) or isinstance(cause, json.JSONDecodeError):
        return "The server's answer can't be understood (malformed stream)."
    return f"The call failed: {type(cause).__name__}."[:MAX_MESSAGE]


def is_throttled(error: Exception) -> bool:
    """Whether a server refused a call because there are too many of them.

    Args:
        error: What was raised.
    """
    return status_of(error) == 429


def limit_in(error: BaseException) -> ReplyTooLongError | None:
    """Find the limit that a call went over, whatever an SDK made of it.

    Args:
        error: What was raised.
    """
    return _cause(error, ReplyTooLongError)


def status_of(error: Exception) -> int | None:
    """Give the HTTP status that a server refused a call with, if one did.

    Args:
        error: What was raised.
    """
    status: int | None = getattr(error, "status_code", None)
    return status


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Give an error and what it came from, the first cause last."""
    cause: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _cause(error: BaseException, kind: type[E]) -> E | None:
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _unconnected(error: Exception, arrived: int) -> str:
    import httpx2

    server = _server(error)
    if _cause(error, socket.gaierror):
        return f"The {server} was not found: check base_url, and the network."
    if _cause(error, ConnectionRefusedError):
        return f"The {server} refused the connection: is it running, and is that its port?"
    if tls := _cause(error, ssl.SSLError):
        reason = (tls.reason or "no reason given").replace("_", " ").lower()
        return (
            f"There is no secure connection (TLS) to the {server}: {reason}; check its "
            "certificate, and whether base_url wants http:// or https://."
        )
    if _cause(error, httpx2.UnsupportedProtocol):
        return f"The {server} can't be reached: base_url must begin with http:// or https://."
    if _cause(error, httpx2.ConnectError):
        return f"The {server} can't be reached: check base_url, the network and any proxy."
    if arrived:
        words = f"{arrived} word{'s' if arrived > 1 else ''}"
        return f"The {server} dropped the connection after {words} of its reply."
    return f"The {server} dropped the connection before it replied: its own log may tell why."


def _server(error: Exception) -> str:
    """Name the server that was asked, as far as an error knows it."""
    url = next(filter(None, map(_url, _causes(error))), None)
    if url is None or not url.host:
        return "server"
    # The raw host is ASCII, and so no look-alike letters.
    host = url.raw_host.decode("ascii", "replace")
    return f"server {host}:{url.port}" if url.port else f"server {host}"


def _url(error: BaseException) -> Any:
    try:
        return error.request.url  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # httpx raises the latter where none was set
        return None


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
