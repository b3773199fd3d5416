"""Stops a run when it reaches its time limit or budget. Runs on the loop thread.

Both are graceful stops, with the source "timeout" or "budget", which the user's hook can veto.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable

import anyio

from nb_agents import events as ev
from nb_agents.cancel import CancellationStatus, StopRequest
from nb_agents.config.orchestrator import OnTimeout
from nb_agents.errors import UserError
from nb_agents.options import Timeout
from nb_agents.service_loops import ServiceLoop
from nb_agents.turns.budget_watch import BudgetWatch, WatchDeps
from nb_agents.turns.day_watch import DayWatch
from nb_agents.turns.hooks import Hooks
from nb_agents.turns.turn_spec import TurnSpec
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

REACHED = "time limit of {limit:.10g} s reached"
"""The reason recorded for a stop by the time limit. Panels, cards and terminals show it."""

GOING_ON = "The time limit of {limit:.10g} s was reached. The run continues (on_timeout: continue)."


def check_time_limit(timeout_s: float) -> None:
    """Raise `UserError` unless a number of seconds can be a time limit."""
    if not 0 < timeout_s < math.inf:
        raise UserError(f"The time limit is {timeout_s!r} seconds. Use a number above 0.")


def is_clock_stopped(view: RunView) -> bool:
    """Return whether a turn's clock is stopped.

    The clock stops while the turn is paused or asks to raise its budget, while a recipe only waits
    for the user, and while all agents wait for their providers. If other agents of a team continue,
    only the clock of the waiting agent stops.
    """
    if view.wait is not None or any(gate.about == "budget" for gate in view.gates.values()):
        return True
    if view.is_paused or not (view.has_steps and view.gates):
        return view.is_paused
    waiting = {address.rpartition(": ")[0] for address in view.gates}
    return not any(
        not step.is_over and step.unit in ("agent", "bash") and step.address not in waiting
        for step in view.steps.values()
    )


class Limits:
    """Watches a run's time and budget, and logs its progress.

    Args:
        spec: The turn's spec, with the limits.
        hooks: The user's hooks.
        deps: The functions of the run.

    Attributes:
        budget: The watch over the budget of the run's task.
        day: The watch over the user's day budget.
    """

    def __init__(self, spec: TurnSpec, hooks: Hooks, deps: WatchDeps) -> None:
        self._spec = spec
        self.budget = BudgetWatch(spec, hooks, deps)
        self.day = DayWatch(str(spec.paths.path), deps)
        self._hooks = hooks
        self._view = deps.view
        self._stop = deps.stop
        self._note = deps.note
        self._fails = False
        self._limit_s = spec.timeout_s
        self._round = 0  # cached, as RunView.round goes through all agents
        self._is_clock_stopped = False
        self._clock_changed = anyio.Event()

    @property
    def has_failed(self) -> bool:
        """Whether the timeout stopped the run, and its action is "fail"."""
        stop = self._view().stop
        return self._fails and stop is not None and stop.source == "timeout"

    def watch(self, group: anyio.abc.TaskGroup) -> None:
        """Start tasks in a task group that stop the run at its timeout and at its budget."""
        if self._limit_s:
            logger.info("Orchestrator timeout configured: %.10g seconds", self._limit_s)
        group.start_soon(self._guarded, self._watch_time)
        logger.info("Starting coordination...")
        self.budget.start(group, self._guarded)
        self.day.count()  # nothing is reserved yet
        group.start_soon(self._guarded, self.day.watch)

    def set_time_limit(self, timeout_s: float) -> None:
        """Change the time limit. The time that has passed counts towards the new one.

        Args:
            timeout_s: The limit in seconds of work, counted from the start of the turn.
        """
        logger.info("Orchestrator timeout changed: %.10g seconds", timeout_s)
        self._limit_s = timeout_s
        self._clock_changed.set()

    async def close(self) -> None:
        """Write what the turn has spent, for the other turns that share its budgets."""
        await self.budget.close()
        await self.day.close()

    async def _guarded(self, watch: Callable[..., Awaitable[None]], *arguments: object) -> None:
        with ServiceLoop.LIMITS.item(self._note):
            await watch(*arguments)

    def observe(self, event: ev.Event, before: RunView, after: RunView) -> None:
        """Update the round, the budget and the clock from an event."""
        if isinstance(event, ev.RoundStarted) and event.number > self._round:
            self._round = after.round
            if self._round > before.round:
                self._log_round(before.round)
        if isinstance(event, ev.ModelFinished | ev.ModelFailed | ev.ModelCut | ev.UsageUpdated):
            self.budget.count(after)
            self.day.count()
        if isinstance(event, ev.TextStreamed):
            return
        if self._is_clock_stopped != (is_stopped := is_clock_stopped(after)):
            self._is_clock_stopped = is_stopped
            self._clock_changed.set()

    def conclude(self, status: str) -> None:
        """Log the last round, just before the turn's last event.

        Args:
            status: The final status, as in TurnEnded.
        """
        if status == "completed":
            self._log_round(self._view().round)

    # Time ------------------------------------------------------------------------------------

    async def _watch_time(self) -> None:
        limit_s = await self._pass()
        if self._view().stop is not None:
            return
        reason = REACHED.format(limit=limit_s)
        request = StopRequest(CancellationStatus.REQUESTED, "timeout", reason)
        logger.info("%s", request.reason)
        action = await self._action(request)
        if action == "continue":
            self._notify(GOING_ON.format(limit=limit_s))
        elif self._view().stop is None and not await self._hooks.is_vetoed(request):
            self._fails = action == "fail"
            self._stop(request)

    async def _pass(self) -> float:
        """Sleep until the limit of working time, not counting pauses. Returns the limit."""
        passed_s = 0.0
        while not 0 < self._limit_s <= passed_s:
            left_s = self._limit_s - passed_s if self._limit_s else math.inf
            began, is_stopped = anyio.current_time(), self._is_clock_stopped
            self._clock_changed = anyio.Event()
            with anyio.move_on_after(math.inf if is_stopped else left_s):
                await self._clock_changed.wait()
            if not is_stopped:
                passed_s += anyio.current_time() - began
        return self._limit_s

    async def _action(self, request: StopRequest) -> OnTimeout:
        """Return the action for a timeout, as set by the hook, the options or the team file."""
        configured = self._spec.team.timeout_settings.on_timeout
        if isinstance(option := self._spec.options.timeout, Timeout):
            configured = option.on_timeout
        chosen = await self._hooks.on_timeout(request)
        return chosen if chosen in ("fail", "cancel", "continue") else configured

    # Notices ---------------------------------------------------------------------------------

    def _log_round(self, number: int) -> None:
        elapsed_s = time.time() - self._view().started_at
        limit_s = self._limit_s
        logger.info("Round %d complete (elapsed: %.0fs / %.10gs)", number, elapsed_s, limit_s)

    def _notify(self, text: str) -> None:
        logger.info("%s", text)
        self._note(text)
