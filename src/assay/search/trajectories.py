"""Trajectories: what earlier epochs tried and what came of it, read from the service."""

from __future__ import annotations

from assay.client import Client, NotFound
from assay.contracts.batch import ExperimentBody
from assay.contracts.search import EpochBody
from assay.domain.failure_codes import rules_for
from assay.domain.states import ExperimentState
from assay.llm.ideation import Trajectory

__all__ = ["Trajectory", "TrajectoryReader", "size_of"]

_ENDED = (ExperimentState.SUCCEEDED, ExperimentState.FAILED)
#: Characters around a trajectory in a prompt: its headings and numbers.
_FRAME = 100


def size_of(trajectory: Trajectory) -> int:
    """Characters a trajectory takes in a prompt, about."""
    return len(trajectory.idea_text) + len(trajectory.diff) + len(trajectory.failure) + _FRAME


def _is_shown(experiment: ExperimentBody) -> bool:
    """Whether an experiment says something of its idea."""
    if experiment.state not in _ENDED:
        return False
    failure = experiment.failure
    return failure is None or rules_for(failure.code, failure.stage).shown_to_ideators


class TrajectoryReader:
    """Reads the trajectories of finished epochs. They never change, so each is read once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, tuple[Trajectory, ...]] = {}
        self._listed: dict[str, tuple[ExperimentBody, ...]] = {}

    def of(self, epoch: EpochBody) -> tuple[Trajectory, ...]:
        """The trajectories of an epoch whose batch is finished, by position.

        A failed idea has reward 0 and says where it failed; if a retry of it succeeded, that one
        counts. Cancelled experiments are left out, and so are failures that say nothing of the
        idea: nothing was learnt from them.
        """
        if epoch.batch is None:
            return ()
        if epoch.batch not in self._known:
            outcomes = map(self._outcome, self.experiments(epoch))
            learnt = [e for e in outcomes if _is_shown(e)]
            self._known[epoch.batch] = tuple(self._read(epoch.number, e) for e in learnt)
        return self._known[epoch.batch]

    def experiments(self, epoch: EpochBody) -> tuple[ExperimentBody, ...]:
        """All experiments of an epoch whose batch is finished, by position."""
        if epoch.batch is None:
            return ()
        if epoch.batch not in self._listed:
            listed = self._client.experiments.list(batch=epoch.batch)
            self._listed[epoch.batch] = tuple(sorted(listed, key=lambda e: e.position))
        return self._listed[epoch.batch]

    def _outcome(self, experiment: ExperimentBody) -> ExperimentBody:
        """The experiment, or the retry of it that succeeded, in its place."""
        for retry in reversed(experiment.retried_as):
            again = self._client.experiments.get(retry)
            if again.state == ExperimentState.SUCCEEDED:
                return again.model_copy(update={"position": experiment.position})
        return experiment

    def _read(self, epoch: int, experiment: ExperimentBody) -> Trajectory:
        failure = experiment.failure
        succeeded = experiment.state == ExperimentState.SUCCEEDED
        return Trajectory(
            id=experiment.id,
            epoch=epoch,
            position=experiment.position,
            idea_text=experiment.idea.text,
            reward=experiment.reward if succeeded else 0.0,
            state=experiment.state,
            metric=experiment.metric if succeeded else None,
            diff=self._diff(experiment),
            failure=f"{failure.stage} ({failure.code}): {failure.message}" if failure else "",
        )

    def _diff(self, experiment: ExperimentBody) -> str:
        if experiment.codebase is None:
            return ""
        try:
            return self._client.experiments.diff(experiment.id)
        except NotFound:
            return ""
