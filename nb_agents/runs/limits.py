"""Stopping a run when its timeout or its budget is reached. Runs on the loop thread.

Either is an ordinary graceful stop with a source of its own, which the user's hook may veto.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable

import anyio

from nb_agents import events as ev
from nb_agents.cancel import CancellationStatus, StopRequest, StopSource
from nb_agents.config.orchestrator import OnTimeout, OrchestratorSpec
from nb_agents.options import Timeout
from nb_agents.runs.hooks import Hooks
from nb_agents.runs.turn_spec import TurnSpec
from nb_agents.service_loops import ServiceLoop
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

REACHED = "time limit of {limit:.10g} s reached"
"""Why a run stops; panels, cards and terminals say it."""
GOING_ON = "The time limit of {limit:.10g} s is reached; the run goes on (on_timeout: continue)."


def over_budget(view: RunView, budget: OrchestratorSpec) -> str:
    """Return a description of the budget that a turn has used up, or "".

    Agents without a known price count towards the tokens only.

    Args:
        view: The turn.
        budget: Has `max_cost` and `max_tokens`.
    """
    if budget.max_tokens is not None:
        tokens = view.tokens
        if tokens >= budget.max_tokens:
            return f"budget used up ({tokens} of {budget.max_tokens} tokens)"
    if budget.max_cost is not None:
        cost = sum(a.cost or 0.0 for a in view.agents.values())
        if cost >= budget.max_cost:
            return f"budget used up (${cost:.4g} of ${budget.max_cost:.4g})"
    return ""


def unpriced(view: RunView) -> tuple[str, ...]:
    """Return the models whose price is unknown, each once."""
    return tuple(dict.fromkeys(a.model for a in view.agents.values() if a.cost is None))


def stands_still(view: RunView) -> bool:
    """Return whether a turn's clock is stopped.

    It is while the turn is paused, and while a recipe only waits for the user. In a team, only the
    clock of the agent that waits is stopped, as the others go on.
    """
    if view.is_paused or not (view.recipe and view.gates):
        return view.is_paused
    waiting = {address.rpartition(": ")[0] for address in view.gates}
    return not any(
        not step.is_over and step.unit in ("agent", "bash") and step.address not in waiting
        for step in view.steps.values()
    )


class Limits:
    """Watches a run's time and budget, and logs its progress.

    Args:
        spec: The turn's spec, which has the limits.
        hooks: The user's hooks.
        view: Returns the current view.
        stop: Stops the run.
        note: Adds a notice for the user.
    """

    def __init__(
        self,
        spec: TurnSpec,
        hooks: Hooks,
        view: Callable[[], RunView],
        stop: Callable[[StopRequest], object],
        note: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._hooks = hooks
        self._view = view
        self._stop = stop
        self._note = note
        self._fails = False
        self._round = 0  # cached, as RunView.round goes through all agents
        self._spent = anyio.Event()
        self._stands_still = False
        self._clock_changed = anyio.Event()

    @property
    def has_failed(self) -> bool:
        """Whether the run was stopped by its timeout and that counts as a failure."""
        stop = self._view().stop
        return self._fails and stop is not None and stop.source == "timeout"

    def watch(self, group: anyio.abc.TaskGroup) -> None:
        """Stop the run when its timeout or its budget is reached, for as long as a group lives."""
        if limit_s := self._spec.timeout_s:
            logger.info("Orchestrator timeout configured: %.10g seconds", limit_s)
            group.start_soon(self._guarded, self._watch_time, limit_s)
        logger.info("Starting coordination...")
        group.start_soon(self._guarded, self._watch_budget)

    async def _guarded(self, watch: Callable[..., Awaitable[None]], *limit: float) -> None:
        with ServiceLoop.LIMITS.item(self._note):
            await watch(*limit)

    def observe(self, event: ev.Event, before: RunView, after: RunView) -> None:
        """Update the round, the budget and the clock from an event."""
        if isinstance(event, ev.RoundStarted) and event.number > self._round:
            self._round = after.round
            if self._round > before.round:
                self._log_round(before.round)
        if isinstance(event, ev.ModelFinished):
            self._count(after)
        if self._stands_still != (stands := stands_still(after)):
            self._stands_still = stands
            self._clock_changed.set()

    def conclude(self, status: str) -> None:
        """Log the last round, just before the turn's last event.

        Args:
            status: As in TurnEnded.
        """
        if status == "completed":
            self._log_round(self._view().round)

    # Time ------------------------------------------------------------------------------------

    async def _watch_time(self, limit_s: float) -> None:
        await self._pass(limit_s)
        if self._view().stop is not None:
            return
        request = _graceful("timeout", REACHED.format(limit=limit_s))
        logger.info("%s", request.reason)
        action = await self._action(request)
        if action == "continue":
            self._tell(GOING_ON.format(limit=limit_s))
        elif self._view().stop is None and not await self._hooks.is_vetoed(request):
            self._fails = action == "fail"
            self._stop(request)

    async def _pass(self, limit_s: float) -> None:
        """Sleep for an amount of working time, not counting pauses."""
        left_s = limit_s
        while left_s > 0:
            began, stands = anyio.current_time(), self._stands_still
            self._clock_changed = anyio.Event()
            with anyio.move_on_after(math.inf if stands else left_s):
                await self._clock_changed.wait()
            if not stands:
                left_s -= anyio.current_time() - began

    async def _action(self, request: StopRequest) -> OnTimeout:
        """Return the action for a timeout: the hook's choice, else that of the options or team."""
        configured = self._spec.team.timeout_settings.on_timeout
        if isinstance(given := self._spec.options.timeout, Timeout):
            configured = given.on_timeout
        chosen = await self._hooks.on_timeout(request)
        return chosen if chosen in ("fail", "cancel", "continue") else configured

    # Money -----------------------------------------------------------------------------------

    def _count(self, view: RunView) -> None:
        budget = self._spec.team.orchestrator
        if budget.max_cost is not None:
            for model in unpriced(view):
                text = f"No price is known for {model}: max_cost can't count its money."
                if text not in view.notices:
                    self._tell(text)
        if (reason := over_budget(view, budget)) and not self._spent.is_set():
            self._spent.set()
            if not self._hooks.may_veto:
                # Now, so that no agent starts another call before `_watch_budget` runs.
                self._stop(_graceful("budget", reason))

    async def _watch_budget(self) -> None:
        await self._spent.wait()
        request = _graceful("budget", over_budget(self._view(), self._spec.team.orchestrator))
        if self._view().stop is None and not await self._hooks.is_vetoed(request):
            self._stop(request)

    # Telling ---------------------------------------------------------------------------------

    def _log_round(self, number: int) -> None:
        elapsed_s = time.time() - self._view().started_at
        limit_s = self._spec.timeout_s
        logger.info("Round %d complete (elapsed: %.0fs / %.10gs)", number, elapsed_s, limit_s)

    def _tell(self, text: str) -> None:
        logger.info("%s", text)
        self._note(text)


def _graceful(source: StopSource, reason: str) -> StopRequest:
    return StopRequest(CancellationStatus.REQUESTED, source, reason)
