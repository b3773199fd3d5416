"""Stop scopes, which apply a cancel token to tasks, and a run's policy on pauses and retries.

In ``with StopScope(token)``, `checkpoint` uses the token. A graceful stop ends waits made through
the scope, and an immediate stop cancels whatever the block awaits.

A `RunPolicy` says when agents pause and how they retry. It is a context variable, because it
applies to teams and recipes alike.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, TypeVar

import anyio

from nb_agents.cancel import CancellationStatus, CancelToken, StopRequest, bind
from nb_agents.context import within
from nb_agents.models.retry import Wait, retry_delay_s
from nb_agents.models.usage import REPORT_STEP

T = TypeVar("T")

CLOCK_CHECK_S = 1.0
"""Interval in seconds at which a long wait reads the clock, which may jump after a suspend."""


class PauseGate:
    """Pauses a run at its boundaries. Use it only on the loop's thread.

    A run can be paused for several reasons, and continues when none is left.
    """

    def __init__(self) -> None:
        self._resumed: anyio.Event | None = None
        self._reasons: set[str] = set()
        self._paused_at = self._paused_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether work is paused."""
        return self._resumed is not None

    def is_held(self, reason: str = "user") -> bool:
        """Return whether work is paused for this reason."""
        return reason in self._reasons

    def pause(self, reason: str = "user") -> bool:
        """Pause work at its next boundary. Returns False if it is already paused for the reason."""
        if reason in self._reasons:
            return False
        self._reasons.add(reason)
        if self._resumed is None:
            self._resumed, self._paused_at = anyio.Event(), anyio.current_time()
        return True

    def unpause(self, reason: str = "user") -> bool:
        """End a pause for a reason. Returns False if work is not paused for it."""
        if reason not in self._reasons:
            return False
        self._reasons.remove(reason)
        if self._reasons or self._resumed is None:
            return True
        self._paused_s += anyio.current_time() - self._paused_at
        self._resumed.set()
        self._resumed = None
        return True

    def clock(self) -> float:
        """Return the time in seconds on a clock that stops during pauses."""
        now = self._paused_at if self.is_on else anyio.current_time()
        return now - self._paused_s

    async def wait_over(self) -> None:
        """Wait until work is not paused."""
        while self._resumed is not None:
            await self._resumed.wait()


class RetryTimer(Protocol):
    """Decides when a failed model call is tried again."""

    async def __call__(self, error: Exception, attempt: int, waited_s: float = 0.0) -> Wait | None:
        """Return the delay before the next attempt, or None to give up.

        Args:
            error: The call's exception.
            attempt: Number of attempts so far, including this one.
            waited_s: Seconds since the first attempt failed, not counting pauses.
        """
        ...


async def _by_default(error: Exception, attempt: int, waited_s: float = 0.0) -> Wait | None:
    delay_s = retry_delay_s(error, attempt)
    return None if delay_s is None else Wait(delay_s)


class StreamOverBudget(Exception):
    """A stream was closed, because the task has used up its budget and asks for a higher one."""


@dataclass
class Spending:
    """The state of a run's budget, which the run's open model calls check.

    Attributes:
        step: Number of tokens after which the usage of an open call is journalled again.
        is_over: Whether the budget is used up, so that open streams are closed.
    """

    step: int = REPORT_STEP
    is_over: bool = False


@dataclass(frozen=True)
class RunPolicy:
    """How a run pauses and retries.

    Attributes:
        hold: The run's pause.
        retry_after: Decides when a failed call is tried again.
        wake: Called from any thread when new text should be shown.
        spending: The state of the run's budget.
        windows: The context windows in tokens that the run has learned from errors of servers, by
            the names of their models.
        quota_wait_s: Seconds that a model call may wait for its provider.
        has_delays: Whether delays between calls take time. In a replay, they don't.
    """

    hold: PauseGate = field(default_factory=PauseGate)
    retry_after: RetryTimer = _by_default
    wake: Callable[[], None] = lambda: None
    spending: Spending = field(default_factory=Spending)
    windows: dict[str, int] = field(default_factory=dict)
    quota_wait_s: float = 0.0
    has_delays: bool = True


_current: ContextVar[RunPolicy | None] = ContextVar("nb_agents_run_policy", default=None)


def current_policy() -> RunPolicy:
    """Return the policy of the current run, or the default policy outside a run."""
    return _current.get() or RunPolicy()


def bind_policy(granted: RunPolicy) -> AbstractContextManager[None]:
    """Make ``granted`` the current policy in the block and in tasks that it starts."""
    return within(_current, granted)


_enclosing: ContextVar[tuple[StopScope, ...]] = ContextVar("nb_agents_boundaries", default=())


class StopScope:
    """Applies a cancel token to the code in a ``with`` block. Use it on the loop.

    At its end, the block suppresses the cancellation of an immediate stop, but no other
    cancellation.

    Args:
        token: The token of the work in the block.
        ignore_graceful: Whether the block continues after a graceful stop. The stop then only ends
            waits.

    Attributes:
        asked_s: Seconds that the block has waited for the user's decisions and for providers, not
            counting pauses.
    """

    def __init__(self, token: CancelToken, *, ignore_graceful: bool = False) -> None:
        self._token = token
        self._effective = token.immediate_only_child(token.name) if ignore_graceful else token
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._requested = anyio.Event()
        self._scope = anyio.CancelScope()
        self._bound = bind(self._effective)
        self._clocks: list[anyio.CancelScope] = []
        self._time_left: list[tuple[anyio.CancelScope, float]] = []
        self._open_waits = 0
        self.asked_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the block is waiting for the end of a pause, the user, or a provider."""
        return self._open_waits > 0

    @property
    def was_cut(self) -> bool:
        """Whether an immediate stop cancelled what the block awaited."""
        return self._scope.cancelled_caught

    def __enter__(self) -> StopScope:
        self._bound.__enter__()
        self._enclosing = _enclosing.set((*_enclosing.get(), self))
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
        _enclosing.reset(self._enclosing)
        self._bound.__exit__(None, None, None)
        return bool(caught)

    def checkpoint(self) -> None:
        """Raise AgentStopped if a stop that applies to the block was requested."""
        self._effective.checkpoint()

    async def wait_if_paused(self) -> None:
        """Wait while the run is paused. This does not count towards the block's time limit.

        Raises:
            AgentStopped: A stop that applies to the block was requested.
        """
        hold = current_policy().hold
        if hold.is_on:
            with self._clocks_stopped():
                await self.wait_or_stop(hold.wait_over)
        self.checkpoint()

    @contextmanager
    def limit(self, delay_s: float | None) -> Iterator[anyio.CancelScope]:
        """Limit the time of the block.

        Pauses (see `wait_if_paused`) and waits for the user's decisions do not count.

        Args:
            delay_s: The limit in seconds. None means no limit.

        Yields:
            The cancel scope. Its ``cancelled_caught`` tells whether the time ran out.
        """
        with anyio.move_on_after(delay_s) as clock:
            self._clocks.append(clock)
            try:
                yield clock
            finally:
                self._clocks.remove(clock)

    @contextmanager
    def _clocks_stopped(self) -> Iterator[None]:
        self._open_waits += 1
        if self._open_waits == 1:
            now = anyio.current_time()
            self._time_left = [(clock, clock.deadline - now) for clock in self._clocks]
            for clock in self._clocks:
                clock.deadline = math.inf
            self._wait_began = current_policy().hold.clock()  # a clock that stops during pauses
        try:
            yield
        finally:
            self._open_waits -= 1
            if not self._open_waits:
                self.asked_s += current_policy().hold.clock() - self._wait_began
                for clock, left_s in self._time_left:
                    clock.deadline = anyio.current_time() + left_s

    async def sleep(self, delay_s: float) -> None:
        """Sleep until the time is up or a stop is requested.

        Args:
            delay_s: Seconds. If 0, this returns without switching to other tasks.

        Raises:
            AgentStopped: A stop was requested.
        """
        if delay_s > 0:
            with anyio.move_on_after(delay_s):
                await self._requested.wait()
        self._token.checkpoint()

    async def delay(self, delay_s: float) -> None:
        """Sleep before the next call, unless the run has no delays.

        Args:
            delay_s: Seconds.

        Raises:
            AgentStopped: A stop was requested.
        """
        await self.sleep(delay_s if current_policy().has_delays else 0.0)

    async def sleep_until(self, at: float, clock: Callable[[], float] = time.time) -> None:
        """Sleep until a time or a stop. This does not count towards time limits.

        The time is reached even if the machine was suspended meanwhile.

        Args:
            at: The time in Unix seconds.
            clock: Returns the current time, in Unix seconds.

        Raises:
            AgentStopped: A stop was requested.
        """
        with clocks_stopped():
            while (left_s := at - clock()) > 0:
                await self.sleep(min(left_s, CLOCK_CHECK_S))
        self._token.checkpoint()

    async def sleep_for(self, wait: Wait) -> None:
        """Wait before the next attempt of a failed call.

        Raises:
            AgentStopped: A stop was requested.
        """
        if wait.reason:
            await self.sleep_until(time.time() + wait.delay_s)
        else:
            await self.sleep(wait.delay_s)

    async def wait_or_stop(self, ready: Callable[[], Awaitable[object]]) -> None:
        """Await ``ready()``, unless a stop is requested before or in the meantime.

        Args:
            ready: A function to await. A stop cancels it.

        Raises:
            AgentStopped: A stop was requested.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._end, group.cancel_scope)
            await ready()
            group.cancel_scope.cancel()
        self._token.checkpoint()

    async def call_or_stop(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await a call and return its result. Any stop cancels it, even a graceful one.

        Args:
            call: The function to await. Its cancellation must not lose anything.

        Raises:
            AgentStopped: A stop was requested.
        """
        results: list[T] = []
        errors: list[Exception] = []

        async def ready() -> None:
            try:
                results.append(await call())
            except Exception as exc:  # a task group would wrap it
                errors.append(exc)

        await self.wait_or_stop(ready)
        if errors:
            raise errors[0]
        return results[0]

    async def _end(self, scope: anyio.CancelScope) -> None:
        await self._requested.wait()
        scope.cancel()

    def _post(self, request: StopRequest) -> None:
        if threading.get_ident() == self._thread:
            # Applied before the requester continues, so that the requester does not see the work as
            # running.
            self._apply(request)
            return
        try:
            self._loop.call_soon_threadsafe(self._apply, request)
        except RuntimeError:  # the loop is closed: nothing is left to notify
            return

    def _apply(self, request: StopRequest) -> None:
        self._requested.set()
        if request.level >= CancellationStatus.IMMEDIATE:
            self._scope.cancel()


@contextmanager
def clocks_stopped() -> Iterator[None]:
    """Stop the clocks of the enclosing scopes while the block waits for the user or a provider."""
    with ExitStack() as stack:
        for boundary in _enclosing.get():
            stack.enter_context(boundary._clocks_stopped())
        yield
