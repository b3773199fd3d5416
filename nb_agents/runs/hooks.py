"""Calling the user's hooks and subscribers in worker threads, hooks with a time limit.

A hook may be sync or async; an async one gets an event loop of its own, so that it can't block the
loop of all runs. A subscriber gets the run's latest view whenever it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from nb_agents.cancel import AgentStopped, StopRequest
from nb_agents.errors import said_by
from nb_agents.events import Event
from nb_agents.models.retry import DEFAULT_RETRY, retry_delay_s
from nb_agents.options import Timeout
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.service_loops import ServiceLoop
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

CLOSE_S = 2.0
"""Time for all subscribers together to get the last view, before the run counts as done."""

MAX_WHY = 500
"""Characters noted of an exception that a hook raised."""


class Subscribers:
    """Passes views to callbacks. Runs on the loop thread; callbacks are added from any thread."""

    def __init__(self) -> None:
        # Replaced, never modified, as other threads subscribe at the same time.
        self._subscriptions: tuple[_Subscription, ...] = ()

    def add(self, callback: Callable[[RunView], None]) -> Callable[[], None]:
        """Subscribe a callback.

        Args:
            callback: Called in a worker thread, one call at a time; of the views that arrive while
                it is busy, it gets only the latest.

        Returns:
            A function that unsubscribes it.
        """
        mine = _Subscription(callback)
        self._subscriptions = (*self._subscriptions, mine)

        def end() -> None:
            mine.is_over = True
            self._subscriptions = tuple(s for s in self._subscriptions if s is not mine)

        return end

    def publish(self, view: RunView) -> None:
        """Pass a view to all subscribers."""
        for each in self._subscriptions:
            each.show(view)

    async def finish(self, view: RunView) -> None:
        """Pass the last view to all subscribers, and wait for them for up to `CLOSE_S`."""
        self.publish(view)
        with anyio.move_on_after(CLOSE_S, shield=True):
            for each in self._subscriptions:
                await each.wait_seen()


class _Subscription:
    """A callback and the next view for it."""

    def __init__(self, callback: Callable[[RunView], None]) -> None:
        self._callback = callback
        self._latest: RunView | None = None
        self._showing: asyncio.Task[None] | None = None
        self.is_over = False

    def show(self, view: RunView) -> None:
        self._latest = view
        if self._showing is None or self._showing.done():
            self._showing = asyncio.get_running_loop().create_task(self._show())

    async def wait_seen(self) -> None:
        if self._showing is not None:
            await asyncio.wait((self._showing,))

    async def _show(self) -> None:
        """Call the callback with the latest view until there is no newer one; log its errors."""
        while self._latest is not None and not self.is_over:
            view, self._latest = self._latest, None
            with ServiceLoop.VIEWS.item():
                await to_thread.run_sync(
                    self._callback, view, abandon_on_cancel=True, limiter=CapacityLimiter(1)
                )


class Hooks:
    """Calls a run's hooks. Runs on the loop thread.

    Args:
        run_id: The run's id, for the log.
        spec: The turn's spec, which has the hooks.
        note: Adds a notice for the user about a hook that failed.
    """

    def __init__(self, run_id: str, spec: TurnSpec, note: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._policy, self._retry, self._options = spec.cancel, spec.retry, spec.options
        self._note = note
        self._untold: deque[str] = deque()
        self._news = asyncio.Event()
        # Separates `watch`, during the run, from `finish`, which passes on the remaining statuses.
        self._telling = asyncio.Lock()

    async def call(self, hook: Callable[..., Any], *arguments: object) -> Any:
        """Call a hook with a time limit; an error in it becomes a notice.

        Args:
            hook: The function, sync or async.
            arguments: Its arguments.

        Returns:
            The hook's result; None when it failed or took too long.
        """
        name = getattr(hook, "__name__", "hook")
        timeout_s = self._policy.hook_timeout_s
        with anyio.move_on_after(timeout_s):
            try:
                return await to_thread.run_sync(
                    _call,
                    hook,
                    arguments,
                    timeout_s,
                    abandon_on_cancel=True,
                    # A limiter of its own, so that hooks that hang do not block other threads.
                    limiter=CapacityLimiter(1),
                )
            except _TooLong:
                pass
            except (Exception, AgentStopped, SystemExit, KeyboardInterrupt) as exc:
                self._failed(name, exc)
                return None
        self._tell(f"The hook {name} took longer than {timeout_s:g} s.")
        return None

    def _failed(self, name: str, exc: BaseException) -> None:
        self._tell(f"The hook {name} failed: {said_by(exc, named=True)[:MAX_WHY]}")

    def _tell(self, text: str) -> None:
        logger.warning("run %s: %s", self._run_id, text)
        self._note(text)

    # Stops and timeouts ----------------------------------------------------------------------

    @property
    def may_veto(self) -> bool:
        """Whether a hook may veto a graceful stop."""
        return self._policy.before_cancel is not None

    async def is_vetoed(self, request: StopRequest) -> bool:
        """Return whether the hook vetoes a graceful stop."""
        hook = self._policy.before_cancel
        return hook is not None and await self.call(hook, request) is False

    async def on_timeout(self, request: StopRequest) -> Any:
        """Call the hooks for a timeout; return the action that ``on_timeout`` chose, or None."""
        timeout = self._options.timeout
        if isinstance(timeout, Timeout) and timeout.callback is not None:
            await self.call(timeout.callback, request)
        hook = self._policy.on_timeout
        return await self.call(hook, request) if hook is not None else None

    # Retries ---------------------------------------------------------------------------------

    async def retry_delay_s(self, error: Exception, attempt: int) -> float | None:
        """Return the delay before a failed model call is retried.

        Args:
            error: The call's exception.
            attempt: The number of attempts made, from 1.

        Returns:
            Seconds to wait; None to give up.
        """
        retry = self._retry or DEFAULT_RETRY
        wanted: bool | None = None
        if retry.should_retry is not None and attempt <= retry.attempts:
            said = await self.call(retry.should_retry, error)
            wanted = None if said is None else bool(said)
        delay_s = retry_delay_s(error, attempt, self._retry, wanted)
        if delay_s is not None and retry.on_retry is not None:
            await self.call(retry.on_retry, error, attempt)
        return delay_s

    # Callbacks -------------------------------------------------------------------------------

    def observe(self, event: Event, before: RunView, after: RunView) -> None:
        """Queue a change of the run's status for the hook."""
        if after.status != before.status and self._options.on_status_change is not None:
            self._untold.append(after.status)
            self._news.set()

    async def watch(self) -> None:
        """Call the hook with each status until the run ends; return at once without a hook."""
        if self._options.on_status_change is None:
            return
        while True:
            await self._news.wait()
            self._news.clear()
            # Shielded, as a call that is interrupted would be repeated by `finish`.
            with anyio.CancelScope(shield=True), ServiceLoop.STATUSES.item(self._note):
                await self._tell_statuses()

    async def finish(self, status: str, result: Any, error: Exception | None) -> None:
        """Call the hooks for the remaining statuses and for the end.

        Args:
            status: The final status.
            result: The result of a completed run.
            error: The error of a failed run.
        """
        await self._tell_statuses()
        if status == "completed" and self._options.on_complete is not None:
            await self.call(self._options.on_complete, result)
        elif status == "failed" and self._options.on_failed is not None:
            await self.call(self._options.on_failed, error)

    async def _tell_statuses(self) -> None:
        hook = self._options.on_status_change
        async with self._telling:
            while self._untold and hook is not None:
                await self.call(hook, self._untold.popleft())


class _TooLong(TimeoutError):
    """The time limit ended an async hook, unlike a TimeoutError that the hook itself raised."""


def _call(hook: Callable[..., Any], arguments: tuple[object, ...], timeout_s: float) -> Any:
    made = hook(*arguments)
    if not isawaitable(made):
        return made

    async def waited() -> Any:
        with anyio.move_on_after(timeout_s):
            return await made
        raise _TooLong

    return asyncio.run(waited())
