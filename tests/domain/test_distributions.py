"""Student's t and the derivatives of the gamma function, against published digits."""

from __future__ import annotations

import math

import pytest

from assay.domain.distributions import digamma, student_cdf, student_quantile, trigamma


# Abramowitz and Stegun, table 26.10; the last by symmetry of Cauchy's: tan(pi (p - 1/2)).
@pytest.mark.parametrize(
    ("df", "p", "t"),
    [
        (1, 0.975, 12.706205),
        (2, 0.975, 4.302653),
        (4, 0.975, 2.776445),
        (10, 0.995, 3.169273),
        (30, 0.95, 1.697261),
        (math.inf, 0.975, 1.959964),
        (1, 0.999, math.tan(math.pi * 0.499)),
    ],
)
def test_quantiles_are_those_of_the_tables(df: float, p: float, t: float) -> None:
    assert student_quantile(p, df) == pytest.approx(t, rel=1e-6)
    assert student_quantile(1 - p, df) == pytest.approx(-t, rel=1e-6)


@pytest.mark.parametrize("df", [0.3, 1.0, 1.55, 4.0, 37.2, 5000.0, math.inf])
@pytest.mark.parametrize("p", [1e-6, 0.02, 0.5, 0.7, 0.9999])
def test_a_quantile_is_where_the_distribution_reaches_it(df: float, p: float) -> None:
    assert student_cdf(student_quantile(p, df), df) == pytest.approx(p, rel=1e-7)


def test_one_and_two_degrees_of_freedom_have_closed_forms() -> None:
    for t in (-30.0, -1.0, 0.0, 1e-9, 0.4, 6.0, 1e6):
        assert student_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, rel=1e-9)
        two = 0.5 + t / (2 * math.sqrt(2 + t * t))
        assert student_cdf(t, 2) == pytest.approx(two, rel=1e-9, abs=1e-12)
    assert (student_cdf(math.inf, 3), student_cdf(-math.inf, 3)) == (1.0, 0.0)


def test_more_degrees_of_freedom_come_to_the_normal() -> None:
    assert student_cdf(1.3, 1e9) == pytest.approx(student_cdf(1.3, math.inf), abs=1e-9)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_there_is_no_quantile_of_what_is_no_share(p: float) -> None:
    with pytest.raises(ValueError, match="0 < p < 1"):
        student_quantile(p, 4)


def test_derivatives_of_the_gamma_function() -> None:
    euler = 0.57721566490153286
    assert digamma(1) == pytest.approx(-euler, rel=1e-12)
    assert digamma(0.5) == pytest.approx(-euler - 2 * math.log(2), rel=1e-12)
    assert trigamma(1) == pytest.approx(math.pi**2 / 6, rel=1e-12)
    assert trigamma(0.5) == pytest.approx(math.pi**2 / 2, rel=1e-12)
    for x in (0.01, 0.8, 3.0, 9.99, 250.0):
        assert digamma(x + 1) - digamma(x) == pytest.approx(1 / x, rel=1e-9)
        assert trigamma(x) - trigamma(x + 1) == pytest.approx(1 / x**2, rel=1e-6)
