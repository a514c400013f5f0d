"""Student's t with any degrees of freedom, and what fitting variances needs.

Workers, clients and services share this package, and a client installs no numerical library. The
tests compare every function with published digits.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_MOST_TERMS = 10_000


def student_cdf(t: float, df: float) -> float:
    """Return P(T <= t) for Student's t with `df` > 0 degrees of freedom (infinity: the normal).

    DLMF 8.17.4 and 26.5.27 of Abramowitz and Stegun: 1 - I(df / (df + t²); df / 2, 1 / 2) / 2.
    """
    if math.isinf(df):
        return 0.5 * math.erfc(-t / math.sqrt(2))
    if math.isinf(t):
        return 1.0 if t > 0 else 0.0
    tail = 0.5 * _incomplete_beta(df / (df + t * t), t * t / (df + t * t), df / 2, 0.5)
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=4096)  # a list of verdicts asks for few degrees of freedom, again and again
def student_quantile(p: float, df: float) -> float:
    """Return the t with `student_cdf(t, df) == p`.

    Raises:
        ValueError: p is not between 0 and 1.
    """
    if not 0 < p < 1:
        raise ValueError(f"a quantile needs 0 < p < 1, not {p}")
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -student_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while student_cdf(high, df) < p:
        low, high = high, 2 * high
        if math.isinf(high):
            return high
    t = (low + high) / 2
    while True:
        error = student_cdf(t, df) - p
        low, high = (low, t) if error > 0 else (t, high)
        step = error / _student_density(t, df)
        if abs(step) <= 1e-15 * t or (low + high) / 2 in (low, high):
            return t
        newton = t - step
        t = newton if low < newton < high else (low + high) / 2


def _student_density(t: float, df: float) -> float:
    if math.isinf(df):
        return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
    log = -math.log(df) / 2 - _log_beta(max(df / 2, 0.5), min(df / 2, 0.5))
    return math.exp(log - (df + 1) / 2 * math.log1p(t * t / df))


def digamma(x: float) -> float:
    """Return the derivative of the logarithm of the gamma function, for x > 0 (DLMF 5.11.2)."""
    found = 0.0
    while x < 10:
        found -= 1 / x
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return found + math.log(x) - 0.5 / x - series


def trigamma(x: float) -> float:
    """Return the derivative of `digamma`, for x > 0 (DLMF 5.15.8)."""
    found = 0.0
    while x < 10:
        found += 1 / (x * x)
        x += 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66)))) / x
    return found + 1 / x + y / 2 + series


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I(x; a, b); `rest` is 1 - x, not rounded again."""
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on one side only (DLMF 8.17.4)
        return 1.0 - _incomplete_beta(rest, x, b, a)
    # Near 1 the other one has more digits.
    log_x = math.log(x) if x < 0.5 else math.log1p(-rest)
    log_rest = math.log(rest) if rest < 0.5 else math.log1p(-x)
    log_front = a * log_x + b * log_rest - _log_beta(max(a, b), min(a, b))
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _log_beta(large: float, small: float) -> float:
    """The logarithm of the beta function."""
    if small == 0.5 and large > 100:  # a difference of large logarithms (DLMF 5.11.13)
        y = 1 / large
        ratio = 0.5 * math.log(large) - y / 8 + y**3 / 192 - y**5 / 640
    else:
        ratio = math.lgamma(large + small) - math.lgamma(large)
    return math.lgamma(small) - ratio


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of DLMF 8.17.22, by Lentz's method (DLMF 3.10(iii))."""
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or _TINY)
    found = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / ((1 + term * d) or _TINY)
            c = (1 + term / c) or _TINY
            found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
