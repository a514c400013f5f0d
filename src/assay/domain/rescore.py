"""When a result is too good to count at once, and what a second look has to find.

A result that is better than the baseline by more than the baseline's spread explains is scored
again, with fresh secret positions, before it counts: of many ideas the luckiest would otherwise
win. Nobody is accused by this: most good ideas are looked at twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from assay.domain.metrics import Direction, Sample, is_better

OUTLIER_SPREADS = 4.0
"""Better than the baseline by more spreads than this is scored again."""
_SAME_SIGMAS = 5.0
_SAME_SHARE = 1e-3


@dataclass(frozen=True)
class Rescore:
    """When to score again: beyond `beyond`, or whatever the result is (None)."""

    beyond: float | None = None

    def wanted(self, direction: Direction, metric: float) -> bool:
        """Whether this metric has to be looked at twice."""
        return self.beyond is None or is_better(direction, metric, self.beyond)


def rescore_rule(direction: Direction, baseline: Sample | None) -> Rescore:
    """The rule for an environment whose baseline is this one.

    Without a spread to compare with nothing can be called ordinary, so everything is looked at
    twice.
    """
    if baseline is None or baseline.spread is None:
        return Rescore()
    sign = -1.0 if direction is Direction.MINIMIZE else 1.0
    return Rescore(baseline.mean + sign * OUTLIER_SPREADS * baseline.spread)


def agrees(first: float, second: float, error: float | None) -> bool:
    """Whether two scores of the same artifact tell the same.

    `error` is the standard error that the evaluation states for each of them (None: it states
    none). They may differ by five standard errors of their difference and a thousandth.
    """
    known = error if error is not None and math.isfinite(error) else 0.0
    allowed = _SAME_SIGMAS * math.sqrt(2) * known + _SAME_SHARE * max(abs(first), abs(second))
    return abs(first - second) <= allowed
