"""What is scored twice, and what a second score has to say."""

from __future__ import annotations

import math

import pytest

from assay.domain.metrics import Direction, Sample
from assay.domain.rescore import OUTLIER_SPREADS, Rescore, agrees, rescore_rule

LOWER, HIGHER = Direction.MINIMIZE, Direction.MAXIMIZE


@pytest.mark.parametrize(("direction", "sign"), [(LOWER, -1), (HIGHER, 1)])
def test_only_what_the_spread_does_not_explain_is_scored_twice(
    direction: Direction, sign: int
) -> None:
    rule = rescore_rule(direction, Sample(2.0, 0.1, 5))
    ordinary = 2.0 + sign * 0.1 * (OUTLIER_SPREADS - 0.1)
    outlier = 2.0 + sign * 0.1 * (OUTLIER_SPREADS + 0.1)
    assert not rule.wanted(direction, ordinary)
    assert rule.wanted(direction, outlier)
    assert not rule.wanted(direction, 2.0 - sign * 10)  # worse is nobody's win


@pytest.mark.parametrize("baseline", [None, Sample(2.0, None, 1)])
def test_without_a_spread_everything_is(baseline: Sample | None) -> None:
    assert rescore_rule(LOWER, baseline) == Rescore(None)
    assert rescore_rule(LOWER, baseline).wanted(LOWER, 100.0)


def test_two_scores_agree_within_the_error_they_state() -> None:
    assert agrees(1.4, 1.4, None)
    assert agrees(1.4, 1.4 + 1e-4, None)
    assert not agrees(1.4, 1.42, None)
    assert agrees(1.4, 1.42, 0.01)
    assert not agrees(1.4, 1.5, 0.01)
    assert not agrees(1.4, 1.5, math.inf)  # an error that is no number excuses nothing
