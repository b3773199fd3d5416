"""Intervals contain the mean at any number of rows, and shrink with it."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from nb_agents.extensions.sweeps.confidence import (
    BettingEvidence,
    RunningMoments,
    difference_interval,
    mean_interval,
)


def differences(rng: random.Random, effect: float, share: float, rows: int) -> list[float]:
    """Return differences of scores 0 and 1, of which a share is not 0."""
    kinds = [(share + effect) / 2, (share - effect) / 2, 1 - share]
    return rng.choices([1.0, -1.0, 0.0], kinds, k=rows)


def first_win(values: list[float]) -> tuple[int, int]:
    """Return the row after which the mean is not 0, and the sign, or (0, 0)."""
    both = BettingEvidence(0.0, 1), BettingEvidence(0.0, -1)
    for row, value in enumerate(values, 1):
        for sign, evidence in zip((1, -1), both, strict=True):
            evidence.add(value)
            if evidence.wins():
                return row, sign
    return 0, 0


def test_interval_is_the_values_that_the_evidence_does_not_refute() -> None:
    values = differences(random.Random(1), 0.2, 0.5, 150)
    low, high = difference_interval(values)
    assert low < fmean(values) < high
    for mean, refuted in ((low - 0.002, True), (low + 0.002, False)):
        evidence = BettingEvidence(mean, 1)
        for value in values:
            evidence.add(value)
        assert evidence.wins() is refuted
    for mean, refuted in ((high + 0.002, True), (high - 0.002, False)):
        evidence = BettingEvidence(mean, -1)
        for value in values:
            evidence.add(value)
        assert evidence.wins() is refuted


def test_interval_without_rows_excludes_nothing_and_shrinks_with_rows() -> None:
    assert difference_interval([]) == (-1.0, 1.0)
    rng = random.Random(2)
    values = [rng.uniform(-0.5, 0.7) for _ in range(400)]
    widths = [high - low for low, high in map(difference_interval, (values[:50], values))]
    assert widths[1] < widths[0] / 2
    assert difference_interval(values) == difference_interval(values[::-1])


def test_equal_teams_are_rarely_told_apart_however_often_one_looks() -> None:
    rng = random.Random(3)
    wrong = sum(first_win(differences(rng, 0.0, 0.4, 120))[1] != 0 for _ in range(200))
    assert wrong <= 10  # 5 %; the expected number is about 3


def test_a_better_team_is_found() -> None:
    rng = random.Random(4)
    found = [first_win(differences(rng, 0.3, 0.4, 150)) for _ in range(20)]
    assert {sign for _, sign in found} == {1}
    flipped = [first_win(differences(rng, -0.3, 0.4, 150)) for _ in range(20)]
    assert {sign for _, sign in flipped} == {-1}


def test_moments_are_those_of_the_numbers() -> None:
    moments, values = RunningMoments(), [0.5, -0.25, 1.0, 0.0]
    for value in values:
        moments.add(value)
    assert moments.mean == pytest.approx(fmean(values))
    squares = sum((value - fmean(values)) ** 2 for value in values)
    assert moments.spread == pytest.approx(math.sqrt((squares + 1) / 5))


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
