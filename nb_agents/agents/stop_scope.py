"""Stop scopes, which apply a cancel token to tasks, and a run's policy on pauses and retries.

Inside ``with StopScope(token)`` the token is bound for `checkpoint`; waits made through it end at a
graceful stop, and an immediate stop cancels whatever the block awaits.

A `RunPolicy` says when agents pause and how they retry. It is a context variable, because it
applies to teams and recipes alike.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType

import anyio

from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest, bind
from nb_agents.context import within
from nb_agents.models.retry import retry_delay_s


class PauseGate:
    """A pause of the run: work waits at its next boundary. Used on the loop's thread only."""

    def __init__(self) -> None:
        self._over: anyio.Event | None = None
        self._began = self._paused_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether work is paused."""
        return self._over is not None

    def pause(self) -> bool:
        """Close the gate: work stops at its next boundary; return whether it was open."""
        if self._over is not None:
            return False
        self._over, self._began = anyio.Event(), anyio.current_time()
        return True

    def go_on(self) -> bool:
        """Open the gate; return whether it was closed."""
        if self._over is None:
            return False
        self._paused_s += anyio.current_time() - self._began
        self._over.set()
        self._over = None
        return True

    def clock(self) -> float:
        """Return the seconds of a clock that stops while the gate is closed."""
        now = self._began if self.is_on else anyio.current_time()
        return now - self._paused_s

    async def wait_over(self) -> None:
        """Wait until the pause is over."""
        while self._over is not None:
            await self._over.wait()


async def _by_default(error: Exception, attempt: int) -> float | None:
    return retry_delay_s(error, attempt)


@dataclass(frozen=True)
class RunPolicy:
    """How a run pauses and retries.

    Attributes:
        hold: The run's pause.
        retry_delay_s: Given an error and the number of attempts made, from 1, says how many
            seconds to wait before the next one; None means that there is none.
        wake: Called, from any thread, when words have arrived that should be shown.
    """

    hold: PauseGate = field(default_factory=PauseGate)
    retry_delay_s: Callable[[Exception, int], Awaitable[float | None]] = _by_default
    wake: Callable[[], None] = lambda: None


_current: ContextVar[RunPolicy | None] = ContextVar("nb_agents_run_policy", default=None)


def current_policy() -> RunPolicy:
    """Return the policy of the run that this code works for, or the default one."""
    return _current.get() or RunPolicy()


def bind_policy(granted: RunPolicy) -> AbstractContextManager[None]:
    """Make ``granted`` the current policy within the block and in the tasks that it starts."""
    return within(_current, granted)


_around: ContextVar[tuple[StopScope, ...]] = ContextVar("nb_agents_boundaries", default=())


class StopScope:
    """Connects a token to the running task; use it as a context manager, on the loop.

    Leaving the block swallows the cancellation that an immediate stop made, and no other.

    Args:
        token: The token of the work inside.
        ignore_graceful: Whether the block runs to its end after a graceful stop, which then ends
            only waits.

    Attributes:
        asked_s: Seconds of the run's time in which the block waited for a person's answer.
    """

    def __init__(self, token: CancelToken, *, ignore_graceful: bool = False) -> None:
        self._token = token
        self._felt = token.immediate_only_child(token.name) if ignore_graceful else token
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked = anyio.Event()
        self._scope = anyio.CancelScope()
        self._bound = bind(self._felt)
        self._clocks: list[anyio.CancelScope] = []
        self._stood: list[tuple[anyio.CancelScope, float]] = []
        self._holds = 0
        self.asked_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the block waits for a pause to end, or for a person's answer."""
        return self._holds > 0

    @property
    def was_cut(self) -> bool:
        """Whether an immediate stop cancelled what the block awaited."""
        return self._scope.cancelled_caught

    def __enter__(self) -> StopScope:
        self._bound.__enter__()
        self._around = _around.set((*_around.get(), self))
        self._scope.__enter__()
        self._unsubscribe = self._token.on_request(self._post)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._unsubscribe()
        caught = self._scope.__exit__(kind, exc, trace)
        _around.reset(self._around)
        self._bound.__exit__(None, None, None)
        return bool(caught)

    def checkpoint(self) -> None:
        """Raise AgentStopped if a stop was requested that applies to the block."""
        self._felt.checkpoint()

    async def wait_if_paused(self) -> None:
        """Wait while the run is paused; this time does not count against the block's limit.

        Raises:
            AgentStopped: A stop was asked for that the block feels.
        """
        hold = current_policy().hold
        if hold.is_on:
            with self._clocks_stopped():
                await self.wait_or_stop(hold.wait_over)
        self.checkpoint()

    @contextmanager
    def limit(self, delay_s: float | None) -> Iterator[anyio.CancelScope]:
        """Limit the time of the block.

        The time of a pause (see `wait_if_paused`) and of a question to a person does not count.

        Args:
            delay_s: Seconds; None means no limit.

        Yields:
            The scope, which says whether the time ran out.
        """
        with anyio.move_on_after(delay_s) as clock:
            self._clocks.append(clock)
            try:
                yield clock
            finally:
                self._clocks.remove(clock)

    @contextmanager
    def _clocks_stopped(self) -> Iterator[None]:
        self._holds += 1
        if self._holds == 1:
            now = anyio.current_time()
            self._stood = [(clock, clock.deadline - now) for clock in self._clocks]
            for clock in self._clocks:
                clock.deadline = math.inf
            self._held_from = current_policy().hold.clock()  # a clock that stops during pauses
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self.asked_s += current_policy().hold.clock() - self._held_from
                for clock, left_s in self._stood:
                    clock.deadline = anyio.current_time() + left_s

    async def sleep(self, delay_s: float) -> None:
        """Sleep, unless a stop is or gets asked for.

        Args:
            delay_s: Seconds; 0 returns at once, without a switch to other tasks.

        Raises:
            AgentStopped: A stop was asked for.
        """
        if delay_s > 0:
            with anyio.move_on_after(delay_s):
                await self._asked.wait()
        self._token.checkpoint()

    async def wait_or_stop(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Wait for something, unless a stop is or gets asked for.

        Args:
            ready: Returns when the wait is over.

        Raises:
            AgentStopped: A stop was asked for.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._end, group.cancel_scope)
            await ready()
            group.cancel_scope.cancel()
        self._token.checkpoint()

    async def _end(self, scope: anyio.CancelScope) -> None:
        await self._asked.wait()
        scope.cancel()

    def _post(self, request: StopRequest) -> None:
        if threading.get_ident() == self._thread:
            # Recorded before the stop's caller continues, so that nobody takes the work for
            # running.
            self._feel(request)
            return
        try:
            self._loop.call_soon_threadsafe(self._feel, request)
        except RuntimeError:  # the loop is closed: nothing is left to notify
            return

    def _feel(self, request: StopRequest) -> None:
        self._asked.set()
        if request.level >= CancellationStatus.IMMEDIATE:
            self._scope.cancel()


@contextmanager
def person_asked() -> Iterator[None]:
    """Stop the clocks of the work that waits within the block for a person's answer."""
    with ExitStack() as stack:
        for boundary in _around.get():
            stack.enter_context(boundary._clocks_stopped())
        yield
