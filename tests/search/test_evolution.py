"""Algorithm 1: how epochs are split, what the ideator is shown, and that it is reproducible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.domain.errors import InvalidInput
from assay.llm.ideation import Baseline, Standing, Trajectory
from assay.search import Situation, open_strategy
from assay.search.evolution import Evolution


def trajectory(position: int, reward: float, epoch: int = 0, size: int = 900) -> Trajectory:
    return Trajectory(
        id=f"exp_{epoch}_{position}",
        epoch=epoch,
        position=position,
        idea_text="x" * size,
        reward=reward,
        state="succeeded",
        metric=1 / reward if reward else None,
    )


def standing(verdict: str) -> Standing:
    return Standing(verdict, Baseline(2.0, 0.1, 5))


def situation(epoch: int, size: int, rewards: list[float], seed: int = 3) -> Situation:
    past = tuple(trajectory(i, r) for i, r in enumerate(rewards))
    return Situation(epoch, size, seed, past, 0.5 if epoch else None)


def test_the_share_of_exploitation_follows_the_released_schedule() -> None:
    shares = [Evolution().exploit_percent(t) for t in range(1, 12)]
    assert shares == [50, 60, 60, 70, 70, 80, 80, 80, 80, 80, 80]


def test_epoch_0_asks_for_new_ideas_only() -> None:
    (ask,) = Evolution().plan(Situation(0, 80, 3))
    assert (ask.operator, ask.count, ask.known) == ("seed", 80, ())


@pytest.mark.parametrize(
    ("epoch", "size", "exploit", "explore"),
    [
        (1, 80, 40, 40), (2, 80, 48, 32), (4, 80, 56, 24), (6, 80, 64, 16), (9, 80, 64, 16),
        (1, 50, 25, 25), (3, 50, 30, 20), (5, 50, 35, 15), (1, 5, 2, 3), (2, 4, 2, 2),
        (4, 4, 2, 2), (6, 4, 3, 1), (6, 1, 0, 1), (1, 7, 3, 4), (2, 7, 4, 3),
    ],
)  # fmt: skip
def test_the_split_is_rounded_down(epoch: int, size: int, exploit: int, explore: int) -> None:
    asks = Evolution().plan(situation(epoch, size, [0.6, 0.4]))
    counts = {ask.operator: ask.count for ask in asks}
    assert (counts.get("exploit", 0), counts["explore"]) == (exploit, explore)


#: Algorithm 1 by hand, for each (N, T) and epochs 1 to T - 1: percent that exploit, ideas that
#: exploit and explore, trajectories to build on, and trajectories to differ from. Of every epoch
#: ideas 0, 5, 10 … are positive, and ideas 1, 6, 11 … fail.
BY_HAND = {
    (50, 10): [
        (50, 25, 25, 10, 50), (60, 30, 20, 20, 100), (60, 30, 20, 30, 150), (70, 35, 15, 40, 200),
        (70, 35, 15, 50, 250), (80, 40, 10, 60, 300), (80, 40, 10, 70, 350),
        (80, 40, 10, 80, 400), (80, 40, 10, 90, 450),
    ],
    (80, 10): [
        (50, 40, 40, 16, 80), (60, 48, 32, 32, 160), (60, 48, 32, 48, 240), (70, 56, 24, 64, 320),
        (70, 56, 24, 80, 400), (80, 64, 16, 96, 480), (80, 64, 16, 112, 560),
        (80, 64, 16, 128, 640), (80, 64, 16, 144, 720),
    ],
    (7, 3): [(50, 3, 4, 2, 7), (60, 4, 3, 4, 14)],
}  # fmt: skip


def came_of(position: int, epoch: int) -> Trajectory:
    if position % 5 == 1:
        return replace(trajectory(position, 0.0, epoch), state="failed", metric=None)
    return trajectory(position, 0.6 if position % 5 == 0 else 0.4, epoch)


@pytest.mark.parametrize(("size", "epochs"), BY_HAND)
def test_counts_pools_and_annealing_are_those_of_the_paper(size: int, epochs: int) -> None:
    strategy = Evolution()
    (first,) = strategy.plan(Situation(0, size, 3))
    assert (first.operator, first.count, first.known) == ("seed", size, ())
    past: list[Trajectory] = []
    found = []
    for t in range(1, epochs):
        past += [came_of(position, t - 1) for position in range(size)]
        exploit, explore = strategy.plan(Situation(t, size, 3, tuple(past), 0.5))
        assert (exploit.operator, explore.operator) == ("exploit", "explore")
        assert {p.id for p in exploit.parents} == {p.id for p in past if p.position % 5 == 0}
        assert explore.known == tuple(past)
        counts = (exploit.count, explore.count, len(exploit.parents), len(explore.known))
        found.append((strategy.exploit_percent(t), *counts))
        (none,) = strategy.plan(Situation(t, size, 3, tuple(past), 0.6))
        assert (none.operator, none.count) == ("explore", size)
    assert found == BY_HAND[size, epochs]


@pytest.mark.parametrize("verdict", ["identical", "not comparable", "worse"])
def test_what_its_verdict_calls_no_improvement_is_not_built_on(verdict: str) -> None:
    """On the one seed that was measured the baseline was lucky too."""
    lucky = replace(trajectory(0, 0.9), standing=standing(verdict))
    unclear = replace(trajectory(1, 0.6), standing=standing("undecided"))
    exploit, _ = Evolution().plan(Situation(1, 4, 3, (lucky, unclear), 0.5))
    assert exploit.parents == (unclear,)
    (ask,) = Evolution().plan(Situation(1, 4, 3, (lucky,), 0.5))
    assert (ask.operator, ask.count) == ("explore", 4)


@pytest.mark.parametrize(
    "verdict", ["worse", "undecided", "identical", "provisional", "not comparable", None]
)
def test_by_verdict_a_lucky_mean_is_not_built_on(verdict: str | None) -> None:
    lucky = replace(trajectory(0, 0.9), standing=standing(verdict) if verdict else None)
    better = replace(trajectory(1, 0.6), standing=standing("better"))
    by_verdict = Evolution(positives="verdict")
    exploit, _ = by_verdict.plan(Situation(1, 4, 3, (lucky, better), 0.5))
    assert exploit.parents == (better,)
    (ask,) = by_verdict.plan(Situation(1, 4, 3, (lucky,), 0.5))
    assert (ask.operator, ask.count) == ("explore", 4)
    if verdict in (None, "undecided", "provisional"):
        exploit, _ = Evolution().plan(Situation(1, 4, 3, (lucky, better), 0.5))
        assert exploit.parents == (lucky, better)


def test_all_explore_while_nothing_beats_the_baseline() -> None:
    (ask,) = Evolution().plan(situation(3, 10, [0.5, 0.4, 0.0]))
    assert (ask.operator, ask.count) == ("explore", 10)


def test_exploitation_builds_on_exactly_what_beats_the_baseline_in_order() -> None:
    exploit, explore = Evolution().plan(situation(1, 10, [0.6, 0.5, 0.9, 0.0, 0.51]))
    assert [t.position for t in exploit.parents] == [0, 2, 4]
    assert explore.parents == ()


def test_every_question_of_an_epoch_knows_the_same_oldest_first() -> None:
    exploit, explore = Evolution().plan(situation(1, 10, [0.6, 0.5, 0.9, 0.0, 0.51]))
    assert [t.position for t in exploit.known] == [0, 1, 2, 3, 4]
    assert exploit.known == explore.known


def test_a_failure_is_no_success_even_where_rewards_are_negative() -> None:
    bad = replace(trajectory(0, 0.0), state="failed", metric=None)
    good = trajectory(1, -0.5)
    asks = Evolution().plan(Situation(1, 4, 3, (bad, good), baseline_reward=-1.0))
    assert [t.position for t in asks[0].parents] == [1]
    assert {t.position for t in asks[1].known} == {0, 1}


@pytest.mark.parametrize("positives", ["mean", "verdict"])
def test_what_was_measured_elsewhere_is_known_and_never_built_on(positives: str) -> None:
    better = replace(trajectory(1, 0.6), standing=standing("better"))
    other = replace(better, position=0, reward=0.9, elsewhere="measured on another version")
    strategy = Evolution(positives=positives)
    asks = strategy.plan(Situation(1, 4, 3, (other, better), baseline_reward=0.5))
    assert [t.position for t in asks[0].parents] == [1]
    assert {t.position for t in asks[0].known} == {0, 1}
    (ask,) = strategy.plan(Situation(1, 4, 3, (other,), baseline_reward=0.5))
    assert ask.operator == "explore"


def test_epoch_0_knows_what_the_search_was_told_of() -> None:
    (ask,) = Evolution().plan(Situation(0, 4, 3, (trajectory(0, 0.9),)))
    assert (ask.operator, len(ask.known), ask.parents) == ("seed", 1, ())


def test_the_same_situation_has_the_same_plan_and_other_seeds_differ() -> None:
    first = Evolution().plan(situation(2, 10, [0.6, 0.4]))
    assert first == Evolution().plan(situation(2, 10, [0.6, 0.4]))
    other = Evolution().plan(situation(2, 10, [0.6, 0.4], seed=4))
    assert {a.seed for a in first}.isdisjoint({a.seed for a in other})
    assert len({a.seed for a in first}) == 2


def test_an_unmeasured_baseline_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="baseline"):
        Evolution().plan(Situation(1, 4, 3))


def test_best_of_n_never_looks_at_results() -> None:
    strategy = open_strategy("best-of-n")
    assert not strategy.needs_baseline
    plans = [strategy.plan(situation(t, 6, [0.9, 0.1])) for t in (1, 2)]
    assert [(a.operator, a.count, a.parents) for p in plans for a in p] == [("seed", 6, ())] * 2
    assert plans[0][0].seed != plans[1][0].seed


def test_settings_are_kept_whole_and_checked() -> None:
    strategy = open_strategy("evolution", {"most": 90})
    assert strategy.config == {
        "start": 50, "step": 10, "every": 2, "most": 90, "positives": "mean",
    }  # fmt: skip
    assert open_strategy("evolution", strategy.config) == strategy


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("annealing", {}),
        ("greedy", {"top": 0}),
        ("thompson", {"keep": 0}),
        ("evolution", {"sttart": 1}),
        ("evolution", {"start": 101}),
        ("evolution", {"every": 0}),
        ("evolution", {"step": "10"}),
        ("evolution", {"most": True}),
        ("evolution", {"positives": "median"}),
        ("best-of-n", {"start": 50}),
    ],
)
def test_wrong_settings_are_refused(name: str, config: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        open_strategy(name, config)
