"""Execution-guided evolutionary search (paper §4.1, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from assay.domain.errors import InvalidInput
from assay.domain.verdicts import Verdict
from assay.search.plan import Ask, Situation
from assay.search.positives import beats_by_mean, is_sound, verdict
from assay.search.settings import Configured, check_whole, question_seed

POSITIVES = ("mean", "verdict")


@dataclass(frozen=True)
class Evolution(Configured):
    """Algorithm 1.

    Epoch 0 asks for new ideas only. Epoch t asks for floor(a(t)/100 * N) variants of the
    trajectories whose reward is above the baseline's, and for N minus that many ideas unlike all
    trajectories, or a random sample of them where they do not fit. a(t) = min(start + step *
    floor(t / every), most), which with the defaults is 50, 60, 60, 70, 70, 80, 80, … for
    t = 1, 2, 3, …: the released code's schedule. While no trajectory beats the baseline, all
    ideas explore.

    How many trajectories fit into a question, only the ideator can tell: it draws the sample, and
    takes the positive ones of highest reward. Trajectories from elsewhere, whose numbers cannot be
    compared, are known and never built on.

    Args:
        positives: what a positive trajectory is. `mean`: its reward is above the baseline's, as
            in the paper and so by default, and its verdict is not `identical`, `worse` or
            `not comparable`. `verdict`: its verdict is `better`, so that ideas which were merely
            lucky are not built on.
    """

    start: int = 50
    step: int = 10
    every: int = 2
    most: int = 80
    positives: str = "mean"

    def __post_init__(self) -> None:
        for name in ("start", "step", "most"):
            check_whole(name, getattr(self, name), 0, 100)
        check_whole("every", self.every, 1, 10_000)
        if self.positives not in POSITIVES:
            raise InvalidInput.field(
                "/config/positives",
                f"must be {' or '.join(POSITIVES)}, not {self.positives!r}",
            )

    def exploit_percent(self, epoch: int) -> int:
        """a(t), in percent."""
        return min(self.start + self.step * (epoch // self.every), self.most)

    def plan(self, situation: Situation) -> Sequence[Ask]:
        """Lines 1 and 4-11 of Algorithm 1."""
        size, epoch, known = situation.batch_size, situation.epoch, situation.trajectories
        if epoch == 0:
            return [Ask("seed", size, question_seed(situation, "seed"), known)]
        if situation.baseline_reward is None:
            raise ValueError("the baseline must be measured before epoch 1")
        beta = situation.baseline_reward
        if self.positives == "verdict":
            positive = tuple(t for t in known if is_sound(t) and verdict(t) == Verdict.BETTER)
        else:
            positive = tuple(t for t in known if beats_by_mean(t, beta))
        exploit = self.exploit_percent(epoch) * size // 100 if positive else 0
        asks = []
        if exploit:
            asks.append(
                Ask("exploit", exploit, question_seed(situation, "exploit"), known, positive)
            )
        if size - exploit:
            asks.append(Ask("explore", size - exploit, question_seed(situation, "explore"), known))
        return asks
