"""Whether ideas have adapted to the split that search sees.

A result is chosen because it is good on the split `search`, so on other data it is less good: the
gap. Luck alone makes a gap, and it stays as large as it is. If the ideas of a search have learned
something about the split itself, the gap grows from confirmation to confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.domain.distributions import student_cdf

#: Fewer gaps than this say nothing about a trend.
LEAST = 6
#: Small, because it is asked again after every confirmation.
ALPHA = 0.01


def p_of_growth(gaps: Sequence[float]) -> float | None:
    """Return the one-sided p value of gaps that do not grow, oldest first; None for too few.

    A t test of the slope of a least-squares line through the gaps, in their order.
    """
    n = len(gaps)
    if n < LEAST:
        return None
    middle, average = (n - 1) / 2, sum(gaps) / n
    spread = sum((place - middle) ** 2 for place in range(n))
    slope = sum((place - middle) * gap for place, gap in enumerate(gaps)) / spread
    rest = sum((gap - average - slope * (place - middle)) ** 2 for place, gap in enumerate(gaps))
    if rest == 0:
        return 0.0 if slope > 0 else 1.0
    error = (rest / (n - 2) / spread) ** 0.5
    return 1 - student_cdf(slope / error, n - 2)


def grows(gaps: Sequence[float]) -> bool:
    """Return whether the gaps, oldest first, grow by more than chance explains."""
    p = p_of_growth(gaps)
    return p is not None and p < ALPHA
