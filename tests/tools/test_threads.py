"""Plain functions in threads: cancellation, the time to clean up, and abandoned calls."""

from collections.abc import Callable
from threading import Event

import anyio
import pytest

from nb_agents.tools.threads import ThreadCall, is_call_running
from tests.kit.tools import ToolCall, use_call

pytestmark = pytest.mark.anyio

WAIT_S = 200.0


class Held:
    """A function that signals its start and waits until it is released."""

    def __init__(self) -> None:
        self.come, self.let_go = Event(), Event()

    def __call__(self) -> None:
        self.come.set()
        self.let_go.wait(WAIT_S)


async def until(is_so: Callable[[], object]) -> None:
    with anyio.fail_after(WAIT_S):
        while not is_so():  # noqa: ASYNC110 - of threads
            await anyio.sleep(0.01)


async def cut(agent: str, held: Held, cleanup_s: float, *, ends: bool = False) -> int:
    """Cancel a call to "f" after its start. Return the number of its abandoned thread."""

    async def cancel() -> None:
        await until(held.come.is_set)
        scope.cancel()
        if ends:
            held.let_go.set()

    attempt = ToolCall(agent)
    async with anyio.create_task_group() as group:
        with use_call(attempt), anyio.CancelScope() as scope:
            group.start_soon(cancel)
            await ThreadCall("f").run(held, cleanup_s)
    assert scope.cancelled_caught is not ends
    return attempt.thread


async def test_call_cancelled_before_it_starts_is_not_made() -> None:
    made, attempt = list[str](), ToolCall("a")
    with use_call(attempt), anyio.CancelScope() as scope:
        scope.cancel()
        await ThreadCall("f").run(lambda: made.append("made"), 1.0)
    assert scope.cancelled_caught
    assert (made, attempt.thread) == ([], 0)


async def test_call_that_ends_within_the_cleanup_time_has_a_result() -> None:
    assert await cut("a", Held(), WAIT_S, ends=True) == 0


async def test_abandoned_call_is_recorded_until_it_ends() -> None:
    held = Held()
    thread = await cut("a", held, 0.01)
    assert is_call_running(thread) and not is_call_running(thread + 1)
    held.let_go.set()
    await until(lambda: not is_call_running(thread))


@pytest.mark.parametrize(
    ("left", "agent", "tool", "waits"),
    [
        ("a", "a", "f", True),
        ("a", "a", "g", False),
        ("a", "b", "f", False),
        ("a/c#1", "a/c#2", "f", True),
    ],
)
async def test_only_the_same_agents_abandoned_call_is_waited_for(
    left: str, agent: str, tool: str, waits: bool
) -> None:
    held, told, made = Held(), list[str](), list[str]()
    await cut(left, held, 0.01)

    async def call() -> None:
        with use_call(ToolCall(agent)):
            made.append(await ThreadCall(tool, tell=told.append).run(lambda: "made", 0.01))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: told or made)
        assert (bool(told), bool(made)) == (waits, not waits)
        held.let_go.set()
    assert made == ["made"]
