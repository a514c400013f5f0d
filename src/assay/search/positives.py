"""Which trajectories may be built on."""

from __future__ import annotations

from assay.domain.states import ExperimentState
from assay.llm.ideation import Trajectory


def is_sound(past: Trajectory) -> bool:
    """Whether a trajectory has a result that compares with those of the search.

    A failed idea has reward 0, which is above a baseline whose reward is negative.
    """
    return past.state == ExperimentState.SUCCEEDED and not past.elsewhere
