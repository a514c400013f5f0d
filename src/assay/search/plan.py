"""What strategies are given and what they answer."""

from __future__ import annotations

from dataclasses import dataclass

from assay.contracts.batch import Operator
from assay.llm.ideation import Trajectory


@dataclass(frozen=True)
class Situation:
    """What is known at the start of an epoch.

    `trajectories` holds those of all epochs before, ordered by (epoch, position).
    `baseline_reward` is None in epoch 0, and for strategies that do not ask for it.
    """

    epoch: int
    batch_size: int
    seed: int
    trajectories: tuple[Trajectory, ...] = ()
    baseline_reward: float | None = None


@dataclass(frozen=True)
class Ask:
    """A question to an ideator: `count` ideas of one operator.

    `context` is what a model is shown: the positive trajectories when it exploits, a sample of all
    when it explores. `tried` are further trajectories that an ideator which can tell should not
    repeat; models are not shown them.
    """

    operator: Operator
    count: int
    seed: int
    context: tuple[Trajectory, ...] = ()
    tried: tuple[Trajectory, ...] = ()
