"""Confidence sequences for differences of scores. Pure.

A confidence sequence is a sequence of intervals, one after each row. With probability 1 - alpha,
all of them contain the true mean, so a comparison may look after each row and stop at any time.

The intervals are the hedged capital process with a grid of bets (hgKelly) of I. Waudby-Smith and
A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024), 1-27,
https://arxiv.org/abs/2010.09686. A gambler bets against the hypothesis that the mean is ``m``. If
it is, the capital exceeds ``2 / alpha`` with probability of at most ``alpha / 2`` at any time
(Ville's inequality). The interval contains each ``m`` against which neither gambler, one for higher
and one for lower means, has won.

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

FRACTIONS = (0.1, 0.25, 0.4, 0.6, 0.85)
"""Fractions of the capital that the gamblers bet. The capital is the mean over all fractions.

They were chosen for effects of about 10 points, in simulations. Any choice is valid.
"""

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


def difference_interval(differences: Iterable[float], alpha: float = ALPHA) -> ConfidenceInterval:
    """Return the interval of a confidence sequence for the mean of differences from -1 to 1.

    Args:
        differences: The differences so far. Their order does not matter.
        alpha: The probability that any interval of the sequence misses the mean.
    """
    counts = Counter(differences)
    flipped = {-value: count for value, count in counts.items()}
    return ConfidenceInterval(_lower_bound(counts, alpha), -_lower_bound(flipped, alpha))


def _lower_bound(counts: Mapping[float, int], alpha: float) -> float:
    """Return the largest mean that the gambler for higher means has refuted, or -1."""
    rejected, kept, limit = -1.0, 1.0, math.log(2 / alpha)
    for _ in range(STEPS):
        middle = (rejected + kept) / 2
        if log_mean_exp([_log_capital(counts, middle, bet) for bet in FRACTIONS]) >= limit:
            rejected = middle
        else:
            kept = middle
    return rejected


def _log_capital(counts: Mapping[float, int], mean: float, bet: float) -> float:
    """Return the logarithm of the capital of a bet on a mean higher than ``mean``."""
    slope = bet / (1 + mean)
    base = 1 - bet + slope
    if len(counts) <= _CHUNK:
        return sum(count * math.log(base + slope * d) for d, count in counts.items())
    factors = [base + slope * d for d, count in counts.items() for _ in range(count)]
    chunks = (factors[start : start + _CHUNK] for start in range(0, len(factors), _CHUNK))
    return sum(math.log(math.prod(chunk)) for chunk in chunks)


def _factor(difference: float, mean: float, bet: float) -> float:
    """Return the factor of the capital of a bet on a mean higher than ``mean``."""
    return 1 - bet + bet * (1 + difference) / (1 + mean)


def log_mean_exp(logs: Sequence[float]) -> float:
    """Return the logarithm of the mean of numbers, given their logarithms."""
    top = max(logs)
    return top + math.log(fmean(math.exp(each - top) for each in logs))


class BettingEvidence:
    """BettingEvidence, row by row, that the mean of differences is higher than a value.

    Args:
        mean: The value, greater than -1.
        sign: 1 for evidence of higher means, -1 for evidence of lower ones.
    """

    def __init__(self, mean: float = 0.0, sign: int = 1) -> None:
        self._mean, self._sign = mean * sign, sign
        self._logs = [0.0] * len(FRACTIONS)

    def add(self, difference: float) -> None:
        """Add the difference of the next row."""
        self._logs = [
            log + math.log(_factor(difference * self._sign, self._mean, bet))
            for log, bet in zip(self._logs, FRACTIONS, strict=True)
        ]

    def wins(self, alpha: float = ALPHA) -> bool:
        """Return whether the value is refuted."""
        return log_mean_exp(self._logs) >= math.log(2 / alpha)

    def can_win(self, moments: RunningMoments, rows: int, alpha: float = ALPHA) -> bool:
        """Return whether the value may still be refuted after more rows.

        The projection is optimistic: it assumes that the mean of the other rows is `OPTIMISM`
        standard errors better than the mean so far.

        Args:
            moments: The differences so far.
            rows: The number of rows still to come.
            alpha: As for `wins`.
        """
        spread = moments.spread
        best = self._sign * moments.mean + OPTIMISM * spread / math.sqrt(moments.count)
        edge = (min(1.0, best) - self._mean) / (1 + self._mean)
        square = (spread / (1 + self._mean)) ** 2 + edge**2
        projected = [
            log + rows * (bet * edge - bet**2 * square / 2)
            for log, bet in zip(self._logs, FRACTIONS, strict=True)
        ]
        return log_mean_exp(projected) >= math.log(2 / alpha)


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
        """The standard deviation. One more observation keeps it above 0 for equal numbers."""
        return math.sqrt((self._squares + 1) / (self.count + 1))


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
