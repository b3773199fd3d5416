"""When a provider accepts calls again: headers, bodies and texts of error responses."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import exceptions as px

from nb_agents.models.retry_time import accepted_at
from tests.kit.models import MAX_PROBE_S, AgentRefusedError, Wait, quota_wait

NOW = datetime(2026, 11, 28, 17, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


def _seconds(headers: dict[str, str] | None = None, body: Any = None, status: int = 429) -> Any:
    at = accepted_at(status, headers, body, NOW)
    return None if at is None else round(at - NOW, 3)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": "Sat, 28 Nov 2026 20:00:00 GMT"}, 3 * HOUR),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "Fri, 27 Nov 2026 20:00:00 GMT"}, None),
        # OpenAI and Groq: only the limit of which nothing is left counts.
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-remaining-tokens": "5",
                "x-ratelimit-reset-tokens": "20h",
            },
            360,
        ),
        ({"x-ratelimit-reset-requests": "2m59.56s", "x-ratelimit-reset-tokens": "7.66s"}, 179.56),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "20h"}, None),
        # Cerebras
        (
            {
                "x-ratelimit-remaining-requests-day": "0",
                "x-ratelimit-reset-requests-day": "33011.38",
            },
            33011.38,
        ),
        # OpenRouter, GitHub, and the IETF draft
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{(NOW + 60) * 1000:.0f}"}, 60),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{NOW + 90:.0f}"}, 90),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "42"}, 42),
        # Anthropic
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "0",
                "anthropic-ratelimit-input-tokens-reset": "2026-11-28T18:00:00Z",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-requests-reset": "2026-11-28T23:00:00Z",
            },
            HOUR,
        ),
        ({"anthropic-ratelimit-unified-reset": f"{NOW + 5 * HOUR:.0f}"}, 5 * HOUR),
    ],
)
def test_time_is_read_from_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert _seconds(headers) == seconds


def test_limits_in_headers_count_only_for_a_rate_limit() -> None:
    assert _seconds({"x-ratelimit-reset-requests": "6m0s"}, status=500) is None
    assert _seconds({"retry-after": "30"}, status=503) == 30


def _google(*details: Any) -> Any:
    return {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [*details]}}


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (_google({"@type": "RetryInfo", "retryDelay": "14s"}), 14),
        (
            _google(
                {"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]},
                {"@type": "RetryInfo", "retryDelay": "14s"},
            ),
            15 * HOUR,  # midnight in Los Angeles
        ),
        ({"error": {"type": "usage_limit_reached", "resets_in_seconds": 7200}}, 2 * HOUR),
        ({"error": {"type": "usage_limit_reached", "resets_at": NOW + 30}}, 30),
        (
            {
                "error": {
                    "message": "Rate limit exceeded: free-models-per-day",
                    "metadata": {
                        "headers": {
                            "X-RateLimit-Remaining": "0",
                            "X-RateLimit-Reset": f"{(NOW + HOUR) * 1000:.0f}",
                        }
                    },
                }
            },
            HOUR,
        ),
    ],
)
def test_time_is_read_from_the_body(body: Any, seconds: float) -> None:
    assert _seconds({}, body) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Rate limit reached for gpt-5 on tokens per min. Please try again in 20s. Visit", 20),
        ("Limit 500000, Used 498000. Please try again in 7m12.5s. Need more tokens?", 432.5),
        ("Please retry in 38.5s.", 38.5),
        ("Try again in 3h20m", 12000),
        ("Try again in 350ms.", 0.35),
        ("Too many requests. Please wait 5 minutes and 30 seconds.", 330),
        ("You can retry after 1 hour", HOUR),
        ("Claude AI usage limit reached|1795899600", 1795899600 - NOW),
        ("The quota resets at 2026-11-29T03:00:00Z", 10 * HOUR),
        ("Out of quota until 03:00 UTC.", 10 * HOUR),
        ("Your limit resets at 7:30 pm (UTC)", 2.5 * HOUR),
        ("You've hit your limit · resets 3am (Europe/Berlin)", 9 * HOUR),
        ("You've hit your limit · resets 7:30pm (America/New_York)", 7.5 * HOUR),
        ("You've hit your limit · resets 3am (Nowhere/Land)", None),
        ("You exceeded your current quota, please check your plan.", None),
        ("Try again in 5 miles", None),
        ("Try again later", None),
        ("resets at 99:99 UTC", None),
    ],
)
def test_time_is_read_from_known_texts(text: str, seconds: float | None) -> None:
    assert _seconds(None, {"error": {"message": text}}) == seconds
    assert _seconds(None, text) == seconds


def test_unexpected_bodies_give_no_time() -> None:
    deep: Any = {}
    for _ in range(2000):
        deep = {"error": deep}
    bodies: list[Any] = [deep, [], 7, {"error": {"resets_at": 10**400}}, "9" * 100_000, {1: {2: 3}}]
    for body in bodies:
        assert _seconds(None, body) is None


LIMITED = px.ModelHTTPError.for_category(
    px.ModelRateLimitError, status_code=429, model_name="m", retry_after=600.0
)
BUSY = px.ModelHTTPError.for_category(
    px.ModelRateLimitError, status_code=429, model_name="m", body={"error": "slow down"}
)
DOWN = px.ModelConnectionError("m", "refused")
SPENT = px.ModelQuotaExceededError("m", "no credit")
SPENT_UNTIL = px.ModelHTTPError.for_category(
    px.ModelQuotaExceededError,
    status_code=429,
    model_name="m",
    body={"error": {"message": "Try again in 1h."}},
)


@pytest.mark.parametrize(
    ("error", "waited_s", "limit_s", "wait"),
    [
        (LIMITED, 0, 0, None),
        (LIMITED, 0, 600, Wait(600, "quota", 600)),
        (LIMITED, 0, 599, None),
        (LIMITED, 500, 700, None),  # only 200 s are left
        (SPENT_UNTIL, 0, 2 * HOUR, Wait(HOUR, "quota", 2 * HOUR)),
        (SPENT, 0, 2 * HOUR, None),  # waiting does not bring credit
        (BUSY, 10, HOUR, Wait(5, "quota", HOUR)),
        (DOWN, 0, HOUR, Wait(0.5, "server", HOUR)),
        (DOWN, 100, HOUR, Wait(50, "server", HOUR)),
        (DOWN, 3000, HOUR, Wait(MAX_PROBE_S, "server", HOUR)),
        (AgentRefusedError("ada", "no", 429), 0, HOUR, Wait(30, "quota", HOUR)),
        (AgentRefusedError("ada", "no", 503), 100, HOUR, Wait(50, "server", HOUR)),
        (AgentRefusedError("ada", "no", 429, "Try again in 1m."), 0, HOUR, Wait(60, "quota", HOUR)),
        (DOWN, 3590, HOUR, Wait(10, "server", HOUR)),
        (DOWN, 3600, HOUR, None),
        (px.ModelAuthenticationError("m", "x"), 0, HOUR, None),
        (px.ModelContextWindowExceededError("m", "x"), 0, HOUR, None),
        (ValueError("a defect"), 0, HOUR, None),
    ],
)
def test_call_waits_within_the_limit_for_a_temporary_failure(
    error: Exception, waited_s: float, limit_s: float, wait: Wait | None
) -> None:
    expected = wait and wait._replace(waited_s=waited_s)
    assert quota_wait(error, waited_s, limit_s, NOW, delay_s=0.5) == expected
