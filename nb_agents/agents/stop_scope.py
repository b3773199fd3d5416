"""A cancel token as the event loop feels it.

Inside ``with StopScope(token)`` the token is bound for `checkpoint`; waits made through it end at a
graceful stop, and an immediate stop cancels whatever the block awaits.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType

import anyio

from nb_agents.agents.run_policy import current_policy
from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest, bind

__all__ = ["StopScope", "person_asked"]

_around: ContextVar[tuple[StopScope, ...]] = ContextVar("nb_agents_boundaries", default=())


class StopScope:
    """Connects a token to the running task; use it as a context manager, on the loop.

    Leaving the block swallows the cancellation that an immediate stop made, and no other.

    Args:
        token: The token of the work inside.
        ignore_graceful: Whether a graceful stop lets the block come to its end: then only waits
            end at it.

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
        """Raise AgentStopped if a stop was asked for that the block feels."""
        self._felt.checkpoint()

    async def wait_if_paused(self) -> None:
        """Wait while the run is paused; the block's own time does not count meanwhile.

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
        """Give what is inside a time.

        Neither a pause that `ready` waits out counts nor the time in which a person is asked.

        Args:
            delay_s: Seconds; None has no limit.

        Returns:
            The scope, which knows whether the time was over.
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
            self._held_from = current_policy().hold.clock()  # which no pause lets go on
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
            delay_s: Seconds.

        Raises:
            AgentStopped: A stop was asked for.
        """
        with anyio.move_on_after(delay_s):
            await self._asked.wait()
        self._token.checkpoint()

    async def wait_or_stop(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Wait for something, unless a stop is or gets asked for.

        Args:
            ready: Returns when it is there.

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
            # Before whoever asked for the stop goes on: no caller is left to believe that it works.
            self._feel(request)
            return
        try:
            self._loop.call_soon_threadsafe(self._feel, request)
        except RuntimeError:  # the loop is closed: nothing is left to be told
            return

    def _feel(self, request: StopRequest) -> None:
        self._asked.set()
        if request.level >= CancellationStatus.IMMEDIATE:
            self._scope.cancel()


@contextmanager
def person_asked() -> Iterator[None]:
    """Let no time pass, within the block, for the work that waits there for a person's answer."""
    with ExitStack() as stack:
        for boundary in _around.get():
            stack.enter_context(boundary._clocks_stopped())
        yield
