"""Metrics, rewards, baselines, and what "better" means.

A metric has a direction. A reward is what search maximises; it is positive for a sound result
and 0 for a failed experiment (paper §2.1 uses 1/val_loss). "Better than the baseline" means
better than noise: the change is compared with its standard error, which comes from the spread of
the baseline over seeds.
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


class Verdict(StrEnum):
    """How a result stands against the baseline, at two standard errors."""

    BETTER = "better"
    WORSE = "worse"
    WITHIN_NOISE = "within_noise"
    UNKNOWN = "unknown"


SIGMAS_FOR_A_VERDICT = 2.0
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


@dataclass(frozen=True)
class Comparison:
    """A result against the baseline; `sigmas` is positive when the result improves on it."""

    delta: float
    standard_error: float | None
    sigmas: float | None
    verdict: Verdict


def improvement(direction: Direction, delta: float, error: float) -> float:
    """Return by how many standard errors a change of the metric improves it."""
    gain = -delta if direction is Direction.MINIMIZE else delta
    return gain / error if error > 0 else math.copysign(math.inf, gain) if gain else 0.0


def compare(direction: Direction, result: Sample, baseline: Sample | None) -> Comparison | None:
    """Compare a result with the baseline; None without a baseline.

    The spread is the baseline's, for both: one idea is usually measured on one seed. The standard
    error of the difference of means is spread * sqrt(1/n_result + 1/n_baseline).
    """
    if baseline is None:
        return None
    delta = result.mean - baseline.mean
    if baseline.spread is None:
        return Comparison(delta, None, None, Verdict.UNKNOWN)
    error = baseline.spread * math.sqrt(1 / result.n + 1 / baseline.n)
    sigmas = improvement(direction, delta, error)
    if sigmas > SIGMAS_FOR_A_VERDICT:
        verdict = Verdict.BETTER
    elif sigmas < -SIGMAS_FOR_A_VERDICT:
        verdict = Verdict.WORSE
    else:
        verdict = Verdict.WITHIN_NOISE
    return Comparison(delta, error, sigmas, verdict)
