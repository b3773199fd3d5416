"""Simulates comparisons of teams, without models: ``python -m tests.sweeps.simulations [count]``.

It prints three tables. The first has the share of comparisons of equal teams that end with a
decision at any of 500 rows. The second has the rows that a difference needs, next to those of
fixed-size tests (two-sided paired z-tests with a level of 5 %, planned with the true effect and
variance). The third has whole comparisons, which may also end because a decision is unlikely.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator
from statistics import NormalDist, median, pstdev

from tests.kit.sweeps import (
    BettingEvidence,
    ComparisonDecider,
    ComparisonSpec,
    RowResult,
    arm_name,
)

Pair = Callable[[random.Random, float], float]
"""Returns the difference of the scores of one row, given the effect."""

ROWS = 500
POWERS = (0.8, 0.9, 0.95)
SHOWN_EFFECTS = (0.1, 0.2)
WHOLE = ((0.0, 400), (0.1, 400), (0.1, 800), (0.2, 400))
"""Effects and table sizes of whole comparisons."""


def binary(share: float, same: float) -> Pair:
    """Return scores 0 and 1.

    Args:
        share: The mean score of the first team.
        same: Probability that a row is equally hard for both teams.
    """

    def pair(rng: random.Random, effect: float) -> float:
        first = rng.random()
        second = first if rng.random() < same else rng.random()
        return float(second < share + effect) - float(first < share)

    return pair


def graded(spread: float) -> Pair:
    """Return continuous differences with a standard deviation."""
    return lambda rng, effect: max(-1.0, min(1.0, rng.gauss(effect, spread)))


def tied(share: float) -> Pair:
    """Return differences of grades in quarters, of which a share is not 0."""

    def pair(rng: random.Random, effect: float) -> float:
        if rng.random() >= share:
            return 0.0
        size = rng.choices((0.25, 0.5, 0.75, 1.0), (4, 3, 2, 1))[0]  # on average 0.5
        return size if rng.random() < 0.5 + effect / share else -size

    return pair


KINDS: dict[str, Pair] = {
    "0 or 1, mean 0.5": binary(0.5, 0.0),
    "0 or 1, mean 0.8": binary(0.8, 0.0),
    "0 or 1, correlated": binary(0.5, 0.6),
    "0 or 1, strongly correlated": binary(0.7, 0.95),
    "continuous, spread 0.35": graded(0.35),
    "continuous, spread 0.15": graded(0.15),
    "grades, 50 % ties": tied(0.5),
}


def first_decision(differences: Iterator[float], rows: int) -> tuple[int, int]:
    """Return the row after which the mean is not 0, and its sign, or (0, 0)."""
    both = {sign: BettingEvidence(0.0, sign) for sign in (1, -1)}
    for row in range(1, rows + 1):
        difference = next(differences)
        for sign, evidence in both.items():
            evidence.add(difference)
            if evidence.wins():
                return row, sign
    return 0, 0


def false_decisions(pair: Pair, count: int, rows: int = ROWS, seed: int = 1) -> int:
    """Return how many of some comparisons of equal teams end with a decision at any row."""
    return sum(end[0] > 0 for end in _decisions(pair, 0.0, count, rows, seed))


def rows_needed(pair: Pair, effect: float, count: int, rows: int = 20 * ROWS) -> list[int]:
    """Return the rows of some comparisons whose decision is right, in ascending order."""
    right = math.copysign(1, effect)
    return sorted(row for row, sign in _decisions(pair, effect, count, rows, 2) if sign == right)


def ended(pair: Pair, effect: float, rows: int, seed: int) -> ComparisonDecider:
    """Return the end of a comparison of all rows of a table."""
    names = tuple(map(str, range(rows)))
    rng = random.Random(f"4 {seed}")
    results = dict[str, RowResult]()
    for name in names:
        difference = pair(rng, effect)
        for key, score in ((arm_name(name, "a"), -difference), (arm_name(name, "b"), difference)):
            results[key] = RowResult(key, "completed", "x", score=max(0.0, score))
    decider = ComparisonDecider(ComparisonSpec(("a", "b"), names))
    decider.advance(results)
    return decider


def spread_of(pair: Pair, effect: float, rows: int = 20_000) -> float:
    """Return the standard deviation of the differences, from many rows."""
    rng = random.Random(3)
    return pstdev(pair(rng, effect) for _ in range(rows))


def fixed_size(effect: float, spread: float, power: float) -> int:
    """Return the number of rows of a fixed-size test."""
    quantile = NormalDist().inv_cdf
    return math.ceil(((quantile(0.975) + quantile(power)) * spread / effect) ** 2)


def _decisions(
    pair: Pair, effect: float, count: int, rows: int, seed: int
) -> Iterator[tuple[int, int]]:
    for each in range(count):
        rng = random.Random(f"{seed} {each}")
        yield first_decision(_differences(pair, effect, rng), rows)


def _differences(pair: Pair, effect: float, rng: random.Random) -> Iterator[float]:
    while True:
        yield pair(rng, effect)


def main(count: int = 2000) -> None:
    """Print the tables for some comparisons of each kind."""
    print(f"| scores | decisions in {count:,} comparisons of equal teams |\n|---|---|")
    for name, pair in KINDS.items():
        wrong = false_decisions(pair, count)
        print(f"| {name} | {wrong} ({wrong / count:.1%}) |", flush=True)
    heads = "".join(f" {power:.0%} power |" for power in POWERS)
    print(f"\n| scores | effect | median rows | wrong |{heads}\n|---|---|---|---|---|---|---|")
    for effect in SHOWN_EFFECTS:
        for name, pair in KINDS.items():
            needed = rows_needed(pair, effect, count // 2)
            spread = spread_of(pair, effect)
            sizes = [fixed_size(effect, spread, power) for power in POWERS]
            ratios = "".join(f" {median(needed) / size:.0%} of {size} |" for size in sizes)
            wrong = count // 2 - len(needed)
            print(f"| {name} | {effect} | {median(needed):g} | {wrong} |{ratios}", flush=True)
    print("\n| scores | effect | rows | decided | median of rows used |\n|---|---|---|---|---|")
    for name, pair in KINDS.items():
        for effect, rows in WHOLE:
            ends = [ended(pair, effect, rows, seed) for seed in range(count // 10)]
            share = sum(end.decision != "undecided" for end in ends) / len(ends)
            used = median(len(end.pairs) for end in ends)
            print(f"| {name} | {effect} | {rows} | {share:.0%} | {used:g} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
