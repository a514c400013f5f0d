"""Execution-guided evolutionary search (paper §4.1, Algorithm 1), and best-of-N as its control."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from assay.domain.errors import InvalidInput
from assay.domain.hashing import derive_seed
from assay.domain.states import ExperimentState
from assay.search.plan import Ask, Situation
from assay.search.trajectories import Trajectory, size_of

S = TypeVar("S")


@dataclass(frozen=True)
class Evolution:
    """Algorithm 1.

    Epoch 0 asks for new ideas only. Epoch t asks for floor(a(t)/100 * N) variants of the
    trajectories whose reward is above the baseline's, and for N minus that many ideas unlike a
    random sample of all trajectories. a(t) = min(start + step * floor(t / every), most), which
    with the defaults is 50, 60, 60, 70, 70, 80, 80, … for t = 1, 2, 3, …: the released code's
    schedule. While no trajectory beats the baseline, all ideas explore.

    Args:
        context_chars: what the trajectories of one question may take. Exploration takes a random
            sample up to it. Exploitation takes all positive trajectories; should they not fit,
            those with the highest rewards.
    """

    start: int = 50
    step: int = 10
    every: int = 2
    most: int = 80
    context_chars: int = 200_000

    def __post_init__(self) -> None:
        for name in ("start", "step", "most"):
            _check(name, getattr(self, name), 0, 100)
        _check("every", self.every, 1, 10_000)
        _check("context_chars", self.context_chars, 1_000, 100_000_000)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Evolution:
        """Raises InvalidInput for unknown settings and values out of range."""
        return _from_config(cls, config)

    @property
    def config(self) -> Mapping[str, Any]:
        """Every setting with its value."""
        return asdict(self)

    @property
    def needs_baseline(self) -> bool:
        """Positive is what beats the baseline."""
        return True

    def exploit_percent(self, epoch: int) -> int:
        """a(t), in percent."""
        return min(self.start + self.step * (epoch // self.every), self.most)

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """Lines 1 and 4-11 of Algorithm 1."""
        size, epoch = situation.batch_size, situation.epoch
        if epoch == 0:
            return [Ask("seed", size, _seed(situation, "seed"))]
        if situation.baseline_reward is None:
            raise ValueError("the baseline must be measured before epoch 1")
        beta = situation.baseline_reward
        # A failed idea has reward 0, which is above a baseline whose reward is negative.
        sound = [t for t in situation.trajectories if t.state == ExperimentState.SUCCEEDED]
        positive = [t for t in sound if t.reward > beta]
        exploit = self.exploit_percent(epoch) * size // 100 if positive else 0
        asks = []
        if exploit:
            context = best_within(positive, self.context_chars)
            seed = _seed(situation, "exploit")
            asks.append(Ask("exploit", exploit, seed, context, tried=situation.trajectories))
        if size - exploit:
            seed = _seed(situation, "explore")
            context = sample_within(situation.trajectories, self.context_chars, seed)
            asks.append(Ask("explore", size - exploit, seed, context))
        return asks


@dataclass(frozen=True)
class BestOfN:
    """New ideas in every epoch, without looking at results: the control of Algorithm 1 (§4.3)."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BestOfN:
        """Raises InvalidInput for any setting: there are none."""
        return _from_config(cls, config)

    @property
    def config(self) -> Mapping[str, Any]:
        """No settings."""
        return {}

    @property
    def needs_baseline(self) -> bool:
        """Results are not looked at."""
        return False

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """A whole batch of seeds."""
        return [Ask("seed", situation.batch_size, _seed(situation, "seed"))]


def sample_within(
    trajectories: Sequence[Trajectory], limit: int, seed: int
) -> tuple[Trajectory, ...]:
    """A random sample, taken one by one until the next does not fit, in the order given.

    At least one is taken, however large.
    """
    order = list(range(len(trajectories)))
    random.Random(seed).shuffle(order)
    taken = _until_full(trajectories, order, limit)
    return tuple(trajectories[i] for i in sorted(taken))


def best_within(trajectories: Sequence[Trajectory], limit: int) -> tuple[Trajectory, ...]:
    """All, or those of highest reward that fit, in the order given."""
    order = sorted(range(len(trajectories)), key=lambda i: (-trajectories[i].reward, i))
    taken = _until_full(trajectories, order, limit)
    return tuple(trajectories[i] for i in sorted(taken))


def _until_full(trajectories: Sequence[Trajectory], order: Sequence[int], limit: int) -> list[int]:
    taken: list[int] = []
    used = 0
    for index in order:
        used += size_of(trajectories[index])
        if taken and used > limit:
            break
        taken.append(index)
    return taken


def _seed(situation: Situation, operator: str) -> int:
    return derive_seed(situation.seed, situation.epoch, operator)


def _check(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput.field(
            f"/config/{name}", f"must be a whole number from {low} to {high}, not {value!r}"
        )


def _from_config(kind: type[S], config: Mapping[str, Any]) -> S:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in config:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidInput.field(f"/config/{name}", f"unknown setting; known: {listed}")
    return kind(**config)
