"""Algorithm 1: how epochs are split, what the ideator is shown, and that it is reproducible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.domain.errors import InvalidInput
from assay.llm.ideation import Trajectory
from assay.search import Situation, open_strategy
from assay.search.evolution import Evolution, best_within, sample_within


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


def situation(epoch: int, size: int, rewards: list[float], seed: int = 3) -> Situation:
    past = tuple(trajectory(i, r) for i, r in enumerate(rewards))
    return Situation(epoch, size, seed, past, 0.5 if epoch else None)


def test_the_share_of_exploitation_follows_the_released_schedule() -> None:
    shares = [Evolution().exploit_percent(t) for t in range(1, 12)]
    assert shares == [50, 60, 60, 70, 70, 80, 80, 80, 80, 80, 80]


def test_epoch_0_asks_for_new_ideas_only() -> None:
    (ask,) = Evolution().plan(Situation(0, 80, 3))
    assert (ask.operator, ask.count, ask.context) == ("seed", 80, ())


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


def test_all_explore_while_nothing_beats_the_baseline() -> None:
    (ask,) = Evolution().plan(situation(3, 10, [0.5, 0.4, 0.0]))
    assert (ask.operator, ask.count) == ("explore", 10)


def test_exploitation_sees_exactly_what_beats_the_baseline_in_order() -> None:
    exploit, explore = Evolution().plan(situation(1, 10, [0.6, 0.5, 0.9, 0.0, 0.51]))
    assert [t.position for t in exploit.context] == [0, 2, 4]
    assert len(exploit.tried) == 5
    assert len(explore.context) == 5


def test_a_failure_is_no_success_even_where_rewards_are_negative() -> None:
    bad = replace(trajectory(0, 0.0), state="failed", metric=None)
    good = trajectory(1, -0.5)
    asks = Evolution().plan(Situation(1, 4, 3, (bad, good), baseline_reward=-1.0))
    assert [t.position for t in asks[0].context] == [1]
    assert {t.position for t in asks[1].context} == {0, 1}


def test_exploration_takes_a_random_sample_up_to_the_limit() -> None:
    strategy = Evolution(context_chars=10_000)
    samples = set()
    for seed in range(20):
        ask = strategy.plan(situation(1, 4, [0.1] * 30, seed))[0]
        positions = [t.position for t in ask.context]
        assert positions == sorted(positions)
        assert len(positions) == 10  # 900 characters and a frame of 100 each
        samples.add(tuple(positions))
    assert len(samples) > 15


def test_positives_that_do_not_fit_give_way_by_reward() -> None:
    strategy = Evolution(context_chars=3_000)
    rewards = [0.6, 0.9, 0.7, 0.8, 0.55]
    exploit = strategy.plan(situation(1, 4, rewards))[0]
    assert [t.position for t in exploit.context] == [1, 2, 3]


def test_at_least_one_trajectory_is_shown() -> None:
    large = [trajectory(0, 0.6, size=50_000)]
    assert sample_within(large, 1_000, 1) == tuple(large)
    assert best_within(large, 1_000) == tuple(large)


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
    assert [(a.operator, a.count, a.context) for p in plans for a in p] == [("seed", 6, ())] * 2
    assert plans[0][0].seed != plans[1][0].seed


def test_settings_are_kept_whole_and_checked() -> None:
    strategy = open_strategy("evolution", {"context_chars": 5_000})
    assert strategy.config == {
        "start": 50, "step": 10, "every": 2, "most": 80, "context_chars": 5_000,
    }  # fmt: skip
    assert open_strategy("evolution", strategy.config) == strategy


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("greedy", {}),
        ("evolution", {"sttart": 1}),
        ("evolution", {"start": 101}),
        ("evolution", {"every": 0}),
        ("evolution", {"step": "10"}),
        ("evolution", {"most": True}),
        ("best-of-n", {"start": 50}),
    ],
)
def test_wrong_settings_are_refused(name: str, config: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        open_strategy(name, config)
