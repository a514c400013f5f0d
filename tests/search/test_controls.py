"""What the controls ask for: greedy builds on the best alone, random on nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.search import Ask, Situation, open_strategy
from tests.search.test_evolution import situation, trajectory


def asks(name: str, where: Situation) -> list[Ask]:
    planned = open_strategy(name).plan(where)
    assert isinstance(planned, list)
    return planned


def test_greedy_varies_the_best_that_beats_the_baseline() -> None:
    (ask,) = asks("greedy", situation(2, 8, [0.6, 0.9, 0.4]))
    assert (ask.operator, ask.count) == ("exploit", 8)
    assert [past.position for past in ask.parents] == [1]
    assert len(ask.known) == 3


@pytest.mark.parametrize("rewards", [[], [0.5, 0.2]])
def test_greedy_explores_while_nothing_beats_the_baseline(rewards: list[float]) -> None:
    (ask,) = asks("greedy", situation(2, 8, rewards))
    assert (ask.operator, ask.count, ask.parents) == ("explore", 8, ())


def test_greedy_builds_on_no_failure_and_nothing_from_elsewhere() -> None:
    foreign = replace(trajectory(0, 0.9), elsewhere="in the profile paper")
    failed = replace(trajectory(1, 0.8), state="failed", metric=None)
    where = Situation(1, 4, 3, (foreign, failed, trajectory(2, 0.6)), 0.5)
    (ask,) = asks("greedy", where)
    assert [past.position for past in ask.parents] == [2]


def test_random_is_shown_results_and_builds_on_none() -> None:
    (ask,) = asks("random", situation(3, 8, [0.9, 0.1]))
    assert (ask.operator, ask.count, len(ask.known), ask.parents) == ("explore", 8, 2, ())
    assert asks("random", Situation(0, 8, 3))[0].operator == "seed"
