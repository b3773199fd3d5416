"""Tests of pauses: work waits at its boundary, and its clocks stop."""

import anyio
import pytest

from tests.kit.agents import PauseGate, RunPolicy, StopScope, bind_policy, current_policy
from tests.kit.runs import AgentStopped, CancellationStatus, CancelToken

pytestmark = pytest.mark.anyio


async def test_paused_work_waits_at_its_boundary() -> None:
    hold, done = PauseGate(), anyio.Event()

    async def work() -> None:
        with StopScope(CancelToken()) as boundary:
            await boundary.wait_if_paused()
            done.set()

    with bind_policy(RunPolicy(hold)):
        assert hold.pause() and not hold.pause()
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            assert not done.is_set()
            assert hold.unpause() and not hold.unpause()
    assert done.is_set()


async def test_time_limit_does_not_run_during_a_pause() -> None:
    hold, limit_s = PauseGate(), 1.0

    async def go_on_late() -> None:
        await anyio.sleep(1.5 * limit_s)
        hold.unpause()

    with bind_policy(RunPolicy(hold)):
        hold.pause()
        before = hold.clock()
        async with anyio.create_task_group() as group:
            group.start_soon(go_on_late)
            with StopScope(CancelToken()) as boundary, boundary.limit(limit_s) as clock:
                await boundary.wait_if_paused()
                assert hold.clock() - before < limit_s
                assert clock.deadline - anyio.current_time() > 0
                await anyio.sleep_forever()
    assert clock.cancelled_caught


@pytest.mark.parametrize("patient", [False, True])
async def test_a_graceful_stop_ends_the_waiting(patient: bool) -> None:
    hold, token = PauseGate(), CancelToken()
    with bind_policy(RunPolicy(hold)):
        hold.pause()
        with StopScope(token, ignore_graceful=patient) as boundary:
            token.request(CancellationStatus.REQUESTED, "api")
            with pytest.raises(AgentStopped):
                await boundary.wait_if_paused()


async def test_pause_outside_a_run_has_no_effect() -> None:
    assert not current_policy().hold.is_on
    with StopScope(CancelToken()) as boundary:
        await boundary.wait_if_paused()
