"""Reads when a provider accepts calls again, from its error response. Pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from email.utils import parsedate_to_datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MAX_TEXT = 4000
"""Number of characters of an error message that are searched for a time."""

GOOGLE_ZONE = "America/Los_Angeles"
"""Time zone of the midnight at which Google's daily quotas are reset."""


def accepted_at(
    status: int | None, headers: Mapping[str, str] | None, body: object, now: float
) -> float | None:
    """Return when a provider accepts calls again, in Unix seconds, or None if it doesn't say.

    Of the sources below, the first that gives a time in the future counts.

    Source:
        1. ``QuotaFailure`` with a quota per day: the next midnight in `GOOGLE_ZONE`
           (ai.google.dev/gemini-api/docs/rate-limits).
        2. ``retry-after-ms`` of OpenAI and Azure; ``retry-after``, a number of seconds or a date
           (RFC 9110, section 10.2.3).
        3. ``resets_at`` and ``resets_in_seconds`` in the body (ChatGPT plans), and ``RetryInfo``
           (google.rpc, in the body of Gemini and Vertex AI).
        4. For a status of 429 only, the headers of the limits of which nothing is left. If no limit
           says what is left, all count. Of several, the last time counts:
           ``anthropic-ratelimit-<limit>-reset``, a date in RFC 3339 or Unix seconds;
           ``x-ratelimit-reset-<limit>``, a duration such as ``6m0s`` (OpenAI, Groq) or a number of
           seconds (Cerebras); ``x-ratelimit-reset``, Unix milliseconds (OpenRouter, also in the
           body's ``metadata``) or Unix seconds (GitHub); ``ratelimit-reset``, a number of seconds
           (IETF draft).
        5. The message: "try again in 3h20m", "retry in 38.5s", "limit reached|1764385200",
           "resets at 2026-11-28T03:00:00Z", "until 03:00 UTC", "resets 3am (Europe/Berlin)".

    Args:
        status: The HTTP status, or None.
        headers: The response's headers.
        body: The response's body: decoded JSON, or text.
        now: The current time, in Unix seconds.
    """
    names = {str(name).lower(): str(value).strip() for name, value in (headers or {}).items()}
    times = _candidates(status, names, body, now)
    return next((at for at in times if at is not None and now < at < math.inf), None)


def _candidates(
    status: int | None, headers: Mapping[str, str], body: object, now: float
) -> Iterator[float | None]:
    if _is_daily_quota_of_google(body):
        yield _next_midnight(now)
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        yield now + milliseconds / 1000
    if "retry-after" in headers:
        yield _after(headers["retry-after"], now)
    for part in _parts(body):
        yield _time(part.get("resets_at"), now)
        for key in ("resets_in_seconds", "retry_after"):
            yield _after(part.get(key), now)
        yield _after(part.get("retryDelay"), now)
    if status in (None, 429):
        yield _reset_of_limits(headers, now)
        for part in _parts(body):
            if isinstance(inner := part.get("headers"), Mapping):
                sent = {str(name).lower(): str(value) for name, value in inner.items()}
                yield _reset_of_limits(sent, now)
    yield _time_in_text(" ".join(_texts(body)), now)


def _parts(body: object, depth: int = 4) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a JSON body, outermost first."""
    if isinstance(body, Mapping):
        yield body
    if depth and isinstance(body, Mapping | list):
        for each in body.values() if isinstance(body, Mapping) else body[:20]:
            yield from _parts(each, depth - 1)


def _texts(body: object) -> Iterator[str]:
    if isinstance(body, str):
        yield body
    for part in _parts(body):
        yield from (each for each in part.values() if isinstance(each, str))


def _is_daily_quota_of_google(body: object) -> bool:
    return any("PerDay" in str(part.get("quotaId", "")) for part in _parts(body, depth=6))


def _next_midnight(now: float) -> float:
    zone: tzinfo
    try:
        zone = ZoneInfo(GOOGLE_ZONE)
    except ZoneInfoNotFoundError:  # a machine without time zones; in summer, this is an hour late
        zone = timezone(timedelta(hours=-8))
    today = datetime.fromtimestamp(now, zone)
    midnight = today.replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight + timedelta(days=1)).timestamp()


# Headers -------------------------------------------------------------------------------------

_RESET = re.compile(r"(?:anthropic-ratelimit|x-ratelimit|ratelimit)-(?:reset(?:-.+)?|.+-reset)")


def _reset_of_limits(headers: Mapping[str, str], now: float) -> float | None:
    """Return when the last limit of which nothing is left is reset."""
    times: dict[str, float] = {}
    remaining: dict[str, float | None] = {}
    for name, value in headers.items():
        match = _RESET.fullmatch(name)
        at = _time(value, now) if match else None
        if match and at is not None:
            times[name] = at
            remaining[name] = _number(headers.get(name.replace("reset", "remaining")))
    used_up = [at for name, at in times.items() if remaining[name] == 0]
    if all(each is None for each in remaining.values()):
        used_up = [*times.values()]
    return max(used_up, default=None)


def _number(value: object) -> float | None:
    """Return a number of at least 0, or None."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _after(value: object, now: float) -> float | None:
    """Return the time of a delay in seconds, a duration such as ``14s``, or a date."""
    if (seconds := _number(value)) is not None:
        return now + seconds
    if not isinstance(value, str):
        return None
    if (seconds := duration_s(value)) is not None:
        return now + seconds
    try:
        return parsedate_to_datetime(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return _date(value)


_MILLISECONDS_FROM = 1e11
_UNIX_SECONDS_FROM = 1e9
"""From these values on, a number is a time in Unix milliseconds or seconds, else a delay."""


def _time(value: object, now: float) -> float | None:
    number = _number(value)
    if number is None or number < _UNIX_SECONDS_FROM:
        return _after(value, now)
    return number / 1000 if number >= _MILLISECONDS_FROM else number


def _date(text: str) -> float | None:
    """Return the time of a date in ISO 8601 with a time zone."""
    try:
        date = datetime.fromisoformat(text.strip())
        return date.timestamp() if date.tzinfo else None
    except (ValueError, OverflowError):
        return None


# Texts ---------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"\d{1,12}(?:\.\d{1,12})?"
_UNIT = r"(?:milliseconds?|ms|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])"
_ONE = rf"({_NUMBER})\s?({_UNIT})"
_WHOLE = rf"(?:{_NUMBER}\s?{_UNIT}(?:\s?and\s|,?\s)?)+"
_IN = re.compile(
    r"(?:try again|retry|retrying|available|available again|resets?|wait|waiting)"
    rf"\s(?:(?:in|after|for)\s)?(?:about\s)?({_WHOLE})",
    re.I,
)
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)"
)
_EPOCH = re.compile(r"\blimit reached\|(\d{10})\b")
_CLOCK = re.compile(
    r"\b(?:until|at|resets)\s(\d{1,2})(?::(\d\d)|(?=\s?[ap]m))\s?(am|pm)?"
    r"\s?\(?(UTC|GMT|[a-z]{2,20}/[a-z_/+-]{2,40})\b",
    re.I,
)


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration, or None if the text is something else.

    Example:
        >>> duration_s("3h20m"), duration_s("7m12.5s"), duration_s("120ms"), duration_s("soon")
        (12000.0, 432.5, 0.12, None)
    """
    text = text.strip().lower()
    if not re.fullmatch(_WHOLE, text):
        return None
    return sum(float(number) * _unit_s(unit) for number, unit in re.findall(_ONE, text))


def _unit_s(unit: str) -> float:
    return _UNITS["ms" if unit.startswith(("ms", "milli")) else unit[0]]


def _time_in_text(text: str, now: float) -> float | None:
    text = text[:MAX_TEXT]
    if match := _EPOCH.search(text):
        return float(match[1])
    if match := _DATE.search(text):
        return _date(re.sub(r"\s?(?:UTC|GMT)$", "+00:00", match[0]))
    if match := _IN.search(text):
        return now + (duration_s(match[1]) or 0.0)
    if match := _CLOCK.search(text):
        hour, minute = int(match[1]), int(match[2] or 0)
        return _next_clock_time(hour, minute, (match[3] or "").lower(), match[4], now)
    return None


def _next_clock_time(hour: int, minute: int, half: str, zone: str, now: float) -> float | None:
    """Return the next time at which the clock shows this time in a time zone."""
    try:
        clock_zone = UTC if zone.upper() in ("UTC", "GMT") else ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    if hour > 23 or minute > 59:
        return None
    today = datetime.fromtimestamp(now, clock_zone)
    at = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (at if at > today else at + timedelta(days=1)).timestamp()
