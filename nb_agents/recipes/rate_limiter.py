"""How fast a recipe's agents may call models, and how long its sub-recipes may take.

Calls are at most so many at a time, and not too soon after each other. A sub-recipe that has a
limit has a clock, and what stands under it is stopped through a token of its own, so that all that
hears a stop of the run hears this one, too: streams, commands, tools in threads.

Source: the section ``rate_limiting`` of Amplifier's recipes; the outermost recipe's holds for all.
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
from nb_agents.config import recipe_values as ranges
from nb_agents.config.recipe_values import Backoff, Number, Range, RateLimiting
from nb_agents.errors import RecipeError
from nb_agents.recipes.tasks import Limit
from nb_agents.recipes.template import render
from nb_agents.recipes.units import is_within
from nb_agents.service_loops import ServiceLoop

_UNLIMITED = 1_000_000

_BACKOFF = {
    "initial_delay_ms": ranges.INITIAL_DELAY_MS,
    "max_delay_ms": ranges.INITIAL_DELAY_MS,
    "multiplier": ranges.FACTOR,
    "reset_after_success": ranges.SUCCESSES,
}

STILL_S = 0.5
"""Resolution of the time in which a clock stands still, seconds."""


@dataclass(frozen=True)
class Throttle:
    """How long calls wait because a server said "too many".

    Attributes:
        delay_s: Seconds before each call.
        successes: Calls in a row that succeeded since.
    """

    delay_s: float = 0.0
    successes: int = 0


def after_throttling(slow: Throttle, backoff: Backoff) -> Throttle:
    """Return the throttle after a server said "too many requests".

    Args:
        slow: As it was.
        backoff: How it grows; its numbers are filled in.
    """
    if not backoff.enabled:
        return slow
    first, longest = float(backoff.initial_delay_ms) / 1000, float(backoff.max_delay_ms) / 1000
    grown = slow.delay_s * float(backoff.multiplier) or first
    return Throttle(min(grown, longest))


def after_success(slow: Throttle, backoff: Backoff) -> Throttle:
    """Return the throttle after a call that succeeded.

    Args:
        slow: As it was.
        backoff: When it ends; its numbers are filled in.
    """
    successes = slow.successes + 1
    if successes >= float(backoff.reset_after_success):
        return Throttle()
    return replace(slow, successes=successes)


class RateLimiter:
    """Lets agent steps begin; on the loop.

    Args:
        limits: What the recipe says, or None.
        between_ms: Milliseconds that must lie between the end of a call and the next one's
            beginning, and between the beginnings of parallel ones.
        context: Variables for numbers that are templates.

    Attributes:
        next_at: Before this moment of the loop's clock no call begins.

    Raises:
        RecipeError: A template gives no such number.
    """

    def __init__(
        self, limits: RateLimiting | None, between_ms: Number, context: Mapping[str, Any]
    ) -> None:
        given = limits or RateLimiting()
        self._backoff = _filled_in(given.backoff, context)
        most = given.max_concurrent_llm
        count = _number(ranges.MAX_CONCURRENT, _UNLIMITED if most is None else most, context)
        self._slots = anyio.Semaphore(int(count))
        delays_ms = (between_ms, given.min_delay_ms)
        self._between_s = max(_number(ranges.MIN_DELAY_MS, d, context) for d in delays_ms) / 1000
        self._slow = Throttle()
        self.next_at = -math.inf

    @asynccontextmanager
    async def turn(self, boundary: StopScope) -> AsyncIterator[None]:
        """Wait for a slot and for the time, and hold the slot within the block.

        Raises:
            AgentStopped: A stop was asked for meanwhile.
        """
        await self._take_slot(boundary)
        try:
            await self._wait(boundary)
            yield
        finally:
            self._wait_from(anyio.current_time())
            self._slots.release()

    async def _take_slot(self, boundary: StopScope) -> None:
        """Wait for a slot; one that comes together with a stop is released again."""
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
        await boundary.sleep(at - now)

    def _wait_from(self, at: float) -> None:
        """Delay the next call until long enough after one that began or ended at this time."""
        self.next_at = max(self.next_at, at + self._between_s + self._slow.delay_s)

    def succeeded(self) -> None:
        """Record that a call succeeded."""
        self._slow = after_success(self._slow, self._backoff)

    def throttled(self) -> None:
        """Record that a server said "too many requests": the next step waits already."""
        self._slow = after_throttling(self._slow, self._backoff)
        self.next_at = max(self.next_at, anyio.current_time() + self._slow.delay_s)


def _filled_in(backoff: Backoff, context: Mapping[str, Any]) -> Backoff:
    found = {
        key: _number(range_, getattr(backoff, key), context) for key, range_ in _BACKOFF.items()
    }
    return backoff.model_copy(update=found)


def _number(range_: Range, value: Number, context: Mapping[str, Any]) -> float:
    """Return a number; one that is no template was checked when the file was read."""
    if not isinstance(value, str):
        return value
    try:
        return range_.number(render(value, context))
    except ValueError as exc:
        raise RecipeError(f"{value} can't be used in rate_limiting: {exc}.") from None


@dataclass
class _Clock:
    """A clock that goes, and the token of all that stands under it."""

    token: CancelToken
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class SubRecipeTimeouts:
    """Times the called recipes of one run, from where each begins in it. Lives on the loop.

    As with the time limit of a whole run, neither a pause counts nor the time in which a person is
    asked: here, while that is all that a recipe has in hand.

    Args:
        token: The run's.
        only_waits: Tells whether the recipe at an address has nothing in hand but what waits
            for a person.
        over: Given the address of a recipe whose time is over, and a sentence about it, before all
            that it has in hand is cut.
    """

    def __init__(
        self,
        token: CancelToken,
        only_waits: Callable[[str], bool],
        over: Callable[[str, str], None],
    ) -> None:
        self._token = token
        self._only_waits = only_waits
        self._over = over
        self._clocks: dict[str, _Clock] = {}

    def keep(self, group: anyio.abc.TaskGroup, limits: Sequence[Limit]) -> None:
        """Run a clock for each of these limits, and for no other.

        Args:
            group: Where clocks go.
            limits: Those of the recipes that are under way, the outer ones first.
        """
        for address in self._clocks.keys() - {limit.address for limit in limits}:
            self._clocks.pop(address).scope.cancel()
        for limit in limits:
            if limit.address not in self._clocks:
                clock = _Clock(self.token(limit.address).child(limit.address))
                self._clocks[limit.address] = clock
                group.start_soon(self._go, limit, clock, name=f"clock of {limit.address}")

    def token(self, address: str) -> CancelToken:
        """Return the token of the work at an address: that of the innermost recipe with a clock."""
        holders = [each for each in self._clocks if is_within(address, each)]
        return self._clocks[max(holders, key=len)].token if holders else self._token

    async def _go(self, limit: Limit, clock: _Clock) -> None:
        left_s = limit.timeout_s
        with clock.scope:
            while left_s > 0:
                began = anyio.current_time()
                await anyio.sleep(min(left_s, STILL_S))
                stands = False
                with ServiceLoop.CLOCKS.item():
                    stands = current_policy().hold.is_on or self._only_waits(limit.address)
                if not stands:
                    left_s -= anyio.current_time() - began
            if self._clocks.get(limit.address) is not clock:
                return  # the recipe has ended in this very moment
            why = f"The recipe took longer than {limit.timeout_s:g} s."
            self._over(limit.address, why)
            clock.token.request(CancellationStatus.IMMEDIATE, "timeout", why)
