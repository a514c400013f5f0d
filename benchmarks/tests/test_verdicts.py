"""The simulations behind docs/verdicts.md: banks, nulls, searches, power."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean, stdev

import pytest

from assay.domain.metrics import Direction
from benchmarks.calibrate.plans import NULL_CONTROL, NULL_EDITS
from benchmarks.verdicts import banks
from benchmarks.verdicts.__main__ import shipped, two_sigma
from benchmarks.verdicts.banks import Bank
from benchmarks.verdicts.simulate import (
    KINDS,
    Population,
    bootstrapped,
    draw,
    null_rates,
    null_searches,
    power,
)

HIGHER = Direction.MAXIMIZE


def bank(effect: float = 3.0, spread: float = 1.0) -> Bank:
    rng = random.Random(1)
    base = tuple(rng.gauss(5, 1) for _ in range(400))
    edits = {
        f"edit {n}": tuple(5 + effect + rng.gauss(0, spread) for _ in range(100)) for n in range(4)
    }
    return Bank("made", HIGHER, base, edits, tuple(value + 1e-6 for value in base[:100]))


def test_toy_runs_in_this_process() -> None:
    found = banks.toy(seeds=6, edit_seeds=3)
    assert (len(found.baseline), found.shared, found.direction) == (6, 3, HIGHER)
    assert all(0 < value < 1 for value in found.baseline)
    assert found.baseline[:3] == pytest.approx(found.control, rel=1e-3)
    assert found.baseline[:3] != found.control
    assert fmean(found.edits["good_one_coordinate"]) > fmean(found.baseline)
    assert {"step=0.05", "restarts=8", "bad_rounded_answer"} <= set(found.edits)


def test_a_measured_bank_is_read(tmp_path: Path) -> None:
    names = {"baseline": 5, NULL_CONTROL: 2} | dict.fromkeys(NULL_EDITS, 2)
    written = {
        "direction": "minimize",
        "codebases": {n: {"values": [float(i) for i in range(k)]} for n, k in names.items()},
    }
    (tmp_path / "nulls-nanogpt-tiny-cpu-x.json").write_text(json.dumps(written))
    found = banks.nanogpt("cpu-x", tmp_path)
    assert (found.direction, found.shared, len(found.baseline)) == (Direction.MINIMIZE, 2, 5)
    assert set(found.edits) == set(NULL_EDITS)


def test_the_halves_of_a_bank_share_no_edit_and_no_seed_of_the_baseline_alone() -> None:
    whole = bank()
    one, other = whole.half(0), whole.half(1)
    assert set(one.edits) | set(other.edits) == set(whole.edits)
    assert not set(one.edits) & set(other.edits)
    assert not set(one.baseline[100:]) & set(other.baseline[100:])


def test_what_is_drawn_has_no_effect_and_its_own_spread() -> None:
    populations = Population.of(bank(effect=3.0, spread=2.0))
    rng = random.Random(2)
    effects, values = [], []
    for _ in range(300):
        drawn = draw(populations["recentred"], "recentred", 5, 2, rng)
        assert (drawn.baseline.n, drawn.ideas[0].n) == (20, 5)
        effects += [idea.mean - drawn.baseline.mean for idea in drawn.ideas]
        values += [value for idea in drawn.ideas for value in idea.values.values()]
    assert fmean(effects) == pytest.approx(0, abs=0.15)
    assert stdev(values) == pytest.approx(2.0, rel=0.15)


def test_the_same_seeds_are_the_same_seeds() -> None:
    populations = Population.of(bank())
    drawn = draw(populations["same_seeds"], "same_seeds", 3, 1, random.Random(3))
    (idea,) = drawn.ideas
    shared = [drawn.baseline.values[seed] for seed in idea.values]
    spreads = [a - b for a, b in zip(idea.values.values(), shared, strict=True)]
    assert spreads == pytest.approx([spreads[0]] * 3)


def test_rates_tell_a_rule_that_is_wrong_from_one_that_is_not() -> None:
    populations = Population.of(bank(spread=3.0))
    rules = {"shipped": shipped(HIGHER), "two_sigma": two_sigma(HIGHER)}
    found = null_rates(
        populations["recentred"], "recentred", 5, rules, baselines=60, ideas=4, seed=0
    )
    wrong = {name: rates.better[0] + rates.worse[0] for name, rates in found.items()}
    assert wrong["shipped"] < 0.2 < wrong["two_sigma"]
    low, high = found["shipped"].better[1:]
    assert low <= found["shipped"].better[0] <= high
    assert found["shipped"].covered[0] == pytest.approx(1 - wrong["shipped"])


@pytest.mark.parametrize("kind", KINDS)
def test_searches_over_nothing_claim_less_than_they_call_better(kind: str) -> None:
    found = null_searches(
        Population.of(bank())[kind],
        kind,
        two_sigma(HIGHER),
        searches=20,
        ideas=20,
        top=2,
        fresh=3,
        seed=0,
    )
    assert found.any_claimed[0] == 0.0, "the old rule gives no p, so nothing can be claimed"
    assert 0 <= found.best_called_better[0] <= 1


def test_large_effects_are_found() -> None:
    found = power(bank(), 5, shipped(HIGHER), smallest=2.0, largest=9.0, draws=20, seed=0)
    assert found is not None
    assert (found.edits, found.called_right[0], found.called_wrong[0]) == (4, 1.0, 0.0)
    assert power(bank(), 5, shipped(HIGHER), smallest=8.0, largest=9.0, draws=2, seed=0) is None


def test_the_bootstrap_brackets_the_mean() -> None:
    mean, low, high = bootstrapped([0.0, 1.0] * 50, seed=0)
    assert (mean, round(high - low, 1)) == (0.5, 0.2)
    assert low < 0.5 < high
