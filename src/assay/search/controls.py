"""Controls: what a strategy has to beat to be worth its complexity (paper §4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from assay.llm.ideation import Operator, Trajectory
from assay.search.plan import Ask, Situation
from assay.search.positives import beats_by_mean
from assay.search.settings import check_whole, from_config, question_seed


@dataclass(frozen=True)
class BestOfN:
    """New ideas in every epoch. It is told which ideas were had before, and no result."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BestOfN:
        """Raises InvalidInput for any setting: there are none."""
        return from_config(cls, config)

    @property
    def config(self) -> Mapping[str, Any]:
        """No settings."""
        return {}

    @property
    def needs_baseline(self) -> bool:
        """Results are not looked at."""
        return False

    @property
    def overlaps(self) -> bool:
        """Results are not looked at."""
        return True

    @property
    def slots(self) -> int | None:
        """It works in epochs."""
        return None

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """A whole batch of new ideas."""
        seed = question_seed(situation, "seed")
        return [Ask("seed", situation.batch_size, seed, situation.trajectories)]


@dataclass(frozen=True)
class Random:
    """Ideas unlike all that was tried, in every epoch: results are shown, and never built on."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Random:
        """Raises InvalidInput for any setting: there are none."""
        return from_config(cls, config)

    @property
    def config(self) -> Mapping[str, Any]:
        """No settings."""
        return {}

    @property
    def needs_baseline(self) -> bool:
        """Results are shown beside it."""
        return True

    @property
    def overlaps(self) -> bool:
        """Results of earlier epochs are shown."""
        return False

    @property
    def slots(self) -> int | None:
        """It works in epochs."""
        return None

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """A whole batch that explores."""
        return [_new(situation, situation.batch_size)]


@dataclass(frozen=True)
class Greedy:
    """Variants of what is best by its mean so far; use it in small waves (`--batch-size 8`).

    Args:
        top: How many of the best codebases are built on.
    """

    top: int = 1

    def __post_init__(self) -> None:
        check_whole("top", self.top, 1, 1_000)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Greedy:
        """Raises InvalidInput for unknown settings and values out of range."""
        return from_config(cls, config)

    @property
    def config(self) -> Mapping[str, Any]:
        """Every setting with its value."""
        return asdict(self)

    @property
    def needs_baseline(self) -> bool:
        """Only what beats it is built on."""
        return True

    @property
    def overlaps(self) -> bool:
        """Every epoch builds on the results of those before."""
        return False

    @property
    def slots(self) -> int | None:
        """It works in epochs."""
        return None

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """Variants of the best; new ideas while nothing beats the baseline."""
        if situation.epoch > 0 and situation.baseline_reward is None:
            raise ValueError("the baseline must be measured before epoch 1")
        best = _best(situation, self.top)
        if not best:
            return [_new(situation, situation.batch_size)]
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


def _new(situation: Situation, count: int) -> Ask:
    """Ideas unlike all that was tried; epoch 0 of a search that was told of nothing has none."""
    operator: Operator = "explore" if situation.epoch else "seed"
    seed = question_seed(situation, operator)
    return Ask(operator, count, seed, situation.trajectories)
