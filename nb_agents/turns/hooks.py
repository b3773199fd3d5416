"""Calls the user's hooks and subscribers in worker threads.

A hook may be sync or async, and has a time limit. An async hook runs on a separate event loop, so
that it can't block the loop of all runs. A subscriber gets the run's latest view after each change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread

from nb_agents.callbacks import accepted_argument_count
from nb_agents.cancel import AgentStopped, StopRequest
from nb_agents.errors import error_message
from nb_agents.events import Event
from nb_agents.models.retry import DEFAULT_RETRY, Wait, quota_wait, retry_delay_s
from nb_agents.options import Timeout
from nb_agents.service_loops import ServiceLoop
from nb_agents.turns.turn_spec import TurnSpec
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

CLOSE_S = 2.0
"""Seconds for all subscribers to handle the last view before the run is considered done."""

MAX_WHY = 500
"""Maximum length of the recorded error of a hook, in characters."""


class Subscribers:
    """Passes views to callbacks. Runs on the loop thread.

    Callbacks can be added from any thread.
    """

    def __init__(self) -> None:
        # Replaced, never modified, because other threads subscribe at the same time.
        self._subscriptions: tuple[_Subscription, ...] = ()

    def add(self, callback: Callable[[RunView], None]) -> Callable[[], None]:
        """Subscribe a callback.

        Args:
            callback: Called with views in a worker thread, one call at a time. Of the views that
                arrive during a call, it gets only the latest.

        Returns:
            A function that unsubscribes it.
        """
        added = _Subscription(callback)
        self._subscriptions = (*self._subscriptions, added)

        def end() -> None:
            added.is_over = True
            self._subscriptions = tuple(s for s in self._subscriptions if s is not added)

        return end

    def publish(self, view: RunView) -> None:
        """Pass a view to all subscribers."""
        for each in self._subscriptions:
            each.show(view)

    async def finish(self, view: RunView) -> None:
        """Pass the last view to all subscribers, and wait up to `CLOSE_S` for them."""
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
        """Call the callback with the latest view until there is no newer one. Errors are logged."""
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
        spec: The turn's spec, with the hooks.
        note: Adds a notice about a failed hook for the user.
    """

    def __init__(self, run_id: str, spec: TurnSpec, note: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._policy, self._retry, self._options = spec.cancel, spec.retry, spec.options
        self._quota_wait_s = spec.quota_wait_s
        self._note = note
        self._unreported: deque[str] = deque()
        self._wake = asyncio.Event()
        # Taken by `watch` during the run, and by `finish` for the remaining statuses.
        self._reporting = asyncio.Lock()

    async def call(self, hook: Callable[..., Any], *arguments: object) -> Any:
        """Call a hook with a time limit. An error in it becomes a notice.

        Args:
            hook: The function, sync or async.
            arguments: The available arguments. The hook may take fewer of them.

        Returns:
            The hook's result, or None if it failed or took too long.
        """
        name = getattr(hook, "__name__", "hook")
        arguments = arguments[: accepted_argument_count(hook, len(arguments))]
        timeout_s = self._policy.hook_timeout_s
        with anyio.move_on_after(timeout_s):
            try:
                return await to_thread.run_sync(
                    _call,
                    hook,
                    arguments,
                    timeout_s,
                    abandon_on_cancel=True,
                    # A separate limiter, so that hanging hooks do not block other threads.
                    limiter=CapacityLimiter(1),
                )
            except _TooLong:
                pass
            except (Exception, AgentStopped, SystemExit, KeyboardInterrupt) as exc:
                self._failed(name, exc)
                return None
        self._notify(f"The hook {name} took longer than {timeout_s:g} s.")
        return None

    def _failed(self, name: str, exc: BaseException) -> None:
        self._notify(f"The hook {name} failed: {error_message(exc, named=True)[:MAX_WHY]}")

    def _notify(self, text: str) -> None:
        logger.warning("run %s: %s", self._run_id, text)
        self._note(text)

    # Stops and timeouts ----------------------------------------------------------------------

    @property
    def may_veto(self) -> bool:
        """Whether there is a hook that can veto a graceful stop."""
        return self._policy.before_cancel is not None

    async def is_vetoed(self, request: StopRequest) -> bool:
        """Return whether the hook vetoes a graceful stop."""
        hook = self._policy.before_cancel
        return hook is not None and await self.call(hook, request) is False

    async def on_timeout(self, request: StopRequest) -> Any:
        """Call the hooks for a timeout.

        Returns the action that ``on_timeout`` returned, or None.
        """
        timeout = self._options.timeout
        if isinstance(timeout, Timeout) and timeout.callback is not None:
            await self.call(timeout.callback, request)
        hook = self._policy.on_timeout
        return await self.call(hook, request) if hook is not None else None

    # Retries ---------------------------------------------------------------------------------

    async def retry_after(
        self, error: Exception, attempt: int, waited_s: float = 0.0
    ) -> Wait | None:
        """Return the delay before a failed model call is tried again, or None to give up.

        Args:
            error: The call's exception.
            attempt: Number of attempts so far, including this one.
            waited_s: Seconds since the first attempt failed, not counting pauses.
        """
        retry = self._retry or DEFAULT_RETRY
        should_retry: bool | None = None
        if retry.should_retry is not None and (attempt <= retry.attempts or self._quota_wait_s):
            result = await self.call(retry.should_retry, error)
            should_retry = None if result is None else bool(result)
        delay_s = retry_delay_s(error, attempt, self._retry, should_retry)
        wait = None if delay_s is None else Wait(delay_s)
        if wait is None and should_retry is not False:
            limit_s = self._quota_wait_s
            wait = quota_wait(error, waited_s, limit_s, time.time(), retry.delay)
        if wait is not None and retry.on_retry is not None:
            await self.call(retry.on_retry, error, attempt)
        return wait

    # Callbacks -------------------------------------------------------------------------------

    def observe(self, event: Event, before: RunView, after: RunView) -> None:
        """Queue a new status of the run for the hook."""
        if after.status != before.status and self._options.on_status_change is not None:
            self._unreported.append(after.status)
            self._wake.set()

    async def watch(self) -> None:
        """Call the hook with each new status until the run ends. Returns if there is no hook."""
        if self._options.on_status_change is None:
            return
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Shielded, so that the end of the run does not interrupt a call.
            with anyio.CancelScope(shield=True), ServiceLoop.STATUSES.item(self._note):
                await self._report_statuses()

    async def finish(self, status: str, result: Any, error: Exception | None) -> None:
        """Call the hooks for the remaining statuses and for the end.

        Args:
            status: The final status.
            result: The result of a completed run.
            error: The error of a failed run.
        """
        await self._report_statuses()
        if status == "completed" and self._options.on_complete is not None:
            await self.call(self._options.on_complete, result)
        elif status == "failed" and self._options.on_failed is not None:
            await self.call(self._options.on_failed, error)

    async def _report_statuses(self) -> None:
        hook = self._options.on_status_change
        async with self._reporting:
            while self._unreported and hook is not None:
                await self.call(hook, self._unreported.popleft())


class _TooLong(TimeoutError):
    """Raised when an async hook exceeds its time limit.

    Distinguishes this from a TimeoutError that the hook itself raises.
    """


def _call(hook: Callable[..., Any], arguments: tuple[object, ...], timeout_s: float) -> Any:
    result = hook(*arguments)
    if not isawaitable(result):
        return result

    async def waited() -> Any:
        with anyio.move_on_after(timeout_s):
            return await result
        raise _TooLong

    return asyncio.run(waited())
