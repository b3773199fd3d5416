"""Intervals contain the mean at any number of rows, and shrink with it."""

from __future__ import annotations

import math
import random
from statistics import fmean, median

import pytest

from nb_agents.extensions.sweeps.confidence import (
    BettingEvidence,
    RunningMoments,
    difference_interval,
    mean_interval,
)
from tests.samples import IS_FULL, sample, some_or_all
from tests.sweeps.simulations import (
    KINDS,
    ROWS,
    binary,
    false_decisions,
    fixed_size,
    rows_needed,
    spread_of,
)

PAIR = binary(0.5, 0.0)


def test_interval_is_the_values_that_the_evidence_does_not_refute() -> None:
    rng = random.Random(1)
    values = [PAIR(rng, 0.2) for _ in range(150)]
    low, high = difference_interval(values)
    assert low < fmean(values) < high
    for bound, sign in ((low, 1), (high, -1)):
        for inwards, refuted in ((-0.002, True), (0.002, False)):
            evidence = BettingEvidence(bound + sign * inwards, sign)
            for value in values:
                evidence.add(value)
            assert evidence.wins() is refuted


def test_interval_without_rows_excludes_nothing_and_shrinks_with_rows() -> None:
    assert difference_interval([]) == (-1.0, 1.0)
    rng = random.Random(2)
    values = [rng.uniform(-0.5, 0.7) for _ in range(400)]
    widths = [high - low for low, high in map(difference_interval, (values[:50], values))]
    assert widths[1] < widths[0] / 2


def test_bets_ignore_the_row_that_they_are_for() -> None:
    """Otherwise, the gamblers could choose high bets for the rows that they win."""
    before, now = [0.5, -0.25, 0.25], (-1.0, 0.3, 1.0)
    capitals = []
    for value in now:
        evidence = BettingEvidence(0.0, 1)
        for each in (*before, value):
            evidence.add(each)
        capitals.append(math.exp(evidence.log_capital))
    low, middle, high = capitals
    assert middle - low == pytest.approx((high - low) * 1.3 / 2), "the capital is linear in it"


@pytest.mark.parametrize("kind", sample(KINDS, 2))
def test_equal_teams_are_rarely_told_apart_however_often_one_looks(kind: str) -> None:
    count = some_or_all(60, 2000)
    wrong = false_decisions(KINDS[kind], count, ROWS if IS_FULL else 120)
    assert wrong <= count * (0.05 if IS_FULL else 0.1)


@pytest.mark.parametrize("effect", [0.4, -0.4])
def test_a_better_team_is_found(effect: float) -> None:
    assert len(rows_needed(PAIR, effect, 20, 200)) == 20


def test_ten_points_need_at_most_60_percent_of_a_fixed_size_test_with_95_percent_power() -> None:
    pair = KINDS["0 or 1, strongly correlated"]
    needed = rows_needed(pair, 0.1, some_or_all(60, 1000))
    assert median(needed) <= 0.6 * fixed_size(0.1, spread_of(pair, 0.1), 0.95)


def test_moments_are_those_of_the_numbers() -> None:
    moments, values = RunningMoments(), [0.5, -0.25, 1.0, 0.0]
    for value in values:
        moments.add(value)
    assert moments.mean == pytest.approx(fmean(values))
    squares = sum((value - fmean(values)) ** 2 for value in values)
    assert moments.spread == pytest.approx(math.sqrt((squares + 1) / 8))


@pytest.mark.parametrize(
    ("scores", "interval"),
    [
        ([2.0, 4.0], (-9.706, 15.706)),  # 3 ± 12.706 · √2 / √2
        ([1.0, 2.0, 3.0, 4.0, 5.0], (1.0368, 4.9632)),  # 3 ± 2.7764 · 1.5811 / √5
        ([1.0] * 10, (0.7225, 1.0)),  # Wilson
        ([0.0, 1.0] * 5, (0.2366, 0.7634)),
    ],
)
def test_interval_of_a_mean(scores: list[float], interval: tuple[float, float]) -> None:
    assert mean_interval(scores) == pytest.approx(interval, abs=0.002)


@pytest.mark.parametrize("scores", [[], [3.0], [3.0, 3.0], [1.0, math.nan]])
def test_interval_of_a_mean_may_be_unknown(scores: list[float]) -> None:
    assert mean_interval(scores) is None
