"""Differences of two groups with their 95 % confidence intervals: of shares, of means, of percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from random import Random
from statistics import fmean

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile
FEWEST = 5  # values of a group; an interval from fewer would mean nothing
DRAWS = 4000  # resamples of a bootstrap
SEED = 20260115


@dataclass(frozen=True, slots=True)
class Difference:
    """A value of one group minus the other's; `low` and `high` are None where there are too few values."""

    value: float
    low: float | None = None
    high: float | None = None


def of_shares(hits: int, count: int, other_hits: int, other_count: int) -> Difference | None:
    """The first share minus the other; None where a group is empty.

    Source: R. G. Newcombe, Interval estimation for the difference between independent proportions (1998), method 10,
    which is based on Wilson's intervals.
    """
    if not count or not other_count:
        return None
    one, other = hits / count, other_hits / other_count
    (low, high), (other_low, other_high) = _wilson(one, count), _wilson(other, other_count)
    below, above = (
        sqrt((one - low) ** 2 + (other_high - other) ** 2),
        sqrt((high - one) ** 2 + (other - other_low) ** 2),
    )
    return Difference(one - other, one - other - below, one - other + above)


def of_means(values: Sequence[float], others: Sequence[float]) -> Difference | None:
    """The first mean minus the other, with Welch's interval; None where a group is empty."""
    if not values or not others:
        return None
    difference = fmean(values) - fmean(others)
    if min(len(values), len(others)) < FEWEST:
        return Difference(difference)
    one, other = _variance_of_mean(values), _variance_of_mean(others)
    if one + other == 0:
        return Difference(difference, difference, difference)
    freedom = (one + other) ** 2 / (one**2 / (len(values) - 1) + other**2 / (len(others) - 1))
    width = t_quantile(freedom) * sqrt(one + other)
    return Difference(difference, difference - width, difference + width)


def of_percentiles(values: Sequence[float], others: Sequence[float], share: float) -> Difference | None:
    """The first percentile minus the other, with the percentile bootstrap's interval; None where a group is empty.

    The same values give the same interval: the bootstrap's seed is fixed.
    """
    if not values or not others:
        return None
    one, other, random = sorted(values), sorted(others), Random(SEED)  # noqa: S311 - no secret
    difference = percentile(one, share) - percentile(other, share)
    if min(len(one), len(other)) < FEWEST:
        return Difference(difference)
    draws = sorted(_resampled(one, share, random) - _resampled(other, share, random) for _ in range(DRAWS))
    return Difference(difference, percentile(draws, 0.025), percentile(draws, 0.975))


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that so large a share of them does not exceed."""
    return ordered[_rank(len(ordered), share) - 1]


def t_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's distribution, exact to 0.05 % from 4 degrees of freedom on.

    Source: the expansion by Cornish and Fisher; Abramowitz and Stegun, 26.7.5.
    """
    z = Z
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * freedom**4)
    )


def _variance_of_mean(values: Sequence[float]) -> float:
    # `statistics.variance` is exact and takes a hundred times as long.
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def _wilson(share: float, count: int) -> tuple[float, float]:
    middle, width = share + Z * Z / (2 * count), Z * sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return (middle - width) / (1 + Z * Z / count), (middle + width) / (1 + Z * Z / count)


def _rank(count: int, share: float) -> int:
    return max(1, ceil(share * count - 1e-9))


def _resampled(ordered: Sequence[float], share: float, random: Random) -> float:
    # The k-th of n uniform values has this Beta distribution, so one draw stands for a whole resample.
    count, rank = len(ordered), _rank(len(ordered), share)
    place = ceil(count * random.betavariate(rank, count - rank + 1))
    return ordered[min(max(place, 1), count) - 1]
