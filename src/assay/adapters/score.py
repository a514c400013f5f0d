"""What a candidate of an optimizer reached, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass

from assay.analysis.text import clean
from assay.domain.errors import AssayError
from assay.llm.ideation import CurveEnd, Trajectory
from assay.llm.trajectory_text import outcome

#: `Score.state` of a codebase that the service did not take.
REFUSED = "refused"


class NoResult(AssayError):
    """A candidate was not measured, for a reason that says nothing of it."""

    code = "no_result"


@dataclass(frozen=True)
class Score:
    """What a codebase reached. Numbers are those that the API shows.

    Attributes:
        codebase: the SHA-256 of its names and contents.
        metric_name: what the environment measures.
        state: `succeeded`, `failed` or `refused`; a refused codebase has no experiment.
        reward: what to maximize, whichever way the metric improves; 0 unless it succeeded.
        metric: the mean over the seeds; None unless it succeeded.
        failure: what went wrong, for a model to learn from; empty if it succeeded.
        verdict: how it compares with the baseline (`better`, `worse`, `undecided`, `identical`,
            `provisional`, `not comparable`); None if it does not.
        experiment: the id of its experiment in Assay; None if it was refused.
        curve: the end of what the codebase wrote about its training: a claim, never a result.
        feedback: a few lines for a model: the result beside the baseline, or the failure, and
            the end of the training curve.
    """

    codebase: str
    metric_name: str
    state: str
    reward: float = 0.0
    metric: float | None = None
    failure: str = ""
    verdict: str | None = None
    experiment: str | None = None
    curve: CurveEnd | None = None
    feedback: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether there is a result."""
        return self.metric is not None

    def as_text(self) -> dict[str, str]:
        """What models and people read of it, by name."""
        said = {
            "feedback": self.feedback,
            "failure": self.failure,
            "verdict": self.verdict or "",
            "experiment": self.experiment or "",
        }
        return {name: text for name, text in said.items() if text}


def score_of(codebase: str, past: Trajectory, metric_name: str) -> Score:
    """Return the score of a codebase whose experiment has ended."""
    return Score(
        codebase=codebase,
        metric_name=metric_name,
        state=past.state,
        reward=past.reward,
        metric=past.metric,
        failure=clean(past.failure),
        verdict=None if past.standing is None else past.standing.verdict,
        experiment=past.id,
        curve=past.curve,
        feedback=clean(outcome(past, metric_name)),
    )


def refusal_of(codebase: str, why: str, metric_name: str) -> Score:
    """Return the score of a codebase that the service refused to store."""
    said = clean(why)
    return Score(codebase, metric_name, REFUSED, failure=said, feedback=f"{REFUSED}: {said}")
