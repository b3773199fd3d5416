"""A plain function in a thread: let begin or not, given its moment, left and remembered."""

from collections.abc import Callable
from threading import Event

import anyio
import pytest

from nb_agents.tools.base import ToolCall, calling
from nb_agents.tools.threads import ThreadCall, still_runs

pytestmark = pytest.mark.anyio

WAIT_S = 200.0


class Held:
    """A function that says that it has come, and waits until it may go."""

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
    """Cancel a call of "f" once it has begun: the number of the thread that it is left in."""

    async def cancel() -> None:
        await until(held.come.is_set)
        scope.cancel()
        if ends:
            held.let_go.set()

    attempt = ToolCall(agent)
    async with anyio.create_task_group() as group:
        with calling(attempt), anyio.CancelScope() as scope:
            group.start_soon(cancel)
            await ThreadCall("f").run(held, cleanup_s)
    assert scope.cancelled_caught is not ends
    return attempt.thread


async def test_a_call_that_is_cancelled_before_it_begins_is_never_made() -> None:
    made, attempt = list[str](), ToolCall("a")
    with calling(attempt), anyio.CancelScope() as scope:
        scope.cancel()
        await ThreadCall("f").run(lambda: made.append("made"), 1.0)
    assert scope.cancelled_caught
    assert (made, attempt.thread) == ([], 0)


async def test_one_that_ends_within_its_moment_is_not_left_and_has_a_result() -> None:
    assert await cut("a", Held(), WAIT_S, ends=True) == 0


async def test_one_that_goes_on_is_known_by_its_number_until_it_ends() -> None:
    held = Held()
    thread = await cut("a", held, 0.01)
    assert still_runs(thread) and not still_runs(thread + 1)
    held.let_go.set()
    await until(lambda: not still_runs(thread))


@pytest.mark.parametrize(
    ("left", "agent", "tool", "waits"),
    [
        ("a", "a", "f", True),
        ("a", "a", "g", False),
        ("a", "b", "f", False),
        ("a/c#1", "a/c#2", "f", True),
    ],
)
async def test_only_a_copy_of_its_own_is_waited_for(
    left: str, agent: str, tool: str, waits: bool
) -> None:
    held, told, made = Held(), list[str](), list[str]()
    await cut(left, held, 0.01)

    async def call() -> None:
        with calling(ToolCall(agent)):
            made.append(await ThreadCall(tool, tell=told.append).run(lambda: "made", 0.01))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await until(lambda: told or made)
        assert (bool(told), bool(made)) == (waits, not waits)
        held.let_go.set()
    assert made == ["made"]
