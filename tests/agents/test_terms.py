"""A pause holds work still at its boundary, and stops its clocks."""

import anyio
import pytest

from nb_agents.agents.boundary import Boundary
from nb_agents.agents.terms import Hold, Terms, bind_terms, terms
from nb_agents.cancel import AgentStopped, CancellationStatus, CancelToken

pytestmark = pytest.mark.anyio


async def test_work_waits_at_its_boundary_until_it_may_go_on() -> None:
    hold, done = Hold(), anyio.Event()

    async def work() -> None:
        with Boundary(CancelToken()) as boundary:
            await boundary.ready()
            done.set()

    with bind_terms(Terms(hold)):
        assert hold.pause() and not hold.pause()
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            assert not done.is_set()
            assert hold.go_on() and not hold.go_on()
    assert done.is_set()


async def test_the_time_of_a_block_stands_still_meanwhile_and_then_goes_on() -> None:
    hold, limit_s = Hold(), 0.05

    async def go_on_late() -> None:
        await anyio.sleep(3 * limit_s)
        hold.go_on()

    with bind_terms(Terms(hold)):
        hold.pause()
        before = hold.clock()
        async with anyio.create_task_group() as group:
            group.start_soon(go_on_late)
            with Boundary(CancelToken()) as boundary, boundary.limit(limit_s) as clock:
                await boundary.ready()
                assert hold.clock() - before < limit_s
                assert clock.deadline - anyio.current_time() > 0
                await anyio.sleep_forever()
    assert clock.cancelled_caught


@pytest.mark.parametrize("patient", [False, True])
async def test_a_graceful_stop_ends_the_waiting(patient: bool) -> None:
    hold, token = Hold(), CancelToken()
    with bind_terms(Terms(hold)):
        hold.pause()
        with Boundary(token, patient=patient) as boundary:
            token.request(CancellationStatus.REQUESTED, "api")
            with pytest.raises(AgentStopped):
                await boundary.ready()


async def test_outside_a_run_nothing_holds_still() -> None:
    assert not terms().hold.is_on
    with Boundary(CancelToken()) as boundary:
        await boundary.ready()
