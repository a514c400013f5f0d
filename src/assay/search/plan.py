"""What strategies are given and what they answer."""

from __future__ import annotations

from dataclasses import dataclass

from assay.contracts.batch import Operator
from assay.llm.ideation import Trajectory


@dataclass(frozen=True)
class Situation:
    """What is known at the start of an epoch.

    `trajectories` holds what was tried before, oldest first: by the searches and batches that this
    one was told of, then by its own epochs, in the order of (epoch, position). `baseline_reward`
    is None in epoch 0, and for strategies that do not ask for it.
    """

    epoch: int
    batch_size: int
    seed: int
    trajectories: tuple[Trajectory, ...] = ()
    baseline_reward: float | None = None


@dataclass(frozen=True)
class Ask:
    """A question to an ideator: `count` ideas of one operator.

    `known` is all that was tried, oldest first, and the same for every question of an epoch:
    models are shown as much of it as fits. `positives` are those to build on, when it exploits.
    """

    operator: Operator
    count: int
    seed: int
    known: tuple[Trajectory, ...] = ()
    positives: tuple[Trajectory, ...] = ()
