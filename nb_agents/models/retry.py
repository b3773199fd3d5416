"""Retries of failed model calls, and spacing of calls that share a server.

The loop that retries is in `nb_agents.agents.model_runner`, with a stop's checkpoint before each
attempt and during each wait. A server that answers "too many requests" slows down all calls to it
of this process, so that the hundred agents of a sweep don't each find out by themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nb_agents.errors import UserError
from nb_agents.models.backend import Backend, BrokenReplyError
from nb_agents.models.failures import limit_in, status_of

Backoff = Literal["none", "linear", "exponential"]
"""How the waits between attempts grow: d, d, d; d, 2d, 3d; d, 2d, 4d."""

MAX_DELAY_S = 60.0
"""Longest wait; a server that asks for more counts as down for this run."""

_TRANSIENT_STATUS = {408, 409, 425, 429, *range(500, 600)}
"""Transient statuses, for errors that pydantic-ai has no category for."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry policy of failed model calls: how often, and after how long.

    Attributes:
        attempts: How many tries may follow the first; 0 means none.
        delay: Seconds before the first of them.
        backoff: How the delay grows.
        max_delay: Seconds that it grows to; also the longest wait that a server may ask for. None
            means `MAX_DELAY_S`.
        max_silence: Seconds without a word after which a model's reply counts as lost. None means
            300: a reasoning model may think for minutes.
        on_retry: Called with the error and the number of the try that comes, from 1.
        should_retry: Called with the error: whether it is tried again. By default what passes is: a
            server that is overloaded or down, a connection that broke.

    Raises:
        UserError: A number is out of range, or the backoff has no such name.

    Example:
        >>> [Retry(3, delay=2.0, backoff="linear").delay_s(attempt) for attempt in (1, 2, 3)]
        [2.0, 4.0, 6.0]
    """

    attempts: int = 3
    delay: float = 0.5
    backoff: Backoff = "none"
    max_delay: float | None = None
    on_retry: Callable[[Exception, int], object] | None = None
    should_retry: Callable[[Exception], object] | None = None
    max_silence: float | None = None

    def __post_init__(self) -> None:
        if self.backoff not in _GROWTH:
            known = ", ".join(_GROWTH)
            raise UserError(f"There is no backoff {self.backoff!r}. There are: {known}.")
        if self.attempts < 0:
            raise UserError(f"Retry has {self.attempts} attempts; give 0 or more.")
        for name, seconds in (("delay", self.delay), ("max_delay", self.max_delay)):
            if seconds is not None and not 0 <= seconds < math.inf:
                raise UserError(f"Retry's {name} is {seconds!r} seconds; give a number from 0.")
        if self.max_silence is not None and not 0 < self.max_silence < math.inf:
            raise UserError(
                f"Retry's max_silence is {self.max_silence!r} seconds; give a number over 0."
            )

    @property
    def longest_s(self) -> float:
        """The longest wait, in seconds."""
        return MAX_DELAY_S if self.max_delay is None else self.max_delay

    def delay_s(self, attempt: int) -> float:
        """Return the wait before a try.

        Args:
            attempt: Which one after the first, from 1.

        Returns:
            Seconds.
        """
        # A thousandth try must not overflow: no wait grows longer than that.
        factor = _GROWTH[self.backoff](min(attempt, 64))
        return float(min(self.delay * factor, self.longest_s))


_GROWTH: dict[str, Callable[[int], int]] = {
    "none": lambda attempt: 1,
    "linear": lambda attempt: attempt,
    "exponential": lambda attempt: 2 ** (attempt - 1),
}

DEFAULT_RETRY = Retry(backoff="exponential")
"""The default policy."""


def retry_delay_s(
    error: Exception, attempt: int, retry: Retry | None = None, wanted: bool | None = None
) -> float | None:
    """Decide whether a failed call is tried again.

    Args:
        error: What pydantic-ai (or the connection) raised.
        attempt: How many attempts were made, from 1.
        retry: The rules, by default `DEFAULT_RETRY`; its functions are not called here.
        wanted: What ``should_retry`` said; None leaves it to `is_transient`.

    Returns:
        Seconds to wait, or None to give up: the request itself was refused (401, 400, …), the
        quota is spent, attempts are used up, or the server asks for too long a wait.
    """
    retry = retry or DEFAULT_RETRY
    is_wanted = is_transient(error) if wanted is None else wanted
    if attempt > retry.attempts or not is_wanted:
        return None
    asked = getattr(error, "retry_after", None)
    if asked is not None:
        return float(asked) if asked <= retry.longest_s else None
    return retry.delay_s(attempt)


def is_transient(error: Exception) -> bool:
    """Return whether a retry of a failed call may succeed.

    Args:
        error: What pydantic-ai (or the connection) raised.
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
    if isinstance(error, final):
        return False
    # An error of a kind that the provider did not name, such as one sent inside an open stream.
    is_unnamed = type(error) is px.ModelAPIError
    return is_unnamed or isinstance(error, transient) or status_of(error) in _TRANSIENT_STATUS


FIRST_GAP_S = 0.05
MAX_GAP_S = 5.0
EASE = 0.8
"""Factor by which a successful call shrinks the gap; after some twenty it is gone."""


class Pace:
    """Spaces the calls to one server; in seconds of the loop's clock."""

    def __init__(self) -> None:
        self._next_at = -math.inf
        self._gap_s = 0.0

    def wait_s(self, now: float) -> float:
        """Reserve the next slot for a call to the server; return the seconds until then."""
        at = max(now, self._next_at)
        if self._gap_s:
            self._next_at = at + self._gap_s
        return at - now

    def throttled(self, now: float, wait_s: float) -> None:
        """Record that the server refused a call as one too many, and the caller's wait."""
        self._gap_s = min(max(2 * self._gap_s, FIRST_GAP_S), MAX_GAP_S)
        self._next_at = max(self._next_at, now + wait_s)

    def succeeded(self) -> None:
        """Record that a call succeeded: the gap between calls shrinks."""
        self._gap_s *= EASE
        if self._gap_s < FIRST_GAP_S / 2:
            self._gap_s = 0.0


_paces: dict[str, Pace] = {}


def pace_of(backend: Backend) -> Pace:
    """Return the pace of a backend's server; a backend without a server has one of its own."""
    server = backend.server
    return _paces.setdefault(server, Pace()) if server else Pace()
