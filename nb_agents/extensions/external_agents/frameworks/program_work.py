"""Tracks the tasks of a run of a user's program, so that a stop reaches all of its calls.

A program may make calls in its own tasks and threads, which do not end with its main task.
Therefore each call is registered with its run. When the run ends, open calls are cancelled and
awaited, and later calls are refused. A function may make calls from any thread, without context
variables or with those of another loop. The calls run on the run's loop with the function's context
variables.

Source: `asyncio.run` cancels the remaining tasks in the same way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import anyio

from nb_agents.cancel import AgentStopped, CancellationStatus, StopRequest, current_token
from nb_agents.context import within
from nb_agents.errors import leaf_exceptions
from nb_agents.tools.base import EndOfAgent

END_S = 1.0
"""Seconds for a program to end after a call was refused, and again after it was cancelled."""

CLOSE_S = 5.0
"""Seconds for cancelled calls to clean up, such as to end the processes of a command."""

TICKS = 3
"""Iterations of the loop that a cancelled task needs to cancel the tasks that it awaits."""

OVER = "the program of {agent} has ended"

T = TypeVar("T")


class ProgramError(Exception):
    """Raised instead of an exception of a program that would end the loop or the run."""


async def without_exit(work: Awaitable[T]) -> T:
    """Await user code. Converts `SystemExit`, which would end the shared loop of all runs.

    Raises:
        ProgramError: The code raised SystemExit or KeyboardInterrupt.
    """
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as exc:
        raise ProgramError(f"It raised {type(exc).__name__}.") from exc


class Decided(EndOfAgent):
    """Raised to end a program whose agent has decided. ``except Exception`` does not catch it."""


_work: ContextVar[ProgramWork | None] = ContextVar("nb_agents_program_work", default=None)


class ProgramWork:
    """The tasks of one run of a program. Only `call` may be used outside of the run's loop.

    Args:
        agent: The agent's id.
    """

    def __init__(self, agent: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._token = current_token()
        self._end_request = StopRequest(
            CancellationStatus.REQUESTED, "parent", OVER.format(agent=agent)
        )
        self._context = copy_context()
        self._tasks: Counter[asyncio.Task[Any]] = Counter()
        self._cut: set[asyncio.Task[Any]] = set()
        self._is_over = False
        self._refusal: StopRequest | None = None
        self._refused = asyncio.Event()

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run a program until it ends, and then end all its tasks.

        Args:
            program: The program. It is cancelled only once, as in asyncio. An anyio scope would
                also cancel each await of its clean-up, which frameworks for asyncio don't expect.

        Raises:
            AgentStopped: A call was refused because of a stop, even if the program caught that.
            Decided: The agent has decided its round.
            ProgramError: The program was cancelled without a stop, or raised SystemExit.
        """
        with within(_work, self):
            self._context = copy_context()
            task = asyncio.ensure_future(without_exit(program))
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait([task, refused], return_when=asyncio.FIRST_COMPLETED)
            await _wait([task], END_S)
        finally:
            refused.cancel()
            with anyio.CancelScope(shield=True):
                await self._end(task)
        return self._result(task)

    def _result(self, task: asyncio.Task[T]) -> T:
        error = None if not task.done() or task.cancelled() else task.exception()
        leaves = leaf_exceptions(error) if error is not None else []
        ends = [each for each in leaves if isinstance(each, Decided | AgentStopped)]
        if ends:  # possibly in an exception group of parallel calls
            raise next((each for each in ends if isinstance(each, Decided)), ends[0])
        if self._refusal is not None:
            raise AgentStopped(self._refusal)
        if task.cancelled():
            raise ProgramError("It was cancelled, but not by a stop.")
        return task.result()

    def refuse(self, stop: AgentStopped) -> None:
        """End the program after a short grace period, because a stop rejected one of its calls."""
        self._refusal = self._refusal or stop.request
        self._refused.set()
        _ignore_exception(asyncio.current_task())

    def check(self) -> None:
        """Check that the program may make calls.

        Raises:
            AgentStopped: The program has ended.
        """
        if self._is_over:
            raise self._stopped()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Register the current task as a call during the block.

        Raises:
            AgentStopped: The program has ended.
        """
        self.check()
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] += 1
        try:
            yield
        finally:
            self._tasks[task] -= 1
            if not self._tasks[task]:
                del self._tasks[task]

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call for a user's function, from any task, thread or loop.

        Args:
            make: A function that makes the call.

        Raises:
            AgentStopped: A stop or the end of the function refused or interrupted the call. This
                replaces a cancellation, which would be an `Exception` in a thread, so that
                frameworks would retry.
        """
        if asyncio.get_running_loop() is not self._loop:
            outside = asyncio.run_coroutine_threadsafe(self.call(make), self._loop)
            return await asyncio.wrap_future(outside)
        if _work.get() is self:
            return await self._call_or_stop(make)
        context = self._context.copy()
        return await self._loop.create_task(self._call_or_stop(make), context=context)

    async def _call_or_stop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self.holding():
            try:
                return await make()
            except asyncio.CancelledError:
                if asyncio.current_task() not in self._cut:
                    raise
                raise self._stopped() from None

    def _stopped(self) -> AgentStopped:
        _ignore_exception(asyncio.current_task())
        stop = self._token.first_request if self._token else None
        return AgentStopped(stop or self._end_request)

    async def _end(self, program: asyncio.Task[Any]) -> None:
        """Cancel all tasks of the program once, and wait until they have ended."""
        self._is_over = True
        for task in (program, *self._tasks):
            if task is not program:
                self._cut.add(task)
            # A task that is ending cancels its own tasks. A second cancel would disturb that.
            if not task.done() and not task.cancelling():
                task.cancel()
                for _ in range(TICKS):
                    await asyncio.sleep(0)
        await _wait([program], END_S)
        await _wait(self._tasks, CLOSE_S)
        if program.done() and not program.cancelled():
            program.exception()  # mark as retrieved


async def _wait(tasks: Iterable[asyncio.Task[Any]], limit_s: float) -> None:
    if waited := [task for task in tasks if not task.done()]:
        await asyncio.wait(waited, timeout=limit_s)


def _ignore_exception(task: asyncio.Task[Any] | None) -> None:
    """Prevent asyncio's warning about an exception that is never retrieved."""
    if task is not None:
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
