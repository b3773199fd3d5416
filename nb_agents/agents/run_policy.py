"""What a run grants the agents that work for it: when they hold still, and how they try again.

A context variable, because it reaches them through a team and through a recipe alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import anyio

from nb_agents.models.retry import retry_delay_s

__all__ = ["PauseGate", "RunPolicy", "bind_policy", "current_policy"]


class PauseGate:
    """A pause that work waits out at its boundaries; lives on the loop."""

    def __init__(self) -> None:
        self._over: anyio.Event | None = None
        self._began = self._paused_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether work holds still."""
        return self._over is not None

    def pause(self) -> bool:
        """Let work hold still at its next boundary: whether it did not before."""
        if self._over is not None:
            return False
        self._over, self._began = anyio.Event(), anyio.current_time()
        return True

    def go_on(self) -> bool:
        """Let work go on: whether it held still."""
        if self._over is None:
            return False
        self._paused_s += anyio.current_time() - self._began
        self._over.set()
        self._over = None
        return True

    def clock(self) -> float:
        """Give a clock in seconds that stands still while work does."""
        now = self._began if self.is_on else anyio.current_time()
        return now - self._paused_s

    async def wait_over(self) -> None:
        """Wait until work may go on."""
        while self._over is not None:
            await self._over.wait()


async def _by_default(error: Exception, attempt: int) -> float | None:
    return retry_delay_s(error, attempt)


@dataclass(frozen=True)
class RunPolicy:
    """What a run grants.

    Attributes:
        hold: Its pause.
        retry_delay_s: Given an error and the number of attempts made, from 1, says how many
            seconds to wait before the next one; None means that there is none.
    """

    hold: PauseGate = field(default_factory=PauseGate)
    retry_delay_s: Callable[[Exception, int], Awaitable[float | None]] = _by_default


_current: ContextVar[RunPolicy | None] = ContextVar("nb_agents_run_policy", default=None)


def current_policy() -> RunPolicy:
    """Return the policy of the run that this code works for, or the default one."""
    return _current.get() or RunPolicy()


@contextmanager
def bind_policy(granted: RunPolicy) -> Iterator[None]:
    """Make ``granted`` the current policy within the block and the tasks that it starts."""
    reset = _current.set(granted)
    try:
        yield
    finally:
        _current.reset(reset)
