"""What a run used beside the baseline."""

from __future__ import annotations

import pytest

from assay.contracts.environment import Budget, Profile, SmokeSpec
from assay.domain.usage import Used, mean_usage, multiple, typical
from assay.storage.shapes import bound_seconds


def test_the_typical_run_is_the_median_of_each_figure() -> None:
    runs = [
        Used(10.0, 4.0, 8.0, 100, 7, 630),
        Used(11.0, 4.2, 9.0, 120, 7),
        Used(99.0, 1.0, 8.5, 90, 9),
    ]
    assert typical(runs) == Used(11.0, 4.0, 8.5, 100, 7, 630)
    assert typical(runs[1:]).parameters is None


def test_a_multiple_of_what_is_unknown_is_unknown() -> None:
    assert multiple(3.0, 2.0) == 1.5
    assert multiple(None, 2.0) is None
    assert multiple(3.0, None) is None
    assert multiple(3.0, 0.0) is None


def test_usage_is_the_mean_over_the_measurements_that_state_it() -> None:
    one, two = {"train_compute": 1.0, "train_memory": 2.0}, {"train_compute": 2.0}
    stated = [{"usage": one}, {"usage": two}, {}, {"usage": "nonsense"}]
    assert mean_usage(stated) == {"train_compute": 1.5, "train_memory": 2.0}
    assert mean_usage([{}]) == {}


def test_caps_that_are_multiples_are_for_profiles_without_gpus() -> None:
    assert Profile(gpus=1, budget=Budget(seconds=1)).budget.is_relative is False
    with pytest.raises(ValueError, match="gpus = 0"):
        Profile(gpus=1, budget=Budget(seconds=1, compute=1.5))


def test_a_warm_up_is_for_profiles_with_gpus_and_held_as_long_as_them() -> None:
    budget = Budget(seconds=100, evaluation_seconds=10, warm_up_seconds=40)
    assert budget.training_seconds == 140
    assert Budget(seconds=100).training_seconds == 100
    assert bound_seconds(Profile(gpus=1, budget=budget)) == 140 + 2 * 10 + 60
    with pytest.raises(ValueError, match=r"budget\.warm_up_seconds is for profiles with gpus"):
        Profile(budget=budget)


def test_a_smoke_has_no_warm_up() -> None:
    profile = Profile(gpus=1, budget=Budget(seconds=100, warm_up_seconds=40))
    assert SmokeSpec().cut(profile).budget.warm_up_seconds is None


def test_a_budget_without_such_caps_is_stored_as_before() -> None:
    """Processes of an older version refuse keys that they do not know."""
    assert set(Budget(seconds=1).model_dump()).isdisjoint(
        {"compute", "artifact", "warm_up_seconds"}
    )
    assert Budget(seconds=1, compute=1.5).model_dump()["compute"] == 1.5
    assert "bound" not in Profile(budget=Budget(seconds=1)).model_dump()
