"""How results are rounded before they are shown, and how their bits are counted."""

from __future__ import annotations

import math
import random
from collections.abc import ItemsView
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.domain.rounding import (
    OUTCOME_BITS,
    VERDICT_BITS,
    Bits,
    SplitMetrics,
    bits_of,
    failure_bits,
    rescore_bits,
    resolution,
    shown,
    shown_metrics,
    shown_provenance,
    shown_rescore,
    standard_error,
    success_bits,
    whole,
)

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
ERRORS = st.none() | st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (1.36768, 0.02, 1.368),
        (1.36768, 0.2, 1.37),
        (1.36768, 0.09999, 1.368),
        (1.36768, None, 1.368),
        (1.36768, 1e-9, 1.368),
        (1.36768, 0.0, 1.368),
        (1.36768, math.nan, 1.368),
        (-0.00004, 0.02, 0.0),
        (123456.0, None, 123500.0),
        (0.0, None, 0.0),
        (0.1125, 0.01, 0.112),  # ties to even, of the decimal that is written
        (0.1135, 0.01, 0.114),
    ],
)
def test_known_roundings(value: float, error: float | None, expected: float) -> None:
    found = shown(value, error)
    assert found == expected
    assert math.copysign(1, found) == math.copysign(1, expected)


@given(NUMBERS, ERRORS)
def test_the_step_is_at_most_a_tenth_of_the_error_or_the_fourth_digit(
    value: float, error: float | None
) -> None:
    step = resolution(value, error)
    digits = step.as_tuple()
    assert digits.digits == (1,)
    if step > Decimal(1).scaleb(Decimal(repr(value)).adjusted() - 3) and value:
        assert error is not None
        assert step * 10 <= Decimal(repr(error)) < step * 100


@given(NUMBERS, ERRORS)
def test_a_shown_number_is_near_short_and_stays_as_it_is(
    value: float, error: float | None
) -> None:
    found = shown(value, error)
    if not math.isfinite(found):  # the largest numbers round to more than a float holds
        assert abs(value) > 1e308
        return
    step = resolution(value, error)
    assert abs(Decimal(repr(found)) - Decimal(repr(value))) <= step / 2
    assert len(Decimal(repr(found)).normalize().as_tuple().digits) <= 4
    assert shown(found) == found


@given(NUMBERS, NUMBERS, ERRORS)
def test_rounding_keeps_order(one: float, two: float, error: float | None) -> None:
    low, high = sorted((one, two))
    assert shown(low) <= shown(high)
    if error:
        step = max(resolution(low, error), resolution(high, error))
        assert shown(low, error) <= shown(high, error) + float(step)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_non_finite_numbers_stay(value: float) -> None:
    assert repr(shown(value)) == repr(whole(value)) == repr(value)
    assert repr(shown_metrics({"loss": value})["loss"]) == repr(value)


def test_the_largest_error_that_an_evaluator_states_counts() -> None:
    metrics = {"loss": 1.0, "loss/se": 0.001, "loss/windows_se": 0.02, "other_se": 3.0}
    assert standard_error(metrics, "loss") == 0.02
    assert standard_error({"loss": 1.0, "loss/se": 0.0}, "loss") is None


class Counted(dict[str, Any]):
    """Metrics that count how often all of them are read."""

    readings = 0

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.readings += 1
        return super().items()


def test_metrics_are_not_all_read_again_for_each_of_them() -> None:
    metrics = Counted({f"m{number}": 1.5 * number for number in range(1_000)})
    shown_metrics(metrics)
    success_bits(metrics, {}, 1.0, SplitMetrics("m1"))
    assert metrics.readings < 10


def test_details_of_a_metric_have_no_more_digits_after_the_point_than_it_has() -> None:
    found = shown_metrics(
        {
            "accuracy": 0.81486,
            "accuracy/se": 0.012284,
            "accuracy/01": 0.000412,
            "accuracy/pairs": 123456.789,
            "other": 0.000412345,
        }
    )
    assert found == {
        "accuracy": 0.815,
        "accuracy/se": 0.012,
        "accuracy/01": 0.0,
        "accuracy/pairs": 123500.0,
        "other": 0.0004123,
    }


def test_a_provenance_holds_whole_seconds_and_mebibytes() -> None:
    exact = {
        "evaluation_seconds": 3.51,
        "train_seconds": 0.2,
        "peak_memory_bytes": 5 * (1 << 20) + 17,
        "rescored": 1.36768,
        "nested": {"score_seconds": 1.25, "other": [1.23456]},
        "seed": 12345678,
        "isolated": True,
        "host": "h",
    }
    assert shown_provenance(exact, {"loss": 1.3, "loss/se": 0.2}, "loss") == {
        "evaluation_seconds": 4.0,
        "train_seconds": 0.0,
        "peak_memory_bytes": 5 << 20,
        "rescored": 1.37,
        "nested": {"score_seconds": 1.0, "other": [1.235]},
        "seed": 12345678,
        "isolated": True,
        "host": "h",
    }


def test_the_code_that_counts_bits_can_be_told_apart() -> None:
    """Kraft's inequality, for every multiple at every step of a range: a prefix code exists."""
    total = sum(
        Decimal(2) ** -bits_of(float(multiple * Decimal(1).scaleb(exponent)), step)
        for exponent in range(-12, 13)
        for step in [Decimal(1).scaleb(exponent)]
        for multiple in range(-600, 601)
    )
    assert Decimal("0.5") < total <= 1


@given(st.integers(-9999, 9999), st.integers(-300, 300))
def test_larger_numbers_cost_more_and_never_less_than_their_share(
    multiple: int, exponent: int
) -> None:
    step = Decimal(1).scaleb(exponent)
    bits = bits_of(float(multiple * step), step)
    assert bits >= math.log2(2 * abs(multiple) + 1)
    assert bits <= 23 + 14


def test_what_a_result_shows_is_counted_for_the_split_it_is_measured_on() -> None:
    metrics = {"accuracy": 0.8148, "sealed": 0.7, "sealed/se": 0.01, "probe": 0.5}
    facts, both = {"evaluation_seconds": 2.2, "seed": 3}, SplitMetrics("accuracy", "sealed")
    one = success_bits(metrics, facts, 5.0, both)
    apart = {
        name: bits_of(value, resolution(value))
        for name, value in metrics.items()
        if "/" not in name
    }
    common = OUTCOME_BITS + VERDICT_BITS + apart["probe"]
    common += bits_of(2.0, Decimal(1)) + bits_of(5.0, Decimal(1))
    assert one.search == common + apart["accuracy"]
    thousandth = Decimal("0.001")
    assert one.sealed == common + bits_of(0.7, thousandth) + bits_of(0.01, thousandth)
    without = success_bits({"accuracy": 0.8148}, {}, 5.0, SplitMetrics("accuracy"))
    assert without.sealed == 0
    assert without.search > 20
    instead = success_bits({"accuracy": 0.8148}, {}, 5.0, SplitMetrics(sealed="accuracy"))
    assert instead == Bits(0, without.search)


def test_a_failure_shows_its_code() -> None:
    assert failure_bits(SplitMetrics("loss")) == Bits(OUTCOME_BITS, 0)
    assert failure_bits(SplitMetrics(sealed="loss")) == Bits(0, OUTCOME_BITS)
    assert failure_bits(SplitMetrics("accuracy", "sealed")) == Bits(OUTCOME_BITS, OUTCOME_BITS)


def test_a_predictor_that_varies_its_score_is_told_apart_no_more_often_than_counted() -> None:
    """The attack: as many messages as possible in the digits of one score."""
    rng = random.Random(0)
    scores = [1.3 + rng.uniform(0, 0.1) for _ in range(20_000)]
    messages = {shown(score, 0.02) for score in scores}
    assert len(messages) == 101
    counted = min(bits_of(score, Decimal("0.001")) for score in messages)
    assert math.log2(len(messages)) <= counted


@pytest.mark.parametrize(
    ("used", "expected"), [(1.04999, 1.0), (1.26, 1.3), (12.6, 13.0), (123.0, 120.0), (0.0, 0.0)]
)
def test_the_compute_of_an_evaluation_has_two_digits_at_most(used: float, expected: float) -> None:
    """A predictor chooses it while it sees held-out data."""
    facts = {"usage": {"evaluation_compute": used, "train_compute": 1.23456}}
    shown_facts = shown_provenance(facts, {}, "loss")
    assert shown_facts == {"usage": {"evaluation_compute": expected, "train_compute": 1.235}}


def test_the_compute_of_an_evaluation_counts_as_shown_and_that_of_training_does_not() -> None:
    metrics = {"loss": 1.0}
    on = SplitMetrics("loss")
    bare = success_bits(metrics, {}, 10.0, on)
    speed = {"seconds": 0.0151, "samples": 38, "cpu_seconds": 0.9}
    training = {"usage": {"train_compute": 1.5}, "train_speed": speed, "train_seconds": 9.0}
    trained = success_bits(metrics, training, 10.0, on)
    scored = success_bits(metrics, {"usage": {"evaluation_compute": 1.2}}, 10.0, on)
    assert trained == bare
    assert scored.search - bare.search == bits_of(1.2, Decimal("0.1"))


#: A first evaluation and what a second one is shown as beside it.
FIRST = {"loss": 12.51, "loss/se": 0.2, "sealed": 1.3, "probe": 0.5}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"loss": 12.54321, "sealed": 1.36768}, {"loss": 12.54, "sealed": 1.368}),
        # The first one's size and error count, however small the second one's are,
        ({"loss": 1.23456, "loss/se": 0.0002}, {"loss": 1.23, "loss/se": 0.0}),
        # and the second one's, where those are larger.
        ({"loss": 12.54321, "loss/se": 30.0}, {"loss": 13.0, "loss/se": 30.0}),
        ({"sealed": 98765.4, "probe": math.inf}, {"sealed": 98770.0, "probe": math.inf}),
        # What only the second one has is shown as its family is.
        ({"loss/part": 0.12345, "new": 0.123456}, {"loss/part": 0.12, "new": 0.1235}),
    ],
)
def test_a_second_evaluation_is_shown_no_finer_than_the_first(
    second: dict[str, float], expected: dict[str, float]
) -> None:
    assert shown_rescore(second, FIRST) == expected


@given(NUMBERS, NUMBERS, ERRORS, ERRORS)
def test_no_number_of_a_second_evaluation_has_digits_that_the_first_lacks(
    one: float, two: float, error: float | None, other: float | None
) -> None:
    first = {"loss": one} | ({} if error is None else {"loss/se": error})
    second = {"loss": two} | ({} if other is None else {"loss/se": other})
    found = shown_rescore(second, first)["loss"]
    step = max(resolution(one, error), resolution(two, other))
    if math.isfinite(found):
        assert Decimal(repr(found)) % step == 0


def test_a_second_evaluation_is_counted_for_the_splits_it_is_measured_on() -> None:
    second = {"loss": 12.54321, "loss/se": 0.21, "sealed": 1.36768, "nan": math.nan}
    hundredth, thousandth = Decimal("0.01"), Decimal("0.001")
    both = bits_of(12.54, hundredth) + bits_of(0.21, hundredth) + 2 + bits_of(3.0, Decimal(1))
    sealed = bits_of(1.368, thousandth)
    assert rescore_bits(second, 2.6, FIRST, SplitMetrics("accuracy", "sealed")) == Bits(
        both, both + sealed
    )
    assert rescore_bits(second, 2.6, FIRST, SplitMetrics("accuracy")) == Bits(both + sealed, 0)


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_a_second_evaluation_counts_as_much_as_its_score_alone_did(
    one: float, two: float, error: float
) -> None:
    """Older workers tell the second score in the provenance."""
    first, second = ({"loss": value, "loss/se": error} for value in (one, two))
    on = SplitMetrics("loss")
    bare = success_bits(first, {}, 1.0, on)
    told = success_bits(first, {"rescored": two}, 1.0, on)
    now = rescore_bits(second, 1.0, first, on)
    assert now.search >= told.search - bare.search
