"""Stops a run when the user's day budget is used up."""

from __future__ import annotations

import logging

from nb_agents.errors import UserError
from nb_agents.turns.budget import cost_of_turn
from nb_agents.turns.budget_watch import WatchDeps, budget_stop
from nb_agents.turns.day_budget import DayLedger, day_limit
from nb_agents.turns.ledger import LedgerError
from nb_agents.turns.ledger_share import LedgerShare

logger = logging.getLogger("nb_agents")

DAY = "day budget"
"""The reason for which a run is paused while it waits for a reservation."""


class DayWatch:
    """Reserves parts of the user's day budget for a turn, and stops the turn when none is left.

    Args:
        turn: The turn's path.
        deps: The functions of the run.
    """

    def __init__(self, turn: str, deps: WatchDeps) -> None:
        self._deps = deps
        self._limit = _limit()
        self._share = LedgerShare(
            DayLedger(), turn, lambda: cost_of_turn(deps.view()), deps.hold, DAY
        )

    def count(self) -> None:
        """Compare what the turn has spent with its reservation."""
        if self._limit is not None:
            self._share.count()

    async def watch(self) -> None:
        """Reserve parts of the budget until none is left or the task is cancelled."""
        reason, limit = "", self._limit
        try:
            while limit is not None and not reason:
                await self._share.wait_due()
                reason = await self._reserve(limit)
            if reason:
                self._deps.stop(budget_stop(reason))
        finally:
            self._share.lift()

    async def _reserve(self, limit: float) -> str:
        """Reserve a part of the budget. Returns the reason if nothing can be reserved, or ""."""
        try:
            grant = await self._share.renew(limit)
        except LedgerError as exc:
            return f"the day budget can't be checked: {exc}"
        return f"the day budget of ${limit:.4g} is used up" if grant.is_refused else ""

    async def close(self) -> None:
        """End the reservation of a turn that is over."""
        if self._limit is None:
            return
        try:
            await self._share.release()
        except LedgerError as exc:  # the next reservation of any turn reads the journal
            logger.warning("The day's spending can't be written: %s", exc)


def _limit() -> float | None:
    try:
        return day_limit()
    except UserError:  # reported by the start
        return None
