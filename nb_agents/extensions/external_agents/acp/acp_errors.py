"""Reads whether an external agent's error means that its provider refuses calls. Pure functions.

Only errors are read, never what an agent writes, because an agent may write about quotas.

Source: gemini-cli 0.61, qwen-code 0.24 (the error's code is the HTTP status),
claude-agent-acp 0.101 (``data.errorKind``), codex-acp 2.6 (``data.codexErrorInfo``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

from nb_agents.errors import ModelCallError
from nb_agents.models.retry import AgentRefusedError
from nb_agents.models.retry_time import accepted_at

_LOGIN_NEEDED = -32000
_MAX_TEXT = 4000
_TOO_MANY, _DOWN = 429, 503
_STATUSES = frozenset({_TOO_MANY, 502, _DOWN, 504, 529})
"""HTTP statuses to wait for. gemini-cli sends 500 for any unknown error."""

_KINDS = {
    "rate_limit": _TOO_MANY,
    "overloaded": 529,
    "server_error": _DOWN,
    "usageLimitExceeded": _TOO_MANY,
    "rateLimitExceeded": _TOO_MANY,
    "serverOverloaded": _DOWN,
}
"""The HTTP status for each kind of error that agents report in the error's data."""

_QUOTA = re.compile(
    r"(?:HTTP|status|error|code)\W{1,3}429\b|too many requests|rate.?limit"
    r"|(?:usage|weekly|daily) limit"
    r"|\bhit your (?:\w+ )?limit|limit reached\||out of quota|resource.?exhausted"
    r"|quota (?:is )?(?:exceeded|exhausted|reached)|exceeded (?:\w+ ){0,3}quota"
    r"|exhausted your (?:capacity|quota)",
    re.I,
)
_OVERLOADED = re.compile(r"\boverloaded\b|(?:HTTP|status|error)\W{1,3}5(?:02|03|04|29)\b", re.I)
_CREDIT = re.compile(r"billing|insufficient.?quota|credit", re.I)
"""Errors that more money, not time, resolves. They are not waited for without a time."""


def call_error(name: str, code: int, message: str, data: Any = None) -> ModelCallError:
    """Return the exception for an error with which an external agent answered a request.

    Args:
        name: The agent's display name.
        code: The code of the JSON-RPC error.
        message: Its message.
        data: Its additional data, or None.

    Returns:
        An `AgentRefusedError` if the agent's provider refuses calls or is down.
    """
    if code == _LOGIN_NEEDED:
        login = (
            f"It requires a login ({message[:200]}). Set a key for it, or write "
            "`use_my_settings: true` in its backend so that it uses your login."
        )
        return ModelCallError(name, login)
    details = data.get("details", data) if isinstance(data, dict) else data
    more = details if isinstance(details, str) else json.dumps(details) if details else ""
    text = f"It reported: {message[:500]}{f' ({more[:500]})' if more else ''}"
    status = _status(code, message, data)
    if status is None:
        return ModelCallError(name, text)
    return AgentRefusedError(name, text, status, _body(message, data))


def _body(message: str, data: Any) -> dict[str, Any]:
    return {"message": message[:_MAX_TEXT], "data": data}


def _status(code: int, message: str, data: Any) -> int | None:
    """Return the HTTP status that stands for a refusal by a provider. None for other errors."""
    if (status := next(_statuses_in(data), None)) is not None:
        return status
    text = " ".join(_texts([message, data]))[:_MAX_TEXT]
    if _CREDIT.search(text) and accepted_at(None, None, _body(message, data), time.time()) is None:
        return None
    if code in _STATUSES:
        return code
    if _QUOTA.search(text):
        return _TOO_MANY
    return _DOWN if _OVERLOADED.search(text) else None


def _statuses_in(data: Any) -> Iterator[int]:
    """Yield the HTTP statuses that known fields of an error's data contain or stand for."""
    for key in ("errorKind", "codexErrorInfo") if isinstance(data, dict) else ():
        kind = data.get(key)
        if isinstance(kind, str) and kind in _KINDS:
            yield _KINDS[kind]
        for inner in kind.values() if isinstance(kind, dict) else ():
            status = inner.get("httpStatusCode") if isinstance(inner, dict) else None
            if isinstance(status, int) and status in _STATUSES:
                yield status


def _texts(value: Any, depth: int = 4) -> Iterator[str]:
    """Yield the strings in a JSON value."""
    if isinstance(value, str):
        yield value
    if depth and isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value[:20]:
            yield from _texts(each, depth - 1)
