"""Metrics, rewards and baselines.

A metric has a direction. A reward is what search maximises; it is positive for a sound result
and 0 for a failed experiment (paper §2.1 uses 1/val_loss). Whether a result is better than the
baseline is decided in `verdicts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev


class Direction(StrEnum):
    """Which way a metric improves."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class RewardKind(StrEnum):
    """How a metric becomes a reward."""

    IDENTITY = "identity"
    NEGATIVE = "negative"
    RECIPROCAL = "reciprocal"


class Judged(StrEnum):
    """What a result is about."""

    #: A way of training: its mean over seeds counts, and their spread says how sure it is.
    METHOD = "method"
    #: What one run found, such as a construction that is verified exactly: the best seed counts.
    ARTIFACT = "artifact"


#: Sums and squares of numbers up to here are finite, in Python as in a database.
LARGEST_METRIC = 1e100


def reward(kind: RewardKind, metric: float | None) -> float:
    """The number that search maximises; 0 for a missing or non-finite metric."""
    if metric is None or not math.isfinite(metric):
        return 0.0
    if kind is RewardKind.IDENTITY:
        return metric
    if kind is RewardKind.NEGATIVE:
        return -metric
    return 1.0 / metric if metric > 0 else 0.0


def is_better(direction: Direction, a: float, b: float) -> bool:
    """Whether metric `a` improves on `b`; a non-finite number improves on nothing."""
    if not math.isfinite(a):
        return False
    if not math.isfinite(b):
        return True
    return a < b if direction is Direction.MINIMIZE else a > b


def best(direction: Direction, values: Sequence[float]) -> float | None:
    """The best finite value, or None."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return None
    return min(finite) if direction is Direction.MINIMIZE else max(finite)


def mean(values: Sequence[float]) -> float:
    """Return the mean, also of numbers whose sum is beyond the largest float."""
    try:
        return fmean(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def _spread(values: Sequence[float]) -> float:
    try:
        return stdev(values)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Sample:
    """A metric measured on `n` seeds; `spread` is the sample standard deviation (n > 1)."""

    mean: float
    spread: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample | None:
        """Summarise values; None when there are none."""
        if not values:
            return None
        return cls(mean(values), _spread(values) if len(values) > 1 else None, len(values))


def over_seeds(judged: Judged, direction: Direction, values: Sequence[float]) -> float | None:
    """Return the metric of an experiment with these values over its seeds; None without any."""
    if not values:
        return None
    return best(direction, values) if judged is Judged.ARTIFACT else mean(values)
