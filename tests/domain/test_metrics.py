"""What a metric is worth as a reward, and which of several is the best."""

from __future__ import annotations

import math

import pytest

from assay.domain.metrics import (
    Direction,
    RewardKind,
    Sample,
    best,
    is_better,
    reward,
)


@pytest.mark.parametrize(
    ("kind", "metric", "worth"),
    [
        (RewardKind.IDENTITY, 0.25, 0.25),
        (RewardKind.NEGATIVE, 4.0, -4.0),
        (RewardKind.RECIPROCAL, 4.0, 0.25),
        (RewardKind.RECIPROCAL, 0.0, 0.0),
        (RewardKind.RECIPROCAL, -4.0, 0.0),
    ],
)
def test_rewards(kind: RewardKind, metric: float, worth: float) -> None:
    assert reward(kind, metric) == worth


@pytest.mark.parametrize("kind", list(RewardKind))
@pytest.mark.parametrize("metric", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_worth_nothing(kind: RewardKind, metric: float | None) -> None:
    assert reward(kind, metric) == 0.0


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("direction", "winner"), [(Direction.MINIMIZE, 1.0), (Direction.MAXIMIZE, 3.0)]
)
def test_what_is_no_number_is_never_the_best(
    odd: float, direction: Direction, winner: float
) -> None:
    assert best(direction, [odd, 3.0, 1.0, odd]) == winner
    assert best(direction, [odd]) is None
    assert is_better(direction, 3.0, odd)
    assert not is_better(direction, odd, 3.0)


def test_a_sample_of_one_has_no_spread() -> None:
    assert Sample.of([]) is None
    assert Sample.of([3.0]) == Sample(3.0, None, 1)
    assert Sample.of([1.0, 3.0]) == Sample(2.0, math.sqrt(2), 2)
