"""The pace of agent steps: slots, and delays after "too many requests"."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from nb_agents.errors import RecipeError
from nb_agents.extensions.recipes.rate_limiter import (
    RateLimiter,
    Throttle,
    after_success,
    after_throttling,
)
from tests.kit.agents import StopScope
from tests.kit.recipes import Backoff, RateLimiting
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken
from tests.team_kit import WAIT_S

BACKOFF = Backoff(initial_delay_ms=1000, max_delay_ms=5000, multiplier=2, reset_after_success=3)


def test_each_rate_limit_error_doubles_the_delay_up_to_the_maximum() -> None:
    slow, delays = Throttle(), []
    for _ in range(4):
        slow = after_throttling(slow, BACKOFF)
        delays.append(slow.delay_s)

    assert delays == [1, 2, 4, 5]


def test_delay_ends_after_enough_successes_in_a_row() -> None:
    slow = after_throttling(Throttle(), BACKOFF)
    slow = after_success(after_success(slow, BACKOFF), BACKOFF)
    assert slow == Throttle(1, 2)

    assert after_success(slow, BACKOFF) == Throttle()
    assert after_throttling(slow, BACKOFF) == Throttle(2, 0)


def test_no_delay_if_backoff_is_off() -> None:
    assert after_throttling(Throttle(), Backoff(enabled=False)) == Throttle()


@pytest.mark.parametrize(
    "limits, between",
    [
        ({"max_concurrent_llm": "{{n}}"}, 0),
        ({"min_delay_ms": "{{n}}"}, 0),
        ({"backoff": {"multiplier": "{{n}}"}}, 0),
        ({}, "{{n}}"),
    ],
)
def test_template_without_a_number_is_an_error(limits: Any, between: Any) -> None:
    with pytest.raises(RecipeError, match=r"\{\{n\}\} can't be used in rate_limiting: 'many' is"):
        RateLimiter(RateLimiting.model_validate(limits), between, {"n": "many"})


async def _most_at_the_same_time(pace: RateLimiter, count: int) -> int:
    """Begin steps, and return how many ran when no more could begin."""
    inside = most = 0
    go_on = anyio.Event()

    async def one() -> None:
        nonlocal inside, most
        with StopScope(CancelToken("r")) as boundary:
            async with pace.turn(boundary):
                inside += 1
                most = max(most, inside)
                await go_on.wait()
                inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(one)
        await anyio.wait_all_tasks_blocked()
        go_on.set()
    return most


@pytest.mark.parametrize("given, most", [(2, 2), ("{{n}}", 3), (None, 5)])
async def test_number_of_concurrent_steps_is_limited(given: Any, most: int) -> None:
    limits = RateLimiting(max_concurrent_llm=given)

    assert await _most_at_the_same_time(RateLimiter(limits, 0, {"n": "3"}), 5) == most


async def test_recipe_without_limits_has_none() -> None:
    assert await _most_at_the_same_time(RateLimiter(None, 0, {}), 50) == 50


async def test_slot_is_released_after_a_failure() -> None:
    pace = RateLimiter(RateLimiting(max_concurrent_llm=1), 0, {})
    with StopScope(CancelToken("r")) as boundary:
        with pytest.raises(ZeroDivisionError):
            async with pace.turn(boundary):
                raise ZeroDivisionError

    assert await _most_at_the_same_time(pace, 3) == 1


@pytest.mark.parametrize("turns", range(6))
async def test_slot_that_arrives_with_a_stop_is_released(turns: int) -> None:
    pace = RateLimiter(RateLimiting(max_concurrent_llm=1), 0, {})
    token = CancelToken("sub-recipe")
    leave = anyio.Event()

    async def hold() -> None:
        with StopScope(CancelToken("r")) as boundary:
            async with pace.turn(boundary):
                await leave.wait()

    async def stopped() -> None:
        with StopScope(token) as boundary, suppress(AgentStopped):
            async with pace.turn(boundary):
                pass

    async with anyio.create_task_group() as group:
        for each in (hold, stopped):
            group.start_soon(each)
            await anyio.wait_all_tasks_blocked()
        leave.set()
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        token.request(CancellationStatus.REQUESTED, "timeout")

    with anyio.fail_after(WAIT_S):
        await _turn(pace)


@pytest.mark.parametrize("limits, between", [({"min_delay_ms": 60_000}, 0), ({}, 60_000)])
async def test_stop_ends_the_delay_of_the_next_step(limits: Any, between: int) -> None:
    pace = RateLimiter(RateLimiting.model_validate(limits), between, {})
    await _second_is_stopped(pace)


async def test_next_step_waits_after_a_rate_limit_error() -> None:
    pace = RateLimiter(RateLimiting(backoff=Backoff(initial_delay_ms=60_000)), 0, {})
    await _second_is_stopped(pace, throttled=True)


async def _second_is_stopped(pace: RateLimiter, throttled: bool = False) -> None:
    token = CancelToken("r")
    entered: list[int] = []

    async def step(number: int) -> None:
        with StopScope(token) as boundary:
            try:
                async with pace.turn(boundary):
                    entered.append(number)
            except AgentStopped:
                entered.append(-number)

    await step(1)
    if throttled:
        pace.throttled()
    async with anyio.create_task_group() as group:
        group.start_soon(step, 2)
        await anyio.wait_all_tasks_blocked()
        assert entered == [1]
        token.request(CancellationStatus.REQUESTED, "api")
    assert entered == [1, -2]


async def test_no_step_waits_after_enough_successes() -> None:
    limits = RateLimiting(backoff=Backoff(initial_delay_ms=100, reset_after_success=1))
    pace = RateLimiter(limits, 0, {})
    pace.throttled()
    pace.succeeded()
    await _turn(pace)  # waits for as long as the server asked

    assert await _most_at_the_same_time(pace, 3) == 3


async def _turn(pace: RateLimiter) -> None:
    with StopScope(CancelToken("r")) as boundary:
        async with pace.turn(boundary):
            pass


async def test_parallel_call_is_delayed_too() -> None:
    pace = RateLimiter(RateLimiting(min_delay_ms=60_000), 0, {})
    token, begun = CancelToken("r"), []

    async def call(number: int) -> None:
        with suppress(AgentStopped), StopScope(token) as boundary:
            async with pace.turn(boundary):
                begun.append(number)
                await boundary.sleep(math.inf)

    async with anyio.create_task_group() as group:
        group.start_soon(call, 1)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(call, 2)
        await anyio.wait_all_tasks_blocked()
        assert begun == [1]
        token.request(CancellationStatus.REQUESTED, "api")
    assert begun == [1]


async def test_delay_counts_from_the_end_of_a_call() -> None:
    pace = RateLimiter(RateLimiting(min_delay_ms=60_000), 0, {})
    async with anyio.create_task_group() as group:
        ended, is_in_turn = anyio.Event(), anyio.Event()

        async def call() -> None:
            with StopScope(CancelToken("r")) as boundary:
                async with pace.turn(boundary):
                    is_in_turn.set()
                    await ended.wait()

        group.start_soon(call)
        await is_in_turn.wait()
        at_begin = pace.next_at
        ended.set()
    assert pace.next_at > at_begin
