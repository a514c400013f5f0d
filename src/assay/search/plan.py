"""What strategies are given and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from assay.llm.ideation import Operator, Trajectory


@dataclass(frozen=True)
class Pending:
    """An experiment of the search that has not ended, or an idea that is being asked for.

    Attributes:
        operator: What its idea was asked for, or `remeasure`.
        parents: Ids of the trajectories that it builds on or measures again.
    """

    operator: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Situation:
    """What is known when a strategy decides.

    Attributes:
        epoch: Number of the decision, from 0. A strategy that waits for results decides once per
            epoch; an asynchronous one whenever slots are free.
        batch_size: Most ideas that this decision may ask for.
        seed: Of the search.
        trajectories: What was tried before, oldest first: by the searches and batches that this
            one was told of, then by its own epochs, in the order of (epoch, position), or, if
            the strategy is asynchronous, in the order in which their results came.
        baseline_reward: Reward of the unmodified codebase. None in epoch 0, for strategies that do
            not ask for it, and for asynchronous ones until the baseline is measured.
        pending: What has been decided and has not ended, a decision's ideas until the last of
            them has. Empty for strategies that wait.
    """

    epoch: int
    batch_size: int
    seed: int
    trajectories: tuple[Trajectory, ...] = ()
    baseline_reward: float | None = None
    pending: tuple[Pending, ...] = ()


@dataclass(frozen=True)
class Ask:
    """A question to an ideator: `count` ideas of one operator.

    `known` is all that was tried, oldest first, and the same for every question of an epoch:
    models are shown as much of it as fits. `parents` are those to build on.
    """

    operator: Operator
    count: int
    seed: int
    known: tuple[Trajectory, ...] = ()
    parents: tuple[Trajectory, ...] = ()


@dataclass(frozen=True)
class Remeasure:
    """Measure codebases on more seeds, until each of them has `seeds` seeds. No model is asked."""

    trajectories: tuple[Trajectory, ...]
    seeds: int


#: What a strategy decides: questions whose counts add up to the batch size, or measurements.
Decision: TypeAlias = Sequence[Ask] | Remeasure
