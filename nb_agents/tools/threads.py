"""Runs plain functions in threads, which can't be cancelled.

After a stop, such a function gets a moment to return. Then the call is abandoned and any later
result is dropped. While an abandoned call runs, the receipt of its turn lists it, and a repeated
call of the same function waits for its end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from nb_agents.cancel import checkpoint
from nb_agents.tools.base import current_call

POLL_S = 0.1

T = TypeVar("T")

_numbers = count(1)


@dataclass(frozen=True)
class ThreadCall:
    """A call of a plain function.

    Attributes:
        tool: The function's name.
        session: The session's directory, or None outside of one.
        tell: Called with text for the panel.
    """

    tool: str
    session: Path | None = None
    tell: Callable[[str], None] = lambda text: None

    async def run(self, function: Callable[[], T], cleanup_s: float) -> T:
        """Call a function in a new thread.

        Args:
            function: The function. Its exceptions are passed to the caller.
            cleanup_s: Seconds for the function to return after a cancellation, before the call is
                abandoned.

        Returns:
            The function's result, even if it returned after the cancellation.

        Raises:
            AgentStopped: A stop was requested while this waited for an abandoned call to end.
        """
        await self._wait_for_copies()
        over: Future[T] = Future()

        def call() -> None:
            if not over.set_running_or_notify_cancel():
                return  # cancelled before it started
            try:
                over.set_result(function())
            except BaseException as exc:
                over.set_exception(exc)

        try:
            # A separate limiter, so that functions that hang can't use up the threads of other
            # tools.
            await to_thread.run_sync(call, abandon_on_cancel=True, limiter=CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            if not over.cancel():
                with anyio.move_on_after(cleanup_s, shield=True):
                    await _finish(over)
            if over.running():
                self._abandon(over)
                raise
            if over.cancelled():
                raise
        return over.result()

    def _abandon(self, over: Future[Any]) -> None:
        call = current_call()
        call.thread = next(_numbers)
        _abandoned[call.thread] = _AbandonedCall(self.session, _family(call.agent), self.tool, over)

    async def _wait_for_copies(self) -> None:
        """Wait for abandoned calls of the same function by this agent or its predecessor."""
        call = current_call()
        key = (self.session, _family(call.agent), self.tool)
        copies = {
            n: e.over for n, e in _running_calls().items() if (e.session, e.family, e.tool) == key
        }
        if not copies:
            return
        self.tell(
            f"Waiting for {self.tool}, which was started before the stop and is still running.\n"
        )
        call.thread = max(copies)
        while not all(over.done() for over in copies.values()):
            checkpoint()
            await anyio.sleep(POLL_S)
        call.thread = 0


async def _finish(over: Future[Any]) -> None:
    future = asyncio.wrap_future(over)
    # Retrieve its exception, because nothing else might.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([future])


def is_call_running(thread: int) -> bool:
    """Return whether an abandoned call is still running in this process.

    Args:
        thread: The number of its thread, from `nb_agents.events.ToolFinished`.
    """
    abandoned_call = _abandoned.get(thread)
    return abandoned_call is not None and not abandoned_call.over.done()


@dataclass(frozen=True)
class _AbandonedCall:
    session: Path | None
    family: str
    tool: str
    over: Future[Any] = field(compare=False)


# Changed only in the thread of the runs' loop, so no lock is needed.
_abandoned: dict[int, _AbandonedCall] = {}


def _running_calls() -> dict[int, _AbandonedCall]:
    for thread in [
        number for number, abandoned_call in _abandoned.items() if abandoned_call.over.done()
    ]:
        del _abandoned[thread]
    return _abandoned


def _family(agent: str) -> str:
    """Return an agent's id without the numbers of calls, which differ after a resume."""
    return re.sub(r"#[0-9]+", "", agent)
