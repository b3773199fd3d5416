"""Decides when failed model calls are retried, and spaces out calls to the same server.

The retry loop is in `nb_agents.agents.model_runner`; it checks for a stop before each attempt and
during each wait. After a rate limit error, all calls from this process to that server slow down.
Otherwise each of a sweep's hundred agents would run into the limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nb_agents.callbacks import check_callbacks
from nb_agents.errors import ModelCallError, UserError
from nb_agents.models.backend import Backend, BrokenReplyError
from nb_agents.models.failures import is_throttled, is_too_long, limit_in, status_of
from nb_agents.models.retry_time import accepted_at

Backoff = Literal["none", "linear", "exponential"]
"""How the delay grows: d, d, d (none), d, 2d, 3d (linear) or d, 2d, 4d (exponential)."""

MAX_DELAY_S = 60.0
"""The longest wait in seconds. If a server asks for a longer one, the call fails."""

AGENT_PROBE_S = 30.0
"""The shortest delay for external agents, because each attempt adds a prompt to their session."""

_TRANSIENT_STATUS = {408, 409, 425, 429, *range(500, 600)}
"""HTTP statuses after which a retry may succeed, for errors without a pydantic-ai category."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How many times and how soon failed model calls are retried.

    Attributes:
        attempts: The maximum number of retries. 0 means none.
        delay: Seconds before the first retry.
        backoff: How the delay grows.
        max_delay: The longest delay in seconds, and the longest wait that a server may ask for.
            None means `MAX_DELAY_S`.
        max_silence: Seconds without new data after which a model's reply is considered lost. None
            means 300, because a reasoning model may think for minutes.
        on_retry: Called with the error and the number of the next retry, starting at 1.
        should_retry: Called with the error. Returns whether to retry. By default, temporary errors
            are retried, such as an overloaded or unavailable server or a lost connection.

    Raises:
        UserError: A number is out of range, or the backoff is unknown.

    Example:
        >>> [Retry(3, delay=2.0, backoff="linear").delay_s(attempt) for attempt in (1, 2, 3)]
        [2.0, 4.0, 6.0]
    """

    attempts: int = 3
    delay: float = 0.5
    backoff: Backoff = "none"
    max_delay: float | None = None
    on_retry: Callable[..., object] | None = None
    should_retry: Callable[..., object] | None = None
    max_silence: float | None = None

    def __post_init__(self) -> None:
        check_callbacks(self, on_retry=2, should_retry=1)
        if self.backoff not in _GROWTH:
            growths = ", ".join(_GROWTH)
            raise UserError(f"Unknown backoff {self.backoff!r}. Use one of: {growths}.")
        if self.attempts < 0:
            raise UserError(f"Retry has {self.attempts} attempts. Use 0 or more.")
        for name, seconds in (("delay", self.delay), ("max_delay", self.max_delay)):
            if seconds is not None and not 0 <= seconds < math.inf:
                raise UserError(f"Retry's {name} is {seconds!r} seconds. Use 0 or more.")
        if self.max_silence is not None and not 0 < self.max_silence < math.inf:
            raise UserError(
                f"Retry's max_silence is {self.max_silence!r} seconds. Use a number above 0."
            )

    @property
    def longest_s(self) -> float:
        """The longest wait, in seconds."""
        return MAX_DELAY_S if self.max_delay is None else self.max_delay

    def delay_s(self, attempt: int) -> float:
        """Return the delay in seconds before a retry.

        Args:
            attempt: The number of the retry, starting at 1.
        """
        # The delay stops growing at 64 retries, so that 2**n can't overflow a float.
        factor = _GROWTH[self.backoff](min(attempt, 64))
        return float(min(self.delay * factor, self.longest_s))


class AgentRefusedError(ModelCallError):
    """An external agent ended its prompt because its provider refuses calls or is down.

    External agents retry calls themselves, so only `quota_wait` applies to this error. This also
    holds for the agents of other frameworks, whose error is a subclass.

    Args:
        model: The agent's display name.
        message: Its error, as one sentence.
        status_code: The HTTP status that stands for the error: 429 for a rate limit or quota, and
            one of 500 to 599 for a server that is down.
        body: The parts of the error that may say when the provider accepts calls again.

    Attributes:
        probe_s: The shortest delay in seconds before a server that gives no time is tried again.
    """

    probe_s: float = AGENT_PROBE_S

    def __init__(self, model: str, message: str, status_code: int, body: object = None) -> None:
        super().__init__(model, message)
        self.status_code = status_code
        self.body = body


_GROWTH: dict[str, Callable[[int], int]] = {
    "none": lambda attempt: 1,
    "linear": lambda attempt: attempt,
    "exponential": lambda attempt: 2 ** (attempt - 1),
}

DEFAULT_RETRY = Retry(backoff="exponential")
"""The default policy."""


def retry_delay_s(
    error: Exception, attempt: int, retry: Retry | None = None, should_retry: bool | None = None
) -> float | None:
    """Return the seconds to wait before a failed call is retried, or None to give up.

    The result is None if the error is not transient (such as 400, 401 or a used-up quota), no
    retries are left, the server asks for too long a wait, or an external agent made the call.

    Args:
        error: The exception of pydantic-ai or of the connection.
        attempt: The number of attempts made, at least 1.
        retry: The policy; by default `DEFAULT_RETRY`. Its callbacks are not called here.
        should_retry: The result of ``should_retry``; None uses `is_transient`.
    """
    retry = retry or DEFAULT_RETRY
    is_wanted = is_transient(error) if should_retry is None else should_retry
    if attempt > retry.attempts or not is_wanted or isinstance(error, AgentRefusedError):
        return None
    requested_s = getattr(error, "retry_after", None)
    if requested_s is not None:
        return float(requested_s) if requested_s <= retry.longest_s else None
    return retry.delay_s(attempt)


def is_transient(error: Exception) -> bool:
    """Return whether a retry of a failed call may succeed.

    Args:
        error: The exception of pydantic-ai or of the connection.
    """
    import httpx2
    from pydantic_ai import exceptions as px

    error = limit_in(error) or error
    transient = (
        px.ModelRateLimitError,
        px.ModelUnavailableError,
        px.ModelServerError,
        px.ModelConnectionError,
        px.UnexpectedModelBehavior,
        BrokenReplyError,
        httpx2.TransportError,
        json.JSONDecodeError,
    )
    final = (px.ModelQuotaExceededError, px.ModelRequestRejectedError)
    if isinstance(error, final) or is_too_long(error):
        return False
    # An error without a category, such as one that is sent inside an open stream.
    is_uncategorized = type(error) is px.ModelAPIError
    is_known = isinstance(error, transient) or status_of(error) in _TRANSIENT_STATUS
    return is_uncategorized or is_known or is_throttled(error)


class Wait(NamedTuple):
    """The delay before the next attempt of a failed call.

    Attributes:
        delay_s: Seconds until the attempt.
        reason: "quota" if the call waits until its provider accepts calls again, "server" if it
            waits for a server that is down, or "" for an ordinary retry.
        limit_s: With a reason, the longest time in seconds that the call may wait in total.
        waited_s: With a reason, the seconds since the call first failed.
    """

    delay_s: float
    reason: Literal["", "quota", "server"] = ""
    limit_s: float = 0.0
    waited_s: float = 0.0


MIN_PROBE_S = 0.2
MAX_PROBE_S = 300.0
"""The shortest and longest delay in seconds before a server that gives no time is tried again."""


def quota_wait(
    error: Exception, waited_s: float, limit_s: float, now: float, delay_s: float = 0.0
) -> Wait | None:
    """Return how long to wait after the retries of a call, or None to give up.

    If the server gives a time, the call waits until then. Otherwise, it is tried again after half
    the time that it has waited, within `MIN_PROBE_S` and `MAX_PROBE_S`. An account without credit
    is not waited for, unless the server gives a time.

    Args:
        error: The exception of pydantic-ai or of the connection.
        waited_s: Seconds since the call first failed.
        limit_s: The longest time that a call may wait in total, in seconds.
        now: The current time, in Unix seconds.
        delay_s: The shortest delay, in seconds.
    """
    from pydantic_ai import exceptions as px

    left_s = limit_s - waited_s
    is_used_up = isinstance(error, px.ModelQuotaExceededError)
    is_quota = is_used_up or is_throttled(error)
    if left_s <= 0 or not (is_quota or is_transient(error)):
        return None
    at = time_to_retry(error, now)
    if is_used_up and at is None:
        return None
    reason: Literal["quota", "server"] = "quota" if is_quota else "server"
    shortest_s = error.probe_s if isinstance(error, AgentRefusedError) else MIN_PROBE_S
    probe_s = max(shortest_s, delay_s, min(waited_s / 2, MAX_PROBE_S))
    if at is None:
        return Wait(min(probe_s, left_s), reason, limit_s, waited_s)
    if at - now > left_s:
        return None
    # A server that repeats a time which has nearly come is not asked again immediately.
    return Wait(max(at - now, MIN_PROBE_S), reason, limit_s, waited_s)


def time_to_retry(error: Exception, now: float) -> float | None:
    """Return when a server accepts calls again, in Unix seconds, or None if it doesn't say.

    Args:
        error: The exception of pydantic-ai.
        now: The current time, in Unix seconds.
    """
    headers = getattr(error, "headers", None)
    at = accepted_at(status_of(error), headers, getattr(error, "body", None), now)
    requested_s: float | None = getattr(error, "retry_after", None)
    if at is None and requested_s is not None and 0 <= requested_s < math.inf:
        return now + requested_s
    return at


FIRST_GAP_S = 0.05
MAX_GAP_S = 5.0
EASE = 0.8
"""Factor by which each successful call shortens the gap. It reaches 0 after about twenty calls."""


class Pace:
    """Spaces out the calls to a server. Times are seconds on the event loop's clock."""

    def __init__(self) -> None:
        self._next_at = -math.inf
        self._gap_s = 0.0

    def wait_s(self, now: float) -> float:
        """Reserve the next slot for a call and return the seconds until that slot."""
        at = max(now, self._next_at)
        if self._gap_s:
            self._next_at = at + self._gap_s
        return at - now

    def throttled(self, now: float, wait_s: float) -> None:
        """Record a rate limit error and the seconds that the caller waits before its retry."""
        self._gap_s = min(max(2 * self._gap_s, FIRST_GAP_S), MAX_GAP_S)
        self._next_at = max(self._next_at, now + wait_s)

    def succeeded(self) -> None:
        """Record a successful call, which shortens the gap between calls."""
        self._gap_s *= EASE
        if self._gap_s < FIRST_GAP_S / 2:
            self._gap_s = 0.0


_paces: dict[str, Pace] = {}


def pace_of(backend: Backend) -> Pace:
    """Return the `Pace` shared by all calls to a backend's server.

    Without a server, return a new one.
    """
    server = backend.server
    return _paces.setdefault(server, Pace()) if server else Pace()
