"""95 % intervals of rates, means and their differences.

`assay.analysis.ideation` compares models with them. Rates of few trials are often 0 or 1, where
intervals from a standard error have no width, so rates use Wilson's interval and what Newcombe
built on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from assay.domain.distributions import student_quantile

CONFIDENCE = 0.95
_P = 1 - (1 - CONFIDENCE) / 2
_Z = student_quantile(_P, math.inf)


@dataclass(frozen=True)
class Estimate:
    """A number from `n` trials with its 95 % interval; without one if nothing tells it."""

    value: float
    low: float | None
    high: float | None
    n: int


def rate(successes: int, trials: int) -> Estimate | None:
    """Return a rate with Wilson's score interval (1927); None without a trial."""
    if trials == 0:
        return None
    low, high = _wilson(successes, trials)
    return Estimate(successes / trials, low, high, trials)


def mean(values: Sequence[float]) -> Estimate | None:
    """Return a mean with its interval by Student's t; None without a value, no interval with
    one."""
    if not values:
        return None
    n, found = len(values), fmean(values)
    if n == 1:
        return Estimate(found, None, None, 1)
    reach = student_quantile(_P, n - 1) * stdev(values) / math.sqrt(n)
    return Estimate(found, found - reach, found + reach, n)


def difference_of_rates(
    successes: int, trials: int, other_successes: int, other_trials: int
) -> Estimate | None:
    """Return the first rate minus the other, of different things; None if one has no trial.

    Newcombe (1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I),
    method 10. `n` counts both.
    """
    if trials == 0 or other_trials == 0:
        return None
    p, q = successes / trials, other_successes / other_trials
    (low, high), (other_low, other_high) = (
        _wilson(successes, trials),
        _wilson(other_successes, other_trials),
    )
    below = math.hypot(p - low, other_high - q)
    above = math.hypot(high - p, q - other_low)
    return Estimate(p - q, p - q - below, p - q + above, trials + other_trials)


def paired_difference_of_rates(
    both: int, first_alone: int, other_alone: int, neither: int
) -> Estimate | None:
    """Return the first rate minus the other, of the same things; None without any.

    Newcombe (1998, doi:10.1002/(SICI)1097-0258(19981130)17:22<2635::AID-SIM954>3.0.CO;2-C),
    method 10: Wilson's intervals, put together with the correlation that the table shows.
    """
    n = both + first_alone + other_alone + neither
    if n == 0:
        return None
    first, other = both + first_alone, both + other_alone
    p, q = first / n, other / n
    (low, high), (other_low, other_high) = _wilson(first, n), _wilson(other, n)
    phi = _correlation(both, first_alone, other_alone, neither)
    below, above = p - low, high - p
    other_below, other_above = q - other_low, other_high - q
    down = below**2 - 2 * phi * below * other_above + other_above**2
    up = above**2 - 2 * phi * above * other_below + other_below**2
    return Estimate(p - q, p - q - math.sqrt(max(down, 0)), p - q + math.sqrt(max(up, 0)), n)


def _correlation(both: int, first_alone: int, other_alone: int, neither: int) -> float:
    """Return phi of a 2 x 2 table, corrected for continuity where it is positive."""
    product = (
        (both + first_alone)
        * (other_alone + neither)
        * (both + other_alone)
        * (first_alone + neither)
    )
    if product == 0:
        return 0.0
    found = both * neither - first_alone * other_alone
    n = both + first_alone + other_alone + neither
    corrected = found if found < 0 else max(found - n / 2, 0)
    return corrected / math.sqrt(product)


def _wilson(successes: int, trials: int) -> tuple[float, float]:
    p, z2 = successes / trials, _Z**2
    middle = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    reach = _Z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    low = 0.0 if successes == 0 else middle - reach
    return low, 1.0 if successes == trials else middle + reach
