"""The stops of a run: each is written down once, and a graceful one gets its grace time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nb_agents import events as ev
from nb_agents.cancel import CancellationStatus, StopRequest

if TYPE_CHECKING:
    from nb_agents.runs.execution import Execution

__all__ = ["Stops"]


class Stops:
    """Takes down the stops of a run. Lives on the loop thread.

    Args:
        run: The run.
    """

    def __init__(self, run: Execution) -> None:
        self._run = run
        self._noted = CancellationStatus.NONE
        self._timers: list[asyncio.TimerHandle] = []

    def request(self, request: StopRequest) -> None:
        """Stop the run from the loop thread itself."""
        if self._run.token.request(request.level, request.source, request.reason):
            self.note(request)

    async def is_vetoed(self, request: StopRequest) -> bool:
        """Ask the person's hook whether a graceful stop may not be."""
        hook = self._run.policy.before_cancel
        return hook is not None and await self._run.call_hook(hook, request) is False

    def note(self, request: StopRequest, agent: str = "") -> None:
        """Record a stop that was asked for, and start its grace time.

        Args:
            request: The stop.
            agent: The one agent that is stopped, or "" for the run.
        """
        if self._run.view.is_over:
            return
        if agent:
            self._emit(request, agent)
        else:
            # Notes of two threads may arrive the wrong way round: whoever was first is told first.
            for each in (self._run.token.first_request or request, request):
                if each.level > self._noted:
                    self._noted = each.level
                    self._emit(each, "")
        self._run.recorder.publish()

    def _emit(self, request: StopRequest, agent: str) -> None:
        hard = request.level >= CancellationStatus.IMMEDIATE
        grace_s = None if hard else self._run.policy.grace_timeout_s
        self._run.recorder.emit(
            ev.StopRequested(
                level="immediate" if hard else "requested",
                source=request.source,
                reason=request.reason,
                agent=agent,
                grace_s=grace_s,
            )
        )
        if grace_s is not None:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(grace_s, self._escalate, request, agent))

    def _escalate(self, first: StopRequest, agent: str) -> None:
        token = self._run.agents[agent] if agent else self._run.token
        if token.status is CancellationStatus.REQUESTED and not self._run.view.is_over:
            hard = StopRequest(CancellationStatus.IMMEDIATE, first.source, "the grace time is over")
            if token.request(hard.level, hard.source, hard.reason):
                self.note(hard, agent)

    def close(self) -> None:
        """Forget the grace times that still run."""
        for timer in self._timers:
            timer.cancel()
