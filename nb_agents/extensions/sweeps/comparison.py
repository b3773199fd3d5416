"""Decides which of two teams is better, from the results of their rows. Pure.

The rows are in a random order that does not change. The decision is the first one that the rows
support in this order, so it does not depend on which row ended first, and a resume repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from typing import Any, Literal, NamedTuple

from nb_agents.extensions.sweeps.confidence import (
    ALPHA,
    BettingEvidence,
    ConfidenceInterval,
    difference_interval,
)
from nb_agents.extensions.sweeps.notes import RowResult
from nb_agents.nouns import count

Arm = Literal["a", "b"]
Decision = Literal["a", "b", "equal", "undecided"]

MIN_ROWS = 20
"""Number of compared rows before a comparison can end without a decision."""

MAX_POINTS = 40
"""Maximum number of intervals in a verdict's history."""

MAX_DIFFERENT = 5
"""Maximum number of rows in a verdict that differ most."""


@dataclass(frozen=True)
class ComparisonSpec:
    """What a comparison compares, and when it is decided. Stored in ``sweep.json``.

    Attributes:
        teams: The names of the two teams.
        rows: The names of the source's rows, in the order in which they are compared.
        low, high: The lowest and the highest score.
        margin: The largest difference, in the unit of the scores, at which teams count as equal. 0
            means that they never do.
        alpha: The probability of a wrong decision.
        max_cost: Budget of all rows together in US dollars, or None.
        pairwise: Whether a judge compares the two answers of a row. Its scores are 0, 0.5 and 1.
    """

    teams: tuple[str, str]
    rows: tuple[str, ...]
    low: float = 0.0
    high: float = 1.0
    margin: float = 0.0
    alpha: float = ALPHA
    max_cost: float | None = None
    pairwise: bool = False


class ComparedPair(NamedTuple):
    """The results of both teams for one row.

    Attributes:
        row: The row's name.
        difference: Score of team b minus that of team a, as part of the range of the scores, so
            from -1 to 1. None if a score is missing.
        cost: Cost in US dollars, or None if the price of a model is unknown.
    """

    row: str
    difference: float | None
    cost: float | None


class EffectPoint(NamedTuple):
    """The effect after a number of compared rows.

    Attributes:
        rows: The number of rows.
        effect: Mean difference of the scores.
        low, high: Its confidence interval.
    """

    rows: int
    effect: float
    low: float
    high: float


@dataclass(frozen=True)
class ComparisonVerdict:
    """The result of a comparison, or its state so far.

    Attributes:
        decision: "a" or "b" is the better team. "equal": the difference is within the margin.
            "undecided": the rows so far do not decide.
        winner: The name of the better team, or "".
        reason: Why there is no decision, or "".
        is_final: Whether more rows of this comparison can't change the decision, or are unlikely to
            lead to one.
        effect: Mean score of team b minus that of team a.
        low, high: The confidence interval of the effect.
        rows_used: The number of rows on which the decision is based.
        rows_total: The number of rows that the comparison may use.
        rows_saved: The number of rows that no team started.
        rows_unscored: The number of compared rows without a score, which do not count.
        history: The effect after some of the rows, at most `MAX_POINTS`.
        different: The rows with the largest differences of the scores, with these differences.
    """

    decision: Decision = "undecided"
    winner: str = ""
    reason: str = ""
    is_final: bool = False
    effect: float = 0.0
    low: float = -1.0
    high: float = 1.0
    rows_used: int = 0
    rows_total: int = 0
    rows_saved: int = 0
    rows_unscored: int = 0
    history: tuple[EffectPoint, ...] = ()
    different: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return f"{self.winner or self.decision} after {count(self.rows_used, 'row')}"


def in_random_order(rows: Sequence[str], seed: int) -> list[str]:
    """Return the names of rows in a random order that depends only on the names and the seed."""
    return sorted(rows, key=lambda row: sha256(f"{seed}:{row}".encode()).digest())


def arms_of(row: str, seed: int) -> tuple[Arm, Arm]:
    """Return the order in which the teams run a row, which is random."""
    is_swapped = sha256(f"{seed}:first:{row}".encode()).digest()[0] & 1
    return ("b", "a") if is_swapped else ("a", "b")


def arm_name(row: str, arm: Arm) -> str:
    """Return the name of the session in which a team runs a row."""
    return f"{row}_{arm}"


def arms_of_row(row: str) -> tuple[str, str]:
    """Return the names of the sessions in which the two teams run a row."""
    return arm_name(row, "a"), arm_name(row, "b")


def partner_of(name: str) -> str:
    """Return the name of the session in which the other team runs the same row."""
    return arm_name(name[:-2], "b" if name.endswith("_a") else "a")


def pair_of(
    row: str, results: Mapping[str, RowResult], spec: ComparisonSpec
) -> ComparedPair | None:
    """Return the results of a row, or None if a team or a score function has not finished it.

    A team that failed gets the lowest score.
    """
    both = [results.get(arm_name(row, arm)) for arm in ("a", "b")]
    a, b = both
    if a is None or b is None or "cancelled" in (a.status, b.status):
        return None
    cost = None if a.cost is None or b.cost is None else a.cost + b.cost
    if spec.pairwise and a.status == b.status == "completed":
        return _judged(row, a, b, cost)
    scores = [_score(each, spec) for each in (a, b)]
    if spec.pairwise:  # at least one team failed
        scores = [float(each.status == "completed") for each in (a, b)]
    if any(score is _PENDING for score in scores):
        return None
    if None in scores:
        return ComparedPair(row, None, cost)
    return ComparedPair(row, scores[1] - scores[0], cost)


_PENDING: Any = object()


def _judged(row: str, a: RowResult, b: RowResult, cost: float | None) -> ComparedPair | None:
    """Return the judge's comparison, which is recorded with the answer that ended last."""
    if a.score is None and b.score is None:
        return ComparedPair(row, None, cost) if a.error or b.error else None
    difference = 1 - 2 * a.score if b.score is None and a.score is not None else None
    if difference is None:
        assert b.score is not None
        difference = 2 * b.score - 1
    return ComparedPair(row, difference, cost)


def _score(result: RowResult, spec: ComparisonSpec) -> Any:
    """Return a score from 0 to 1, None if there is none, or `_PENDING`."""
    if result.status == "failed":
        return 0.0
    if result.score is None:
        return None if result.error else _PENDING
    score = (result.score - spec.low) / (spec.high - spec.low)
    return score if 0 <= score <= 1 else None


@dataclass
class ComparisonDecider:
    """Compares pairs in their order until there is a decision.

    Args:
        spec: The comparison.

    Attributes:
        pairs: The compared pairs with a score.
        decision: The decision so far.
        reason: Why there will be none, or "".
    """

    spec: ComparisonSpec
    pairs: list[ComparedPair] = field(default_factory=list)
    decision: Decision = "undecided"
    reason: str = ""
    unscored: int = 0

    def __post_init__(self) -> None:
        margin = self.spec.margin / (self.spec.high - self.spec.low)
        self._next, self._cost, self._unpriced = 0, 0.0, False
        self._better = {"b": BettingEvidence(0.0, 1), "a": BettingEvidence(0.0, -1)}
        self._within = (BettingEvidence(-margin, 1), BettingEvidence(margin, -1)) if margin else ()

    @property
    def is_final(self) -> bool:
        """Whether the comparison has ended: with a decision, or because there will be none."""
        return self.decision != "undecided" or bool(self.reason)

    def advance(self, results: Mapping[str, RowResult]) -> bool:
        """Add the pairs that are complete, in order, until the end. Returns `is_final`."""
        while not self.is_final and self._next < len(self.spec.rows):
            pair = pair_of(self.spec.rows[self._next], results, self.spec)
            if pair is None:
                break
            self._next += 1
            self._add(pair)
        return self.is_final

    def _add(self, pair: ComparedPair) -> None:
        self._unpriced = self._unpriced or pair.cost is None
        self._cost += pair.cost or 0.0
        if pair.difference is None:
            self.unscored += 1
        else:
            self.pairs.append(pair)
            for evidence in (*self._better.values(), *self._within):
                evidence.add(pair.difference)
        self._decide()

    def _decide(self) -> None:
        alpha = self.spec.alpha
        arms: tuple[Arm, Arm] = ("a", "b")
        for arm in arms:
            if self._better[arm].wins(alpha):
                self.decision = arm
                return
        if self._within and all(each.wins(alpha) for each in self._within):
            self.decision = "equal"
        elif self._next >= len(self.spec.rows):
            self.reason = "all rows are compared" if self.pairs else "no row has a score"
        elif len(self.pairs) >= MIN_ROWS and not self._can_decide():
            self.reason = "the remaining rows are unlikely to decide it"

    def _can_decide(self) -> bool:
        """Return whether the rows that can still be paid may lead to a decision."""
        rows, alpha = self._affordable_rows() - self._next, self.spec.alpha
        if rows <= 0:
            return False
        if any(each.can_win(rows, alpha) for each in self._better.values()):
            return True
        return bool(self._within) and all(each.can_win(rows, alpha) for each in self._within)

    def _affordable_rows(self) -> int:
        """Return how many rows the budget allows, at the mean cost so far."""
        rows = len(self.spec.rows)
        if self.spec.max_cost is None or self._unpriced or not self._cost:
            return rows
        return min(rows, math.floor(self.spec.max_cost / (self._cost / self._next)))


def verdict_of(
    spec: ComparisonSpec,
    results: Mapping[str, RowResult],
    stopped: str = "",
    max_points: int = MAX_POINTS,
) -> ComparisonVerdict:
    """Return the verdict on two teams.

    Args:
        spec: The comparison.
        results: The results of both teams' rows, by the names of their sessions.
        stopped: Why the comparison was stopped, or "".
        max_points: Maximum length of the verdict's history.
    """
    decider = ComparisonDecider(spec)
    decider.advance(results)
    started = sum(any(arm_name(row, arm) in results for arm in ("a", "b")) for row in spec.rows)
    history = _history([pair.difference or 0.0 for pair in decider.pairs], spec, max_points)
    last = (
        history[-1] if history else EffectPoint(0, 0.0, spec.low - spec.high, spec.high - spec.low)
    )
    by_size = sorted(decider.pairs, key=lambda pair: -abs(pair.difference or 0.0))
    different = [pair for pair in by_size if pair.difference][:MAX_DIFFERENT]
    winners = {"a": spec.teams[0], "b": spec.teams[1]}
    return ComparisonVerdict(
        decider.decision,
        winners.get(decider.decision, ""),
        decider.reason or ("" if decider.is_final else stopped or "rows are missing"),
        decider.is_final,
        last.effect,
        last.low,
        last.high,
        len(decider.pairs),
        len(spec.rows),
        len(spec.rows) - started,
        decider.unscored,
        tuple(history),
        tuple((pair.row, (pair.difference or 0.0) * (spec.high - spec.low)) for pair in different),
    )


def _history(
    differences: Sequence[float], spec: ComparisonSpec, max_points: int
) -> list[EffectPoint]:
    """Return the effect after some of the rows, the last one included."""
    total, scale = len(differences), spec.high - spec.low
    steps = min(total, max_points)
    ends = sorted({math.ceil(total * step / steps) for step in range(1, steps + 1)})
    points = []
    for end in ends:
        interval: ConfidenceInterval = difference_interval(differences[:end], spec.alpha)
        effect = math.fsum(differences[:end]) / end
        points.append(EffectPoint(end, effect * scale, interval.low * scale, interval.high * scale))
    return points


def unscored_reason(spec: ComparisonSpec, results: Mapping[str, RowResult]) -> tuple[str, str]:
    """Return the first row that is left out, and why it has no score. Two empty texts if none is.

    Args:
        spec: The comparison.
        results: The results of both teams' rows, by the names of their sessions.
    """
    for row in spec.rows:
        pair = pair_of(row, results, spec)
        if pair is None or pair.difference is not None:
            continue
        both = [results[arm_name(row, arm)] for arm in ("a", "b")]
        outside = (f"The score is {each.score:g}." for each in both if each.score is not None)
        reasons = chain((each.error for each in both), outside)
        return row, next(filter(None, reasons), "")
    return "", ""


def stop_reason(
    spec: ComparisonSpec, retry_failed: bool = False
) -> Callable[[Mapping[str, RowResult]], str]:
    """Return a function that returns why a comparison can end, or "", given the results so far.

    A row of an earlier process whose score failed is scored again, and a failed one may run again.
    Until then, it is not complete.

    Args:
        spec: The comparison.
        retry_failed: Whether failed rows run again.
    """
    decider, outdated = ComparisonDecider(spec), dict[str, RowResult]()
    is_first = True

    def reason(results: Mapping[str, RowResult]) -> str:
        nonlocal is_first
        if is_first:
            is_first = False
            outdated.update(
                {n: each for n, each in results.items() if _is_repeated(each, retry_failed)}
            )
        if outdated:
            results = {n: each for n, each in results.items() if outdated.get(n) is not each}
        return _end_of(decider) if decider.advance(results) else ""

    return reason


def _is_repeated(result: RowResult, retry_failed: bool) -> bool:
    """Return whether a row of an earlier process is scored again or runs again."""
    if result.status == "failed":
        return retry_failed
    return result.status == "completed" and result.score is None and bool(result.error)


def _end_of(decider: ComparisonDecider) -> str:
    """Return why a comparison has ended."""
    names = {"a": decider.spec.teams[0], "b": decider.spec.teams[1]}
    if decider.decision == "undecided":
        return f"undecided: {decider.reason}"
    winner = names.get(decider.decision)
    what = f"{winner} is better" if winner else "the teams are equal"
    return f"decided after {count(len(decider.pairs), 'row')}: {what}"
