"""Cancel tokens: levels, the tree, listeners and threads."""

import gc
import threading
import time
import weakref
from collections import Counter

import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from nb_agents.cancel import (
    AgentStopped,
    CancellationStatus,
    CancelToken,
    StopRequest,
    bind,
    checkpoint,
    should_stop,
)

NONE, REQUESTED, IMMEDIATE, CANCELLED = CancellationStatus
LEVELS = st.sampled_from(CancellationStatus)


@given(st.lists(LEVELS))
def test_the_level_only_rises(asked: list[CancellationStatus]) -> None:
    token, highest = CancelToken(), NONE
    for level in asked:
        assert token.request(level, "api") is (level > highest)
        highest = max(highest, level)
        assert token.status is highest


def test_first_request_is_kept() -> None:
    token = CancelToken()
    token.request(REQUESTED, "widget", "wrong path")
    token.request(IMMEDIATE, "interrupt", "now")
    assert token.first_request == StopRequest(REQUESTED, "widget", "wrong path")


def test_stop_reaches_descendants_but_not_siblings() -> None:
    run = CancelToken("run")
    ada, ben = run.child("ada"), run.child("ben")
    tool = ada.child("tool")
    ada.request(REQUESTED, "widget")
    assert [t.status for t in (run, ada, tool, ben)] == [NONE, REQUESTED, REQUESTED, NONE]
    run.request(IMMEDIATE, "api")
    assert {t.status for t in (run, ada, tool, ben)} == {IMMEDIATE}


def test_child_created_after_a_stop_inherits_it() -> None:
    run = CancelToken()
    run.request(REQUESTED, "timeout", "time is over")
    late = run.child("late").child("later")
    assert late.status is REQUESTED
    assert late.first_request == run.first_request
    with pytest.raises(AgentStopped):
        late.checkpoint()


def test_listener_is_called_once_per_rise() -> None:
    token, heard = CancelToken(), []
    token.on_request(lambda request: heard.append(request.level))
    for level in (REQUESTED, REQUESTED, IMMEDIATE, REQUESTED, CANCELLED):
        token.request(level, "api")
    assert heard == [REQUESTED, IMMEDIATE, CANCELLED]


def test_late_listener_is_called_immediately() -> None:
    token, heard = CancelToken(), []
    token.request(REQUESTED, "rest", "why")
    token.request(IMMEDIATE, "api")
    token.on_request(heard.append)
    assert heard == [StopRequest(IMMEDIATE, "rest", "why")]


def test_unsubscribed_listener_is_not_called() -> None:
    token, heard = CancelToken(), []
    unsubscribe = token.on_request(heard.append)
    unsubscribe()
    unsubscribe()
    token.request(REQUESTED, "api")
    assert heard == []


def test_listener_of_a_parent_is_not_called_for_a_child() -> None:
    run, heard = CancelToken(), []
    run.on_request(heard.append)
    run.child("ada").request(IMMEDIATE, "api")
    assert heard == []


def test_failing_listener_does_not_prevent_the_stop() -> None:
    run, heard = CancelToken(), []
    child = run.child("ada")
    child.on_request(lambda _: 1 / 0)
    run.on_request(lambda _: 1 / 0)
    run.on_request(heard.append)
    ben = run.child("ben")
    with pytest.raises(ZeroDivisionError):
        run.request(REQUESTED, "api")
    assert len(heard) == 1
    assert child.is_stopping and ben.is_stopping


def test_listener_can_use_its_token() -> None:
    token, seen = CancelToken(), []
    token.on_request(lambda _: seen.append(token.child("late").status))
    token.request(REQUESTED, "api")
    assert seen == [REQUESTED]


class Yielding(CancelToken):
    """Switches threads after each read of the level, to provoke races."""

    @property
    def _status(self) -> CancellationStatus:
        level: CancellationStatus = self.__dict__["level"]
        time.sleep(0)
        return level

    @_status.setter
    def _status(self, level: CancellationStatus) -> None:
        self.__dict__["level"] = level


def test_concurrent_requests_raise_each_level_once() -> None:
    for _ in range(20):
        token, heard, won = Yielding(), [], []
        child_heard: list[CancellationStatus] = []
        token.on_request(lambda r, to=heard: to.append(r.level))
        token.child("ada").on_request(lambda r, to=child_heard: to.append(r.level))
        start = threading.Barrier(12)

        def ask(level: CancellationStatus, token=token, start=start, won=won) -> None:
            start.wait()
            if token.request(level, "api"):
                won.append(level)

        levels = [REQUESTED, IMMEDIATE, CANCELLED] * 4
        threads = [threading.Thread(target=ask, args=(level,)) for level in levels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert token.status is CANCELLED
        assert max(Counter(won).values()) == 1
        assert Counter(heard) == Counter(won)
        assert max(Counter(child_heard).values()) == 1
        assert CANCELLED in child_heard


def test_children_created_during_a_stop_are_stopped() -> None:
    for _ in range(50):
        run, made = CancelToken(), []
        start = threading.Barrier(2)

        def grow(run=run, made=made, start=start) -> None:
            start.wait()
            made += [run.child(str(n)) for n in range(50)]

        thread = threading.Thread(target=grow)
        thread.start()
        start.wait()
        run.request(IMMEDIATE, "api")
        thread.join()
        assert {child.status for child in made} == {IMMEDIATE}


def test_except_exception_does_not_swallow_a_stop() -> None:
    token = CancelToken()
    token.request(REQUESTED, "widget", "enough")

    def tool() -> None:
        try:
            checkpoint()
        except Exception:
            pytest.fail("a tool swallowed the stop")

    with bind(token), pytest.raises(AgentStopped) as caught:
        tool()
    assert caught.value.request.reason == "enough"


def test_checkpoint_outside_a_run_has_no_effect() -> None:
    checkpoint()
    assert should_stop() is False


def test_binding_ends_with_its_block() -> None:
    outer, inner = CancelToken("outer"), CancelToken("inner")
    inner.request(REQUESTED, "api")
    with bind(outer):
        with bind(inner):
            assert should_stop()
        checkpoint()
    assert not should_stop()


async def test_stop_reaches_a_tool_in_a_worker_thread() -> None:
    token = CancelToken()

    def tool() -> bool:
        before = should_stop()
        token.request(IMMEDIATE, "api")
        checkpoint()
        return before

    with bind(token), pytest.raises(AgentStopped):
        await to_thread.run_sync(tool)
    assert token.is_stopping


async def test_stop_does_not_reach_a_thread_outside_the_binding() -> None:
    token = CancelToken()
    token.request(IMMEDIATE, "api")
    with bind(token):
        assert await to_thread.run_sync(should_stop)
    assert not await to_thread.run_sync(should_stop)


def test_token_records_the_first_request_and_the_last_escalation() -> None:
    token = CancelToken("run")
    token.request(CancellationStatus.REQUESTED, "widget", "wrong path")
    token.request(CancellationStatus.IMMEDIATE, "magic", "at once")
    token.request(CancellationStatus.REQUESTED, "api", "too late")
    assert token.first_request is not None
    assert token.last_request is not None
    assert (token.first_request.reason, token.last_request.reason) == ("wrong path", "at once")


def test_immediate_only_child_ignores_graceful_stops() -> None:
    run = CancelToken("run")
    step = run.immediate_only_child("step")
    run.request(CancellationStatus.REQUESTED, "api")
    assert not step.is_stopping
    run.request(IMMEDIATE, "api")
    assert step.status is IMMEDIATE


def test_unreferenced_immediate_only_child_is_collected() -> None:
    run = CancelToken("run")
    step = weakref.ref(run.immediate_only_child("step"))
    assert step() is None
    assert run.request(IMMEDIATE, "api")


def test_unreferenced_children_are_collected() -> None:
    token = CancelToken("run")
    for number in range(10_000):
        token.child(str(number)).child("below")
    gc.collect()
    assert len(token._children) == 0


def test_stop_reaches_a_grandchild_with_an_unreferenced_parent() -> None:
    token = CancelToken("run")
    below = token.child("middle").child("below")
    gc.collect()
    token.request(IMMEDIATE, "api")
    assert below.status is IMMEDIATE


def test_child_with_a_listener_is_not_collected() -> None:
    token, heard = CancelToken("run"), list[StopRequest]()
    end = token.child("middle").child("below").on_request(heard.append)
    gc.collect()
    token.request(REQUESTED, "api")
    assert [each.level for each in heard] == [REQUESTED]
    end()
    del end
    gc.collect()
    assert len(token._children) == 0
