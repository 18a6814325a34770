"""Means with 95 % bootstrap intervals, and differences of pairs."""

from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 10_000
_SEED = 20


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over `count` questions with the ends of its interval."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f}–{self.high:.3f})"


def figure(values: Sequence[float]) -> Figure:
    """The mean of at least one value; the interval comes from resampling the values, the same at every run."""
    import numpy as np

    drawn = np.random.default_rng(_SEED).integers(0, len(values), (RESAMPLES, len(values)))
    means = np.asarray(values, dtype=np.float64)[drawn].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5)).tolist()
    return Figure(sum(values) / len(values), low, high, len(values))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """The mean of the pairs' differences."""
    return figure([one - other for one, other in zip(ours, theirs, strict=True)])


def share(part: int, whole: int) -> float:
    """1 where there is nothing to be wrong about."""
    return part / whole if whole else 1.0
