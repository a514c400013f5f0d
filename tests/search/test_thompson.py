"""What the asynchronous strategy decides: shrinkage, draws, operators, and measuring again."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from assay.llm.ideation import Baseline, Standing, Trajectory
from assay.search import Ask, Pending, Remeasure, Situation
from assay.search.posterior import posterior
from assay.search.thompson import Thompson

BASELINE = Baseline(2.0, 0.1, 20)


def result(
    number: int, effect: float, error: float = 0.1, *, seeds: int = 1, operator: str = "explore"
) -> Trajectory:
    return Trajectory(
        id=f"exp_{number:03}",
        epoch=number // 8,
        position=number % 8,
        idea_text=f"idea {number}",
        reward=1 / (2.0 - effect),
        state="succeeded",
        metric=2.0 - effect,
        operator=operator,
        seeds=seeds,
        standing=Standing("undecided", BASELINE, effect, error),
        codebase=f"code_{number}",
    )


def failure(number: int) -> Trajectory:
    return replace(
        result(number, 0.0), state="failed", metric=None, reward=0.0, standing=None, codebase=None
    )


def results(count: int, error: float, seed: int = 0, spread: float = 0.3) -> list[Trajectory]:
    rng = random.Random(seed)
    return [result(n, rng.gauss(0, spread) + rng.gauss(0, error), error) for n in range(count)]


def situation(past: list[Trajectory], epoch: int = 5, **more: tuple[Pending, ...]) -> Situation:
    return Situation(epoch, 8, 3, tuple(past), 0.5, **more)


def decisions(past: list[Trajectory], count: int = 200, **settings: int) -> list[object]:
    strategy = Thompson(**settings)
    return [strategy.plan(situation(past, epoch)) for epoch in range(count)]


def test_effects_shrink_by_their_noise_towards_the_median() -> None:
    few, many = result(0, 0.8, 0.4, seeds=1), result(1, 0.8, 0.1, seeds=4)
    others = [result(n, (n - 11) / 10, 0.1) for n in range(2, 22)]
    known = {each.trajectory.id: each for each in posterior([few, many, *others]).candidates}
    assert known[few.id].mean < known[many.id].mean < 0.8
    assert known[few.id].sd > known[many.id].sd


def test_the_shrunken_effect_is_nearer_to_the_truth_than_the_measured_one() -> None:
    """The best of 40 results is claimed too high by more than twice what its posterior is."""
    raw, shrunken = [], []
    for seed in range(200):
        rng = random.Random(seed)
        truth = [rng.gauss(0, 0.1) for _ in range(40)]
        past = [result(n, true + rng.gauss(0, 0.1), 0.1) for n, true in enumerate(truth)]
        best = posterior(past).candidates[0]
        true = truth[past.index(best.trajectory)]
        raw.append(2.0 - (best.trajectory.metric or 0) - true)
        shrunken.append(best.mean - true)
    assert fmean(raw) > 0.08
    assert abs(fmean(shrunken)) < fmean(raw) / 2


def test_a_broken_training_makes_no_lucky_result_credible() -> None:
    usual = results(20, 0.1, spread=0.01)
    (before,) = [posterior(usual).candidates[0].mean]
    broken = [result(100 + n, -50.0, 0.1) for n in range(3)]
    assert posterior([*usual, *broken]).candidates[0].mean == pytest.approx(before, abs=0.05)


def test_of_one_codebase_the_result_on_most_seeds_counts() -> None:
    again = replace(result(1, 0.1, 0.05, seeds=2), codebase="code_0")
    (only,) = posterior([result(0, 0.9), again]).candidates
    assert only.trajectory is again


def test_nothing_known_asks_for_new_ideas() -> None:
    decision = Thompson().plan(Situation(0, 8, 3))
    assert isinstance(decision, list)
    assert [(ask.operator, ask.count) for ask in decision] == [("seed", 8)]


def test_every_decision_asks_for_the_whole_batch_or_measures_again() -> None:
    for decision in decisions([*results(30, 0.1), failure(30)]):
        if isinstance(decision, Remeasure):
            assert 1 <= len(decision.trajectories) <= 4
        else:
            assert isinstance(decision, list)
            assert sum(ask.count for ask in decision) == 8
            for ask in decision:
                assert isinstance(ask, Ask)
                assert bool(ask.parents) == (ask.operator != "explore")


def test_the_same_situation_has_the_same_decision() -> None:
    past = results(30, 0.1)
    assert decisions(past, 20) == decisions(past, 20)


@pytest.mark.parametrize(("error", "least", "most"), [(0.02, 0, 4), (0.6, 35, 65)])
def test_it_measures_again_as_often_as_noise_is_large(error: float, least: int, most: int) -> None:
    made = decisions(results(40, error))
    assert least <= sum(isinstance(each, Remeasure) for each in made) <= most


def test_what_is_measured_again_has_few_seeds_promises_much_and_is_not_under_way() -> None:
    past = results(40, 0.6)
    for decision in decisions(past):
        if isinstance(decision, Remeasure):
            assert decision.seeds == 2
            assert all(each.standing and (each.standing.effect or 0) > 0.3
                       for each in decision.trajectories)  # fmt: skip
    enough = [replace(each, seeds=4) for each in past]
    assert not any(isinstance(each, Remeasure) for each in decisions(enough))
    under_way = (Pending("remeasure", tuple(each.id for each in past)),)
    strategy = Thompson()
    for epoch in range(200):
        assert isinstance(strategy.plan(situation(past, epoch, pending=under_way)), list)


def test_the_operator_whose_ideas_came_among_the_best_is_asked_most() -> None:
    def asked(operator: str) -> Counter[str]:
        good = [result(n, 1.0 + n / 100, operator=operator) for n in range(20)]
        rest = [result(n, -1.0, operator="explore") for n in range(20, 40)]
        counts: Counter[str] = Counter()
        for decision in decisions([*good, *rest], parents=20, remeasure=0):
            assert isinstance(decision, list)
            counts.update({ask.operator: ask.count for ask in decision})
        return counts

    assert asked("refine").most_common(1)[0][0] == "refine"
    assert asked("combine").most_common(1)[0][0] == "combine"
    assert asked("refine")["explore"] > 0.1 * asked("refine").total()


def test_a_failure_is_rescued_once() -> None:
    past = [*results(10, 0.1), failure(50)]
    rescued = replace(result(51, 0.0, operator="rescue"), parents=("exp_050",))

    def parents(known: list[Trajectory]) -> set[str]:
        asks = [a for d in decisions(known) if isinstance(d, list) for a in d]
        return {past.id for ask in asks if ask.operator == "rescue" for past in ask.parents}

    assert parents(past) == {"exp_050"}
    assert parents([*past, rescued]) == set()
