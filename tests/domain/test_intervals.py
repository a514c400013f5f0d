"""Intervals, beside examples that were published."""

from __future__ import annotations

import pytest

from assay.domain.intervals import (
    Estimate,
    difference_of_rates,
    mean,
    paired_difference_of_rates,
    rate,
)


def ends(found: Estimate | None) -> tuple[float, float]:
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe 1998, Two-sided confidence intervals for the single proportion, table I
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_a_rate_has_wilsons_interval(successes: int, trials: int, low: float, high: float) -> None:
    assert ends(rate(successes, trials)) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [  # Newcombe 1998, Interval estimation for the difference, table II, method 10
        ((56, 70, 48, 80), 0.0524, 0.3339),
        ((9, 10, 3, 10), 0.1705, 0.8090),
        ((10, 10, 0, 10), 0.6075, 1.0),
    ],
)
def test_two_rates_differ_as_published(
    table: tuple[int, int, int, int], low: float, high: float
) -> None:
    assert ends(difference_of_rates(*table)) == pytest.approx((low, high), abs=5e-5)


def test_paired_rates_differ_as_published() -> None:
    # Newcombe 1998, Improved confidence intervals … paired data, table III, method 10
    assert ends(paired_difference_of_rates(36, 12, 2, 0)) == pytest.approx(
        (0.0569, 0.3404), abs=5e-5
    )


def test_pairing_narrows_the_interval_where_ideas_decide() -> None:
    low, high = ends(paired_difference_of_rates(20, 3, 1, 16))
    apart_low, apart_high = ends(difference_of_rates(23, 40, 21, 40))
    assert high - low < apart_high - apart_low


def test_a_mean_has_students_interval() -> None:
    found = mean([1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.value, found.n) == (2.5, 4)
    assert ends(found) == pytest.approx((0.4457, 4.5543), abs=5e-5)  # t(3) = 3.1824


def test_nothing_says_nothing() -> None:
    assert rate(0, 0) is None
    assert mean([]) is None
    assert mean([1.0]) == Estimate(1.0, None, None, 1)
    assert difference_of_rates(1, 1, 0, 0) is None
    assert paired_difference_of_rates(0, 0, 0, 0) is None
