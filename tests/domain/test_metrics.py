"""What "better than the baseline" means, and what a metric is worth as a reward."""

from __future__ import annotations

import math

import pytest

from assay.domain.metrics import (
    Direction,
    RewardKind,
    Sample,
    Verdict,
    best,
    compare,
    is_better,
    reward,
)

LOWER, HIGHER = Direction.MINIMIZE, Direction.MAXIMIZE
BASELINE = Sample(mean=10.0, spread=1.0, n=5)
#: Of one result against BASELINE: the result has noise of its own.
ERROR = math.sqrt(1 + 1 / 5)


def test_the_error_counts_the_noise_of_both_sides() -> None:
    one = compare(HIGHER, Sample(12.0, None, 1), BASELINE)
    four = compare(HIGHER, Sample(12.0, 0.3, 4), BASELINE)
    assert one is not None
    assert four is not None
    assert one.standard_error == pytest.approx(ERROR)
    assert four.standard_error == pytest.approx(math.sqrt(1 / 4 + 1 / 5))
    assert one.verdict == Verdict.WITHIN_NOISE
    assert four.verdict == Verdict.BETTER


@pytest.mark.parametrize(("direction", "sign"), [(LOWER, -1), (HIGHER, 1)])
@pytest.mark.parametrize(
    ("sigmas", "verdict"),
    [
        (2.1, Verdict.BETTER),
        (1.9, Verdict.WITHIN_NOISE),
        (0.0, Verdict.WITHIN_NOISE),
        (-1.9, Verdict.WITHIN_NOISE),
        (-2.1, Verdict.WORSE),
    ],
)
def test_a_verdict_takes_two_standard_errors(
    direction: Direction, sign: int, sigmas: float, verdict: Verdict
) -> None:
    result = Sample(BASELINE.mean + sign * sigmas * ERROR, None, 1)
    found = compare(direction, result, BASELINE)
    assert found is not None
    assert found.verdict == verdict
    assert found.sigmas == pytest.approx(sigmas)
    assert found.delta == pytest.approx(sign * sigmas * ERROR)


def test_no_verdict_without_a_spread_and_no_comparison_without_a_baseline() -> None:
    found = compare(HIGHER, Sample(99.0, None, 1), Sample(1.0, None, 1))
    assert found is not None
    assert (found.verdict, found.sigmas) == (Verdict.UNKNOWN, None)
    assert compare(HIGHER, Sample(99.0, None, 1), None) is None


@pytest.mark.parametrize(
    ("mean", "sigmas", "verdict"),
    [
        (11.0, math.inf, Verdict.BETTER),
        (9.0, -math.inf, Verdict.WORSE),
        (10.0, 0.0, Verdict.WITHIN_NOISE),
    ],
)
def test_a_baseline_without_noise_makes_any_change_certain(
    mean: float, sigmas: float, verdict: Verdict
) -> None:
    found = compare(HIGHER, Sample(mean, None, 1), Sample(10.0, 0.0, 3))
    assert found is not None
    assert (found.sigmas, found.verdict) == (sigmas, verdict)


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
@pytest.mark.parametrize(("direction", "winner"), [(LOWER, 1.0), (HIGHER, 3.0)])
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
