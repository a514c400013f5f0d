"""When a result that was measured again is the same result."""

from __future__ import annotations

from assay.domain.metrics import Direction
from assay.domain.reproductions import Agreement, compare
from assay.domain.verdicts import Measured

LOWER = Direction.MINIMIZE
BEFORE = {0: 3.10, 1: 3.12, 2: 3.11}


def shifted(by: float) -> dict[int, float]:
    return {seed: value + by for seed, value in BEFORE.items()}


def test_equal_values_agree_to_the_digit() -> None:
    found = compare(LOWER, BEFORE, dict(BEFORE))
    assert (found.agreement, found.difference, found.p) == (Agreement.TO_THE_DIGIT, 0.0, None)


def test_one_other_digit_is_not_to_the_digit() -> None:
    found = compare(LOWER, BEFORE, BEFORE | {2: BEFORE[2] + 1e-12})
    assert found.agreement is Agreement.WITHIN_NOISE
    assert found.p is not None
    assert found.p > 0.9


def test_what_chance_allows_is_within_noise_and_what_it_does_not_disagrees() -> None:
    assert compare(LOWER, BEFORE, shifted(0.005)).agreement is Agreement.WITHIN_NOISE
    for much in (0.5, -0.5):
        found = compare(LOWER, BEFORE, shifted(much))
        assert found.agreement is Agreement.DISAGREES, "also if it is better than before"
        assert found.difference is not None
        assert abs(found.difference - much) < 1e-9


def test_where_seeds_do_not_differ_any_difference_disagrees() -> None:
    flat = dict.fromkeys(range(3), 2.0)
    assert compare(LOWER, flat, dict.fromkeys(range(3), 2.001)).agreement is Agreement.DISAGREES


def test_one_seed_is_judged_by_the_spread_of_the_baseline() -> None:
    baseline = Measured.of({seed: 3.0 + seed / 100 for seed in range(10)})
    near = compare(LOWER, {0: 3.1}, {0: 3.12}, baseline=baseline)
    assert near.agreement is Agreement.WITHIN_NOISE
    assert near.p is not None
    assert compare(LOWER, {0: 3.1}, {0: 4.1}, baseline=baseline).agreement is Agreement.DISAGREES
    alone = compare(LOWER, {0: 3.1}, {0: 3.12})
    assert (alone.agreement, alone.p) == (Agreement.DISAGREES, None)
    still = Measured.of({0: 3.0, 1: 3.0})
    assert compare(LOWER, {0: 3.1}, {0: 3.12}, baseline=still).agreement is Agreement.DISAGREES


def test_a_failure_of_the_code_disagrees_though_the_other_seeds_are_equal() -> None:
    found = compare(LOWER, BEFORE, {0: 3.10, 1: 3.12}, failed=[2])
    assert found.agreement is Agreement.DISAGREES
    assert compare(LOWER, BEFORE, {}, failed=[0, 1, 2]).agreement is Agreement.DISAGREES


def test_seeds_that_a_host_left_out_decide_nothing() -> None:
    assert compare(LOWER, BEFORE, {0: 3.10}).agreement is Agreement.UNDECIDED
    assert compare(LOWER, BEFORE, {}).agreement is Agreement.UNDECIDED
    refuted = compare(LOWER, BEFORE, {0: 9.0, 1: 9.02})
    assert refuted.agreement is Agreement.DISAGREES
