"""Limits the rate of a recipe's model calls, and the duration of its sub-recipes.

There is a limit on concurrent calls and a minimum delay between calls. Each sub-recipe with a
timeout has a clock and a child of the run's cancel token, so its timeout reaches everything that a
stop of the run reaches: streams, commands and tools in threads.

Source: the section ``rate_limiting`` of Amplifier's recipes. The outermost recipe's section applies
to all.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from nb_agents.agents.stop_scope import StopScope, current_policy
from nb_agents.cancel import CancellationStatus, CancelToken
from nb_agents.config.template import render
from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes import recipe_values as ranges
from nb_agents.extensions.recipes.recipe_values import Backoff, Number, Range, RateLimiting
from nb_agents.extensions.recipes.tasks import Limit
from nb_agents.extensions.recipes.units import is_within
from nb_agents.service_loops import ServiceLoop

_UNLIMITED = 1_000_000

_BACKOFF = {
    "initial_delay_ms": ranges.INITIAL_DELAY_MS,
    "max_delay_ms": ranges.INITIAL_DELAY_MS,
    "multiplier": ranges.FACTOR,
    "reset_after_success": ranges.SUCCESSES,
}

PAUSE_CHECK_S = 0.5
"""Interval in seconds at which a clock checks whether it is paused."""


@dataclass(frozen=True)
class Throttle:
    """The delay before calls after a server replied "too many requests".

    Attributes:
        delay_s: Seconds before each call.
        successes: Number of consecutive successful calls since then.
    """

    delay_s: float = 0.0
    successes: int = 0


def after_throttling(throttle: Throttle, backoff: Backoff) -> Throttle:
    """Return the throttle after a server replied "too many requests".

    Args:
        throttle: The old throttle.
        backoff: How the delay grows, with its numbers resolved.
    """
    if not backoff.enabled:
        return throttle
    first, longest = float(backoff.initial_delay_ms) / 1000, float(backoff.max_delay_ms) / 1000
    grown = throttle.delay_s * float(backoff.multiplier) or first
    return Throttle(min(grown, longest))


def after_success(throttle: Throttle, backoff: Backoff) -> Throttle:
    """Return the throttle after a successful call.

    Args:
        throttle: The old throttle.
        backoff: When the delay ends, with its numbers resolved.
    """
    successes = throttle.successes + 1
    if successes >= float(backoff.reset_after_success):
        return Throttle()
    return replace(throttle, successes=successes)


class RateLimiter:
    """Delays agent steps to comply with a recipe's limits. Used on the event loop.

    Args:
        limits: The recipe's ``rate_limiting``, or None.
        between_ms: Minimum milliseconds between the end of a call and the start of the next, and
            between the starts of parallel calls.
        context: Variables for numbers that are templates.

    Attributes:
        next_at: Time on the loop's clock before which no call starts.

    Raises:
        RecipeError: A template does not evaluate to a valid number.
    """

    def __init__(
        self, limits: RateLimiting | None, between_ms: Number, context: Mapping[str, Any]
    ) -> None:
        settings = limits or RateLimiting()
        self._backoff = _filled_in(settings.backoff, context)
        limit = settings.max_concurrent_llm
        count = _number(ranges.MAX_CONCURRENT, _UNLIMITED if limit is None else limit, context)
        self._slots = anyio.Semaphore(int(count))
        delays_ms = (between_ms, settings.min_delay_ms)
        self._between_s = max(_number(ranges.MIN_DELAY_MS, d, context) for d in delays_ms) / 1000
        self._throttle = Throttle()
        self.next_at = -math.inf

    @asynccontextmanager
    async def turn(self, boundary: StopScope) -> AsyncIterator[None]:
        """Wait until a call may start, and hold its slot during the block.

        Raises:
            AgentStopped: The run was stopped while this waited.
        """
        await self._take_slot(boundary)
        try:
            await self._wait(boundary)
            yield
        finally:
            self._wait_from(anyio.current_time())
            self._slots.release()

    async def _take_slot(self, boundary: StopScope) -> None:
        """Wait for a slot. A slot granted at the same time as a stop is released again."""
        with suppress(anyio.WouldBlock):
            return self._slots.acquire_nowait()
        is_taken = False

        async def take() -> None:
            nonlocal is_taken
            await self._slots.acquire()
            is_taken = True

        try:
            await boundary.wait_or_stop(take)
        except BaseException:
            if is_taken:
                self._slots.release()
            raise

    async def _wait(self, boundary: StopScope) -> None:
        now = anyio.current_time()
        at = max(now, self.next_at)
        self._wait_from(at)
        await boundary.delay(at - now)

    def _wait_from(self, at: float) -> None:
        """Delay the next call after a call that started or ended at this time."""
        self.next_at = max(self.next_at, at + self._between_s + self._throttle.delay_s)

    def succeeded(self) -> None:
        """Record a successful call."""
        self._throttle = after_success(self._throttle, self._backoff)

    def throttled(self) -> None:
        """Record that a server replied "too many requests", and delay the next call."""
        self._throttle = after_throttling(self._throttle, self._backoff)
        self.next_at = max(self.next_at, anyio.current_time() + self._throttle.delay_s)


def _filled_in(backoff: Backoff, context: Mapping[str, Any]) -> Backoff:
    numbers = {
        key: _number(range_, getattr(backoff, key), context) for key, range_ in _BACKOFF.items()
    }
    return backoff.model_copy(update=numbers)


def _number(range_: Range, value: Number, context: Mapping[str, Any]) -> float:
    """Resolve a number that may be a template. Literals were validated when the file was loaded."""
    if not isinstance(value, str):
        return value
    try:
        return range_.number(render(value, context))
    except ValueError as exc:
        raise RecipeError(f"{value} can't be used in rate_limiting: {exc}.") from None


@dataclass
class _Clock:
    """A running clock, and the cancel token of the work it limits."""

    token: CancelToken
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class SubRecipeTimeouts:
    """Enforces the timeouts of a run's called recipes. Used on the event loop.

    As for a whole run, pauses do not count, nor does the time in which everything in a recipe is
    waiting for the user.

    Args:
        token: The run's cancel token.
        only_waits: Returns whether everything that runs in a recipe, given by its address, is
            waiting for the user.
        over: Called with the address of a recipe that timed out and a message, before its work is
            cancelled.
    """

    def __init__(
        self,
        token: CancelToken,
        only_waits: Callable[[str], bool],
        over: Callable[[str, str], None],
    ) -> None:
        self._token = token
        self._only_waits = only_waits
        self._on_timeout = over
        self._clocks: dict[str, _Clock] = {}

    def keep(self, group: anyio.abc.TaskGroup, limits: Sequence[Limit]) -> None:
        """Enforce exactly these time limits: start their clocks, and stop all others.

        Args:
            group: The task group for clocks.
            limits: The limits of the running recipes, outer ones first.
        """
        for address in self._clocks.keys() - {limit.address for limit in limits}:
            self._clocks.pop(address).scope.cancel()
        for limit in limits:
            if limit.address not in self._clocks:
                clock = _Clock(self.token(limit.address).child(limit.address))
                self._clocks[limit.address] = clock
                group.start_soon(self._run_clock, limit, clock, name=f"clock of {limit.address}")

    def token(self, address: str) -> CancelToken:
        """Return the token for work at an address: that of the innermost recipe with a clock."""
        holders = [each for each in self._clocks if is_within(address, each)]
        return self._clocks[max(holders, key=len)].token if holders else self._token

    async def _run_clock(self, limit: Limit, clock: _Clock) -> None:
        left_s = limit.timeout_s
        with clock.scope:
            while left_s > 0:
                started = anyio.current_time()
                await anyio.sleep(min(left_s, PAUSE_CHECK_S))
                is_paused = False
                with ServiceLoop.CLOCKS.item():
                    is_paused = current_policy().hold.is_on or self._only_waits(limit.address)
                if not is_paused:
                    left_s -= anyio.current_time() - started
            if self._clocks.get(limit.address) is not clock:
                return  # the recipe ended at the same moment
            why = f"The recipe took longer than {limit.timeout_s:g} s."
            self._on_timeout(limit.address, why)
            clock.token.request(CancellationStatus.IMMEDIATE, "timeout", why)
