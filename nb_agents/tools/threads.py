"""Run plain functions in threads, which can't be cancelled.

A stop gives such a function a moment to return, and then abandons it: its later result is dropped.
An abandoned call is recorded while it runs: its turn's receipt lists it, and no second copy begins
beside it.
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
            function: The function; it must only raise what the caller expects.
            cleanup_s: Seconds for it to return after a cancellation; then it is abandoned.

        Returns:
            Its result, also if it returned within that time.

        Raises:
            AgentStopped: A stop came while this waited for an abandoned copy to end.
        """
        await self._wait_for_copies()
        over: Future[T] = Future()

        def call() -> None:
            if not over.set_running_or_notify_cancel():
                return  # before a thread had taken it: nobody waits for this
            try:
                over.set_result(function())
            except BaseException as exc:
                over.set_exception(exc)

        try:
            # A separate limiter: functions that hang can't use up the threads of other tools.
            await to_thread.run_sync(call, abandon_on_cancel=True, limiter=CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            if not over.cancel():
                with anyio.move_on_after(cleanup_s, shield=True):
                    await _ended(over)
            if over.running():
                self._leave(over)
                raise
            if over.cancelled():
                raise
        return over.result()

    def _leave(self, over: Future[Any]) -> None:
        call = current_call()
        call.thread = next(_numbers)
        _left[call.thread] = _Left(self.session, _family(call.agent), self.tool, over)

    async def _wait_for_copies(self) -> None:
        """Wait for abandoned calls of the same function by this agent or its predecessor."""
        call = current_call()
        mine = (self.session, _family(call.agent), self.tool)
        copies = {n: e.over for n, e in _alive().items() if (e.session, e.family, e.tool) == mine}
        if not copies:
            return
        self.tell(
            f"{self.tool} of before the stop still runs in its thread: waiting for its end.\n"
        )
        call.thread = max(copies)
        while not all(over.done() for over in copies.values()):
            checkpoint()
            await anyio.sleep(POLL_S)
        call.thread = 0


async def _ended(over: Future[Any]) -> None:
    ended = asyncio.wrap_future(over)
    # Nobody may be left to hear of what it raises.
    ended.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([ended])


def still_runs(thread: int) -> bool:
    """Return whether an abandoned call in a thread of this process still runs.

    Args:
        thread: Its number, as `nb_agents.events.ToolFinished` has it.
    """
    left = _left.get(thread)
    return left is not None and not left.over.done()


@dataclass(frozen=True)
class _Left:
    session: Path | None
    family: str
    tool: str
    over: Future[Any] = field(compare=False)


# Changed on the loop thread of all runs only, hence no lock.
_left: dict[int, _Left] = {}


def _alive() -> dict[int, _Left]:
    for thread in [number for number, left in _left.items() if left.over.done()]:
        del _left[thread]
    return _left


def _family(agent: str) -> str:
    """Return an agent's name without the numbers of calls, which differ in each call."""
    return re.sub(r"#[0-9]+", "", agent)
