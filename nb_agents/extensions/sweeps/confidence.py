"""Confidence sequences for differences of scores. Pure.

A confidence sequence is a sequence of intervals, one after each row. With probability 1 - alpha,
all of them contain the true mean, so a comparison may look after each row and stop at any time.

The intervals are the hedged capital process of I. Waudby-Smith and A. Ramdas, "Estimating means of
bounded random variables by betting", JRSS B 86 (2024), 1-27, https://arxiv.org/abs/2010.09686. A
gambler bets against the hypothesis that the mean is ``m``. If it is, the capital exceeds
``2 / alpha`` with probability of at most ``alpha / 2`` at any time (Ville's inequality). The
interval contains each ``m`` against which neither gambler, one for higher and one for lower means,
has won.

The gamblers bet on effects of a few sizes. The best bet on an effect depends on the variance, which
they estimate from the previous rows, so that the bets are predictable as the inequality requires.

`confseq` by the same authors has no wheels, and needs a C++ compiler and Boost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

ALPHA = 0.05
"""The default probability that an interval misses the mean."""

TARGETS = ((0.05, 0.2), (0.12, 0.6), (0.4, 0.2))
"""The sizes of effects on which the gamblers bet, and the part of the capital for each.

They were chosen for effects of about 10 points, in simulations. Any choice is valid.
"""

MAX_BET = 0.9
"""The largest part of the capital that may be lost with one row."""

OPTIMISM = 3.0
"""Standard errors by which the remaining rows may be better than the mean so far."""

STEPS = 13
"""Bisection steps of a bound, which limit its error to 2 / 2**13. Bounds are rounded outwards."""

_CHUNK = 64
"""Number of factors that are multiplied before a logarithm is taken."""


class ConfidenceInterval(NamedTuple):
    """A confidence interval.

    Attributes:
        low, high: The bounds.
    """

    low: float
    high: float


def difference_interval(differences: Sequence[float], alpha: float = ALPHA) -> ConfidenceInterval:
    """Return the interval of a confidence sequence for the mean of differences from -1 to 1.

    Args:
        differences: The differences so far, in the order of the rows.
        alpha: The probability that any interval of the sequence misses the mean.
    """
    counts = Counter(zip(differences, _spreads_before(differences), strict=True))
    flipped = {(-value, spread): count for (value, spread), count in counts.items()}
    return ConfidenceInterval(_lower_bound(counts, alpha), -_lower_bound(flipped, alpha))


_Counts = Mapping[tuple[float, float], int]
"""How often each difference occurs with each standard deviation of the rows before it."""


def _spreads_before(differences: Iterable[float]) -> list[float]:
    """Return, for each difference, the standard deviation of those before it."""
    moments, spreads = RunningMoments(), list[float]()
    for difference in differences:
        spreads.append(moments.rounded_spread)
        moments.add(difference)
    return spreads


def _lower_bound(counts: _Counts, alpha: float) -> float:
    """Return the largest mean that the gambler for higher means has refuted, or -1."""
    rejected, kept, limit = -1.0, 1.0, math.log(2 / alpha)
    for _ in range(STEPS):
        middle = (rejected + kept) / 2
        if log_sum_exp([_log_capital(counts, middle, *target) for target in TARGETS]) >= limit:
            rejected = middle
        else:
            kept = middle
    return rejected


def _log_capital(counts: _Counts, mean: float, target: float, part: float) -> float:
    """Return the logarithm of the capital from bets on a mean that is ``target`` higher."""
    bets = {spread: _bet(target, spread, mean) for _, spread in counts}
    if len(counts) <= _CHUNK:
        logs = (n * math.log(1 + bets[s] * (d - mean)) for (d, s), n in counts.items())
        return math.log(part) + sum(logs)
    factors = [1 + bets[s] * (d - mean) for (d, s), n in counts.items() for _ in range(n)]
    chunks = (factors[start : start + _CHUNK] for start in range(0, len(factors), _CHUNK))
    return math.log(part) + sum(math.log(math.prod(chunk)) for chunk in chunks)


def _bet(target: float, spread: float, mean: float) -> float:
    """Return the bet against a mean that is best if the real one is ``target`` higher.

    With this bet, the capital is multiplied by ``1 + bet * (difference - mean)``.

    Args:
        target: The size of the effect.
        spread: The standard deviation of the differences.
        mean: The mean, greater than -1.
    """
    return min(target / (spread**2 + target**2), MAX_BET / (1 + mean))


def log_sum_exp(logs: Sequence[float]) -> float:
    """Return the logarithm of the sum of numbers, given their logarithms."""
    top = max(logs)
    return top + math.log(math.fsum(math.exp(each - top) for each in logs))


class BettingEvidence:
    """Evidence, row by row, that the mean of differences is higher than a value.

    Args:
        mean: The value, greater than -1.
        sign: 1 for evidence of higher means, -1 for evidence of lower ones.
    """

    def __init__(self, mean: float = 0.0, sign: int = 1) -> None:
        self._mean, self._sign = mean * sign, sign
        self._logs = [math.log(part) for _, part in TARGETS]
        self._moments = RunningMoments()

    def add(self, difference: float) -> None:
        """Add the difference of the next row."""
        edge = difference * self._sign - self._mean
        self._logs = [
            log + math.log(1 + bet * edge)
            for log, bet in zip(self._logs, self._bets(), strict=True)
        ]
        self._moments.add(difference)

    @property
    def log_capital(self) -> float:
        """The logarithm of the capital, which is 0 before the first row."""
        return log_sum_exp(self._logs)

    def wins(self, alpha: float = ALPHA) -> bool:
        """Return whether the value is refuted."""
        return self.log_capital >= math.log(2 / alpha)

    def can_win(self, rows: int, alpha: float = ALPHA) -> bool:
        """Return whether the value may still be refuted after more rows.

        The projection is optimistic: it assumes that the mean of the other rows is `OPTIMISM`
        standard errors better than the mean so far.

        Args:
            rows: The number of rows still to come.
            alpha: As for `wins`.
        """
        spread = self._moments.spread
        best = self._sign * self._moments.mean + OPTIMISM * spread / math.sqrt(self._moments.count)
        edge = min(1.0, best) - self._mean
        square = spread**2 + edge**2
        projected = [
            log + rows * (bet * edge - bet**2 * square / 2)
            for log, bet in zip(self._logs, self._bets(), strict=True)
        ]
        return log_sum_exp(projected) >= math.log(2 / alpha)

    def _bets(self) -> list[float]:
        spread = self._moments.rounded_spread
        return [_bet(target, spread, self._mean) for target, _ in TARGETS]


class RunningMoments:
    """Count, mean and standard deviation of numbers, one at a time (Welford's algorithm)."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)

    @property
    def spread(self) -> float:
        """The standard deviation. Four more observations keep it near 0.5 for the first numbers."""
        return math.sqrt((self._squares + 1) / (self.count + 4))

    @property
    def rounded_spread(self) -> float:
        """The standard deviation, rounded so that many rows have the same one."""
        return round(self.spread, 2)


def mean_interval(scores: Sequence[float]) -> ConfidenceInterval | None:
    """Return the 95 % confidence interval of the mean of a fixed number of scores.

    It is Wilson's interval if all scores are 0 or 1, and otherwise Student's t interval.

    Returns:
        The interval, or None for fewer than two scores, scores that are not finite, or equal scores
        other than 0 and 1, whose spread is unknown.
    """
    count = len(scores)
    if count < 2 or not all(map(math.isfinite, scores)):
        return None
    mean = fmean(scores)
    if all(score in (0, 1) for score in scores):
        return _wilson(mean, count)
    spread = stdev(scores)
    half = _t_quantile(count - 1) * spread / math.sqrt(count)
    return ConfidenceInterval(mean - half, mean + half) if spread > 0 else None


def _wilson(mean: float, count: int) -> ConfidenceInterval:
    z = NormalDist().inv_cdf(1 - ALPHA / 2)
    scale = 1 + z**2 / count
    middle = (mean + z**2 / (2 * count)) / scale
    half = z * math.sqrt(mean * (1 - mean) / count + z**2 / (4 * count**2)) / scale
    return ConfidenceInterval(max(0.0, middle - half), min(1.0, middle + half))


def _t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    Exact up to 2 degrees of freedom. Above, the expansion of Abramowitz and Stegun (26.7.5), whose
    error is at most 0.5 %.
    """
    if freedom <= 2:
        return {1: 12.706204736, 2: 4.302652730}[freedom]
    z = NormalDist().inv_cdf(1 - ALPHA / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
