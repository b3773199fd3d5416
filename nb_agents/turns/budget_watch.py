"""Watches the budget of a run's task: stops the run at its limit, or asks the user to raise it.

While the question is open, the run is paused, and its open streams are closed because they would
cost more. Their calls are sent again when the budget is raised.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from nb_agents import events as ev
from nb_agents.agents.stop_scope import PauseGate, Spending
from nb_agents.cancel import AgentStopped, CancellationStatus, StopRequest
from nb_agents.tools.policy import ApprovalDecision
from nb_agents.turns.budget import (
    Budget,
    Spent,
    asks_at_budget,
    budget_of,
    chosen_raise,
    next_budget,
    propose_raise,
    report_step,
    unpriced,
    unpriced_notice,
    usage_of_task,
    usage_of_turn,
    used_share,
    used_up,
)
from nb_agents.turns.hooks import Hooks
from nb_agents.turns.ledger import LedgerError
from nb_agents.turns.ledger_share import LedgerShare
from nb_agents.turns.task_ledger import Unit, ledgers_of, new_task, turn_key
from nb_agents.turns.turn_spec import TurnSpec
from nb_agents.view.run_view import RunView

logger = logging.getLogger("nb_agents")

NEAR_LIMIT = 0.8
"""The share of a budget from which on each open call's usage is journalled as it grows."""

BUDGET = "budget"
"""The reason for which the run is paused while the question is open."""


@dataclass(frozen=True)
class WatchDeps:
    """The functions and state of a run that are needed to watch its budget.

    Attributes:
        view: Returns the current view.
        stop: Stops the run.
        note: Adds a notice for the user.
        emit: Called with each event.
        ask: Asks the user whether to raise the budget.
        hold: The run's pause.
    """

    view: Callable[[], RunView]
    stop: Callable[[StopRequest], object]
    note: Callable[[str], None]
    emit: Callable[[ev.Event], None]
    ask: Callable[[str], Awaitable[ApprovalDecision]]
    hold: PauseGate


class BudgetWatch:
    """Watches the budget of a run's task, which the task's turns and forks share.

    Args:
        spec: The turn's spec, with the limits.
        hooks: The user's hooks.
        deps: The functions of the run.

    Attributes:
        spending: The state of the budget, which open model calls check.
    """

    def __init__(self, spec: TurnSpec, hooks: Hooks, deps: WatchDeps) -> None:
        self._spec = spec
        self._budget = budget_of(spec.team, spec.options)
        self._asks = asks_at_budget(spec.team, spec.options)
        self.spending = Spending(step=report_step(self._budget))
        self._hooks = hooks
        self._deps = deps
        self._is_at_limit = False
        self._reached = anyio.Event()
        self._shares: dict[Unit, LedgerShare] = {}
        self._by_others: Spent | None = None
        self._reported = {*spec.unpriced}

    def close_streams(self) -> None:
        """Let open model calls close their streams, because more text would cost more."""
        self.spending.is_over = True

    def start(
        self, group: anyio.abc.TaskGroup, guard: Callable[..., Coroutine[Any, Any, None]]
    ) -> None:
        """Start tasks that share the budget with the task's other turns, and react to its end.

        Args:
            group: The task group.
            guard: Calls an async function that must not end the run if it fails.
        """
        view, resumed = self._view, self._spec.resumed
        past = resumed.task_budget if resumed and resumed.task_budget.id else new_task(view)
        key, turn = turn_key(view), str(self._spec.paths.path)
        for unit, ledger in ledgers_of(self._spec.paths, past, self._budget).items():
            used = partial(self._own, unit)
            share = LedgerShare(ledger, key, used, self._deps.hold, f"{BUDGET} in {unit}", turn)
            self._shares[unit] = share
            group.start_soon(guard, self._watch_share, unit, share)
        self.count(view)  # a resume may start with a used-up budget
        group.start_soon(guard, self.watch)

    def count(self, view: RunView) -> None:
        """Compare what the task has used with its budget."""
        if self._budget.max_cost is not None:
            self._report(unpriced(view))
        if reason := used_up(self._used, self._budget):
            self._reach_limit(reason)
        elif used_share(self._used, self._budget) >= NEAR_LIMIT:
            self.spending.step = 1
        for share in self._shares.values():
            share.count()

    def _report(self, models: Sequence[str]) -> None:
        """Add a notice about models without a price, unless they were reported before."""
        if new := [model for model in models if model not in self._reported]:
            self._reported.update(new)
            text = unpriced_notice(new)
            logger.info("%s", text)
            self._deps.note(text)

    async def watch(self) -> None:
        """Stop the run each time the budget is used up, unless the user raises it."""
        while True:
            await self._reached.wait()
            self._reached = anyio.Event()
            try:
                reason = await self._ask() if self._asks else used_up(self._used, self._budget)
                if reason:
                    await self._stop(reason)
            except AgentStopped:  # the question stays open for a resume
                pass
            finally:
                self._deps.hold.unpause(BUDGET)

    async def close(self) -> None:
        """Write what the turn has used, and end its reservations."""
        for share in self._shares.values():
            try:
                await share.release()
            except LedgerError as exc:  # the next reservation of another turn reads the journal
                logger.warning("The spending of the task can't be written: %s", exc)

    @property
    def _view(self) -> RunView:
        return self._deps.view()

    @property
    def _used(self) -> Spent:
        """What the task has used, as far as this turn knows."""
        if self._by_others is None:
            return usage_of_task(self._view)
        own = usage_of_turn(self._view)
        return Spent(own.tokens + self._by_others.tokens, own.cost + self._by_others.cost)

    def _own(self, unit: Unit) -> float:
        own = usage_of_turn(self._view)
        return own.cost if unit == "cost" else own.tokens

    def _reach_limit(self, reason: str) -> None:
        if self._is_at_limit:
            return
        self._is_at_limit = True
        self._reached.set()
        self._deps.emit(ev.BudgetReached(**next_budget(self._used, self._budget)._asdict()))
        if self._asks:
            self._deps.hold.pause(BUDGET)
            self.close_streams()
        elif not self._hooks.may_veto:
            # Stopped here, so that no agent starts another call before `watch` runs.
            self._deps.stop(budget_stop(reason))

    async def _watch_share(self, unit: Unit, share: LedgerShare) -> None:
        """Reserve parts of a limit until the end of the run."""
        try:
            while True:
                await share.wait_due()
                grant = await share.renew(limit := self._limit(unit))
                # If nothing is left, the rest is reserved by others, and used up for this turn.
                rest = max(limit - self._own(unit), 0.0) if grant.is_refused else 0.0
                self._count_others(unit, max(grant.spent_by_others, rest))
                self.count(self._view)
        except LedgerError as exc:
            self._deps.note(f"Forks of this task may exceed its budget together: {exc}")
        finally:
            share.lift()

    def _limit(self, unit: Unit) -> float:
        limit = self._budget.max_cost if unit == "cost" else self._budget.max_tokens
        assert limit is not None  # a raise changes limits, and never removes them
        return limit

    def _count_others(self, unit: Unit, used: float) -> None:
        by_others = self._by_others
        if by_others is None:
            by_others = Spent(self._view.tokens_before, self._view.cost_before)
        self._by_others = (
            by_others._replace(cost=used)
            if unit == "cost"
            else by_others._replace(tokens=math.ceil(used))
        )

    async def _ask(self) -> str:
        """Ask whether to raise the budget. Returns a reason to stop, or "" if it was raised.

        Raises:
            AgentStopped: A stop was requested while waiting.
        """
        while reason := used_up(self._used, self._budget):
            proposed = propose_raise(self._used, self._budget)
            if proposed is None:
                return reason
            decision = await self._deps.ask(proposed.question)
            if not decision.approved:
                return f"{reason}; a raise was {decision}"
            self._raise(chosen_raise(self._budget, proposed.budget, decision.message))
        return ""

    def _raise(self, budget: Budget) -> None:
        self._deps.emit(ev.BudgetRaised(max_cost=budget.max_cost, max_tokens=budget.max_tokens))
        self._budget = budget
        if not used_up(self._used, budget):
            self._is_at_limit, self.spending.is_over = False, False
            self.spending.step = report_step(budget)
        for share in self._shares.values():
            share.retry()

    async def _stop(self, reason: str) -> None:
        request = budget_stop(reason)
        if self._view.stop is None:
            if await self._hooks.is_vetoed(request):
                for share in self._shares.values():
                    share.lift()
            else:
                self._deps.stop(request)


def budget_stop(reason: str) -> StopRequest:
    """Return the request that stops a run gracefully because of its budget."""
    return StopRequest(CancellationStatus.REQUESTED, "budget", reason)
