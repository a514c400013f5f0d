"""The plans of the benchmark of the evaluation fit the budget they are made for."""

import pytest

from benchmarks.evaluation import PAPER_SECONDS, paper


def test_the_paper_size_plan_fits_a_tenth_of_the_budget_even_on_a_busy_machine():
    costs = {"prefix": 400.0, "parallel": 200.0, "losses": 1.0, "step": 400.0, "plain": 60.0}
    plans = paper(costs)
    assert plans["sealed_s"] == pytest.approx(8192 * 400e-6)
    assert plans["losses_s"] == pytest.approx(plans["sealed_s"] + 10.48576)
    assert plans["losses_s"] < 0.1 * PAPER_SECONDS
    assert plans["parallel_524288_s"] < 0.1 * PAPER_SECONDS
    assert plans["step_262144_s"] < 0.1 * PAPER_SECONDS
    assert plans["parallel_all_s"] > PAPER_SECONDS
    assert plans["correction_se_at_most"] < 0.002
