"""Controls: what a strategy has to beat to be worth its complexity (paper §4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.llm.ideation import Operator, Trajectory
from assay.search.plan import Ask, Situation
from assay.search.positives import beats_by_mean
from assay.search.settings import Configured, check_whole, question_seed


@dataclass(frozen=True)
class BestOfN(Configured):
    """New ideas in every epoch. It is told which ideas were had before, and no result."""

    @property
    def needs_baseline(self) -> bool:
        """Results are not looked at."""
        return False

    @property
    def overlaps(self) -> bool:
        """Results are not looked at."""
        return True

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """A whole batch of new ideas."""
        seed = question_seed(situation, "seed")
        return [Ask("seed", situation.batch_size, seed, situation.trajectories)]


@dataclass(frozen=True)
class Random(Configured):
    """Ideas unlike all that was tried, in every epoch: results are shown, and never built on."""

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """A whole batch that explores."""
        return [_new(situation)]


@dataclass(frozen=True)
class Greedy(Configured):
    """Variants of what is best by its mean so far; use it in small waves (`--batch-size 8`).

    Args:
        top: How many of the best codebases are built on.
    """

    top: int = 1

    def __post_init__(self) -> None:
        check_whole("top", self.top, 1, 1_000)

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """Variants of the best; new ideas while nothing beats the baseline."""
        if situation.epoch > 0 and situation.baseline_reward is None:
            raise ValueError("the baseline must be measured before epoch 1")
        best = _best(situation, self.top)
        if not best:
            return [_new(situation)]
        seed = question_seed(situation, "exploit")
        known = situation.trajectories
        return [Ask("exploit", situation.batch_size, seed, known, best)]


def _best(situation: Situation, top: int) -> tuple[Trajectory, ...]:
    """The best that beat the baseline, best first."""
    if situation.baseline_reward is None:
        return ()
    found = [
        past for past in situation.trajectories if beats_by_mean(past, situation.baseline_reward)
    ]
    return tuple(sorted(found, key=lambda past: (-past.reward, past.id))[:top])


def _new(situation: Situation) -> Ask:
    """Ideas unlike all that was tried; epoch 0 of a search that was told of nothing has none."""
    operator: Operator = "explore" if situation.epoch else "seed"
    seed = question_seed(situation, operator)
    return Ask(operator, situation.batch_size, seed, situation.trajectories)
