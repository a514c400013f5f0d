"""Whether a result that was measured again is the same result.

The API compares a reproduction with the experiment that it repeats; a bundle compares what it
measured with what it records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from assay.domain.distributions import student_cdf
from assay.domain.metrics import Direction
from assay.domain.metrics import mean as average
from assay.domain.verdicts import Measured, judge

#: Results disagree if chance gives such a difference at most this often: one in a hundred of those
#: that are alike is said to disagree.
ALPHA = 0.01


class Agreement(StrEnum):
    """What may be said of a result beside the one that it repeats."""

    TO_THE_DIGIT = "to the digit"
    WITHIN_NOISE = "within noise"
    DISAGREES = "disagrees"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Comparison:
    """A result beside the one that it repeats.

    Attributes:
        agreement: What may be said.
        difference: By how much the metric is larger now, in its own units, as the mean over the
            seeds that have both; None if none has.
        p: Two-sided p value of "chance alone made them differ"; None if they are equal, or if
            nothing tells how large chance is.
    """

    agreement: Agreement
    difference: float | None = None
    p: float | None = None


def compare(
    direction: Direction,
    before: Mapping[int, float],
    again: Mapping[int, float],
    *,
    failed: Collection[int] = (),
    baseline: Measured | None = None,
) -> Comparison:
    """Compare exact metrics by seed with those of a second measurement.

    Equal values on every seed agree to the digit. Otherwise the difference is judged as that of an
    idea beside its baseline, and agrees within noise if p is at least `ALPHA`. One seed shows no
    noise: then the spread of the environment's baseline over seeds stands for it, and without that
    results that differ disagree. A failure of the code where there was a result disagrees. Seeds
    that the code did not fail on, and that have no second result all the same (their host failed,
    or they were cancelled), leave undecided what the others do not refute.

    Args:
        direction: Which way the metric improves.
        before: The metric by seed that is repeated; at least one.
        again: The metric by seed of the second measurement; of the seeds of `before` at most.
        failed: Seeds on which the code failed now.
        baseline: The environment's baseline, if it is known.
    """
    both = {seed: before[seed] for seed in again if seed in before}
    found = _compare(direction, both, again, baseline) if both else None
    difference, p = (None, None) if found is None else (found.difference, found.p)
    if failed:
        return Comparison(Agreement.DISAGREES, difference, p)
    if found is None or (
        both.keys() < before.keys() and found.agreement is not Agreement.DISAGREES
    ):
        return Comparison(Agreement.UNDECIDED, difference, p)
    return found


def _compare(
    direction: Direction,
    before: Mapping[int, float],
    again: Mapping[int, float],
    baseline: Measured | None,
) -> Comparison:
    differences = [again[seed] - before[seed] for seed in before]
    if not any(differences):
        return Comparison(Agreement.TO_THE_DIGIT, 0.0)
    new, old = Measured.of({seed: again[seed] for seed in before}), Measured.of(before)
    assert new is not None
    assert old is not None
    p = judge(direction, new, old).p
    if p is None:
        p = _of_one(differences[0], baseline)
    agrees = p is not None and p >= ALPHA
    agreement = Agreement.WITHIN_NOISE if agrees else Agreement.DISAGREES
    return Comparison(agreement, average(differences), p)


def _of_one(difference: float, baseline: Measured | None) -> float | None:
    """The p value of the difference of two runs that vary as the baseline does over seeds."""
    if baseline is None or baseline.df < 1:
        return None
    if baseline.noise == 0:
        return 0.0
    return 2 * student_cdf(-abs(difference) / math.sqrt(2 * baseline.noise), baseline.df)
