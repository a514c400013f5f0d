"""A split is worn when results improve ever more on it than in their confirmations."""

from __future__ import annotations

import random

import pytest

from assay.domain.wear import grows, p_of_growth


def test_luck_alone_makes_a_gap_that_does_not_grow() -> None:
    rng = random.Random(0)
    found = [grows([rng.gauss(0.01, 0.01) for _ in range(10)]) for _ in range(2_000)]
    assert sum(found) / len(found) < 0.02


def test_a_gap_that_grows_is_noticed() -> None:
    rng = random.Random(1)
    assert grows([0.002 * place + rng.gauss(0.01, 0.002) for place in range(10)])
    assert not grows([0.01 - 0.002 * place for place in range(10)])


@pytest.mark.parametrize(("gaps", "p"), [([], None), ([0.125] * 5, None), ([0.125] * 6, 1.0)])
def test_few_gaps_and_equal_ones_say_nothing(gaps: list[float], p: float | None) -> None:
    assert p_of_growth(gaps) == p


def test_gaps_on_a_line_leave_no_doubt() -> None:
    assert p_of_growth([float(n) for n in range(6)]) == 0.0


def test_the_p_value_is_that_of_a_regression() -> None:
    """By hand: slope 0.155 / 17.5, its standard error 0.002321, t = 3.816 with 4 degrees."""
    gaps = [0.01, 0.03, 0.02, 0.05, 0.04, 0.06]
    assert p_of_growth(gaps) == pytest.approx(0.0094, abs=1e-4)
