"""A sweep as it stands: for the process that works on it, and for those who look on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from nb_agents.receipt import total_cost
from nb_agents.sweeps.manifest import Result, SweepStatus
from nb_agents.view import RunView

__all__ = ["LiveRow", "SweepView", "Totals", "row_record", "sum_of", "tokens_of"]

MAX_FAILURES = 50
"""Failed rows that a view lists."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row that is worked on.

    Attributes:
        name: The row's.
        run: Its run's id.
        view: Its turn as it stands.
    """

    name: str
    run: str
    view: RunView


@dataclass(frozen=True, slots=True)
class SweepView:
    """A sweep as it stands.

    Attributes:
        name: Its name.
        status: How it stands; "completed" once each row has ended, be it failed.
        total: All rows.
        completed, failed: Rows that ended so.
        tokens: Used so far.
        cost: US dollars so far, or None when a model's price is unknown.
        elapsed_s: Seconds since this process began on it.
        left_s: Seconds to go, as far as can be told; None before the first row has ended.
        live: The rows that are worked on.
        failures: Some rows that failed.
        scores: Scores so far.
        reason: Why it stops, or stopped.
        to_go: Rows that this process has not begun yet.
    """

    name: str
    status: SweepStatus
    total: int
    completed: int
    failed: int
    tokens: int
    cost: float | None
    elapsed_s: float
    left_s: float | None
    live: tuple[LiveRow, ...]
    failures: tuple[Result, ...]
    scores: tuple[float, ...]
    reason: str = ""
    to_go: int = 0

    @property
    def waiting(self) -> int:
        """Rows that wait for a person."""
        return sum(bool(row.view.gates) for row in self.live)

    @property
    def is_over(self) -> bool:
        """Whether nothing is worked on any more."""
        return self.status in ("completed", "cancelled")

    @property
    def score(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the scores; None without any."""
        if not self.scores:
            return None
        return fmean(self.scores), stdev(self.scores) if len(self.scores) > 1 else 0.0


@dataclass
class Totals:
    """What the rows that ended come to; kept up, so that a view costs the same for any number.

    Attributes:
        completed: Rows.
        tokens: Used by all rows that ended, however.
        cost: US dollars of those whose price is known.
        unpriced: How many have a price that is not known.
        failures: Rows that failed, by name.
        scores: Scores, by row.
    """

    completed: int = 0
    tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0
    failures: dict[str, Result] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def put(self, result: Result, before: Result | None) -> None:
        """Count a row, in the place of what it was counted as before."""
        if before is not None:
            self._count(before, -1)
        self._count(result, 1)
        self.failures.pop(result.row, None)
        if result.status == "failed":
            self.failures[result.row] = result
        if result.score is not None:
            self.scores[result.row] = result.score

    def _count(self, result: Result, sign: int) -> None:
        self.completed += sign * (result.status == "completed")
        self.tokens += sign * result.tokens
        self.cost += sign * (result.cost or 0.0)
        self.unpriced += sign * (result.cost is None)

    def view(
        self,
        live: tuple[LiveRow, ...],
        *,
        name: str,
        status: SweepStatus,
        total: int,
        elapsed_s: float,
        ended: int,
        to_go: int,
        reason: str,
    ) -> SweepView:
        """Return the sweep as it stands.

        Args:
            live: The rows that are worked on; what a resumed one used before is in the totals.
            name: The sweep's.
            status: How it stands.
            total: All rows.
            elapsed_s: Seconds since the process began on it.
            ended: Rows that this process brought to an end.
            to_go: Rows that it has not begun.
            reason: Why it stops, or stopped.
        """
        costs = [None if self.unpriced else self.cost, *(total_cost(row.view) for row in live)]
        return SweepView(
            name,
            status,
            total,
            self.completed,
            len(self.failures),
            self.tokens + sum(tokens_of(row.view) for row in live),
            sum_of(costs),
            elapsed_s,
            elapsed_s / ended * (to_go + len(live)) if ended else None,
            live,
            tuple(islice(self.failures.values(), MAX_FAILURES)),
            tuple(self.scores.values()),
            reason,
            to_go,
        )


def row_record(row: str, status: str, result: Result | None, session: Path) -> dict[str, Any]:
    """Make the record of a row: what became of it.

    Args:
        row: Its name.
        status: How it stands.
        result: How it ended; None when it has not.
        session: Its session's directory.
    """
    told: dict[str, Any] = {"answer": None}
    if result is not None:
        is_recipe = isinstance(result.answer, dict)
        told = dict(result.answer) if is_recipe else {"answer": result.answer}
    return {
        "row": row,
        "status": status,
        **told,
        "error": result.error if result else "",
        "tokens": result.tokens if result else 0,
        "cost": result.cost if result else 0.0,
        "seconds": result.seconds if result else None,
        "score": result.score if result else None,
        "session": str(session),
    }


def tokens_of(view: RunView) -> int:
    """Count the tokens that all agents of a turn used."""
    return sum(agent.tokens for agent in view.agents.values())


def sum_of(costs: Sequence[float | None]) -> float | None:
    """Sum US dollars; None when one of them is unknown."""
    return None if None in costs else sum(cost or 0.0 for cost in costs)
