"""Which trajectories may be built on."""

from __future__ import annotations

from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict
from assay.llm.ideation import Trajectory

#: Verdicts that contradict a reward above the baseline's: the baseline was as lucky on the seeds
#: that were measured, or the numbers cannot be compared.
_NO_IMPROVEMENT = (Verdict.IDENTICAL, Verdict.WORSE, Verdict.NOT_COMPARABLE)


def is_sound(past: Trajectory) -> bool:
    """Whether a trajectory has a result that compares with those of the search.

    A failed idea has reward 0, which is above a baseline whose reward is negative.
    """
    return past.state == ExperimentState.SUCCEEDED and not past.elsewhere


def beats_by_mean(past: Trajectory, baseline_reward: float) -> bool:
    """Whether a trajectory's reward is above the baseline's, and its verdict does not deny it."""
    above = is_sound(past) and past.reward > baseline_reward
    return above and verdict(past) not in _NO_IMPROVEMENT


def verdict(past: Trajectory) -> str | None:
    """The verdict on a trajectory; None if it was not compared with a baseline."""
    return past.standing.verdict if past.standing else None
