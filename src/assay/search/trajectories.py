"""Trajectories: what was tried before and what came of it, read from the service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from assay.client import Client, NotFound
from assay.contracts.batch import ComparisonBody, CurvePoint, ExperimentBody
from assay.contracts.search import EpochBody
from assay.domain.failure_codes import rules_for
from assay.domain.metrics import Direction
from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict
from assay.llm.ideation import Baseline, CurveEnd, Standing, Trajectory

__all__ = [
    "Trajectory",
    "TrajectoryReader",
    "curve_end",
    "is_provisional",
    "read_diffs",
    "without_results",
]

_ENDED = (ExperimentState.SUCCEEDED, ExperimentState.FAILED)
#: Points asked for of a training curve, and how many of the last ones are kept.
_CURVE_POINTS, _LAST_POINTS = 20, 3
#: From so many on, diffs are read together, with all else that the records of a batch hold.
_FEWEST_DIFFS = 2
#: What tells how a training went, by which way the metric improves; the first that occurs.
_TELLING = {
    Direction.MINIMIZE: ("loss", "height", "error"),
    Direction.MAXIMIZE: ("reward", "score", "accuracy", "loss"),
}


def _is_shown(experiment: ExperimentBody) -> bool:
    """Whether an experiment says something of its idea."""
    if experiment.state not in _ENDED:
        return False
    failure = experiment.failure
    return failure is None or rules_for(failure.code, failure.stage).shown_to_ideators


def is_provisional(past: Trajectory) -> bool:
    """Whether its verdict still waits for the baseline."""
    return past.standing is not None and past.standing.verdict == Verdict.PROVISIONAL


def without_results(epoch: EpochBody) -> tuple[Trajectory, ...]:
    """The ideas of an epoch as trajectories that say nothing of what came of them."""
    return tuple(
        Trajectory(
            id=f"{epoch.number}.{position}",
            epoch=epoch.number,
            position=position,
            idea_text=idea.text,
            reward=0.0,
            state=ExperimentState.SUBMITTED,
            operator=idea.operator,
            parents=tuple(idea.parents),
        )
        for position, idea in enumerate(epoch.ideas)
    )


class TrajectoryReader:
    """Reads the trajectories of batches that have finished.

    What a reader once returned stays the same while it lives, because providers cache the prompts
    that begin with it. Only a batch whose verdicts wait for the baseline is read anew.
    `with_curves`: whether the ends of training curves are asked for, one request per experiment.
    """

    def __init__(
        self,
        client: Client,
        direction: Direction = Direction.MINIMIZE,
        *,
        with_curves: bool = True,
    ) -> None:
        self._client = client
        self._direction = direction
        self._with_curves = with_curves
        self._known: dict[str, tuple[Trajectory, ...]] = {}
        self._each: dict[str, Trajectory] = {}

    def of(self, epoch: EpochBody) -> tuple[Trajectory, ...]:
        """The trajectories of an epoch whose batch is finished, by position: see `of_batch`."""
        return () if epoch.batch is None else self.of_batch(epoch.batch, epoch.number)

    def of_batch(self, batch: str, epoch: int, source: str = "") -> tuple[Trajectory, ...]:
        """The trajectories of a batch that is finished, by position.

        A failed idea has reward 0 and says where it failed; if a retry of it succeeded, that one
        counts. Cancelled experiments are left out, and so are failures that say nothing of the
        idea: nothing was learnt from them. Confirmations are not read: search must not see the
        sealed split.
        """
        if batch in self._known:
            return self._known[batch]
        learnt = [e for e in self._outcomes(batch) if _is_shown(e)]
        diffs = read_diffs(self._client, batch, learnt)
        found = tuple(self._read(epoch, e, source, diffs) for e in learnt)
        if not any(map(is_provisional, found)):
            self._known[batch] = found
        return found

    def ended(self, epoch: int, experiments: Iterable[ExperimentBody]) -> tuple[Trajectory, ...]:
        """The trajectories of those experiments of an epoch that have ended, by position.

        As of `of_batch`, but the others may go on, and a failed idea with a retry that succeeded
        has both of its trajectories.
        """
        found: list[Trajectory] = []
        for experiment in experiments:
            outcome = self._outcome(experiment)
            both = [experiment] if outcome is experiment else [experiment, outcome]
            found += [self._once(epoch, each) for each in both if _is_shown(each)]
        return tuple(found)

    def _once(self, epoch: int, experiment: ExperimentBody) -> Trajectory:
        known = self._each.get(experiment.id)
        if known is not None:
            return known
        found = self._read(epoch, experiment, "", {})
        if not is_provisional(found):
            self._each[experiment.id] = found
        return found

    def listed(self, batch: str) -> tuple[ExperimentBody, ...]:
        """All experiments of a batch by position, as they are now."""
        listed = self._client.experiments.list(batch=batch)
        return tuple(sorted(listed, key=lambda e: e.position))

    def experiments(self, epoch: EpochBody) -> tuple[ExperimentBody, ...]:
        """All experiments of an epoch whose batch is finished, by position, as they are now.

        They are read anew each time: verdicts change until the baseline is whole.
        """
        return () if epoch.batch is None else self.listed(epoch.batch)

    def outcomes(self, epoch: EpochBody) -> tuple[ExperimentBody, ...]:
        """The experiments of an epoch whose batch is finished, each as the last retry left it."""
        return () if epoch.batch is None else self._outcomes(epoch.batch)

    def _outcomes(self, batch: str) -> tuple[ExperimentBody, ...]:
        return tuple(map(self._outcome, self.listed(batch)))

    def _outcome(self, experiment: ExperimentBody) -> ExperimentBody:
        """The experiment, or the retry of it that succeeded, in its place."""
        for retry in reversed(experiment.retried_as):
            again = self._client.experiments.get(retry)
            if again.state == ExperimentState.SUCCEEDED:
                return again.model_copy(update={"position": experiment.position})
        return experiment

    def _read(
        self, epoch: int, experiment: ExperimentBody, source: str, diffs: Mapping[str, str]
    ) -> Trajectory:
        failure = experiment.failure
        succeeded = experiment.state == ExperimentState.SUCCEEDED
        idea, compared = experiment.idea, experiment.comparison
        return Trajectory(
            id=experiment.id,
            epoch=epoch,
            position=experiment.position,
            idea_text=idea.text,
            reward=experiment.reward if succeeded else 0.0,
            state=experiment.state,
            metric=experiment.metric if succeeded else None,
            diff=diffs.get(experiment.id) or self._diff(experiment),
            failure=f"{failure.stage} ({failure.code}): {failure.message}" if failure else "",
            operator=idea.operator,
            parents=tuple(idea.parents),
            seeds=compared.n if compared else len(experiment.measurements),
            seconds=experiment.seconds,
            standing=standing_of(compared) if compared else None,
            curve=self._curve(experiment),
            codebase=experiment.codebase,
            source=source,
            retries=idea.retries or "",
        )

    def _diff(self, experiment: ExperimentBody) -> str:
        if experiment.codebase is None:
            return ""
        try:
            return self._client.experiments.diff(experiment.id)
        except NotFound:
            return ""

    def _curve(self, experiment: ExperimentBody) -> CurveEnd | None:
        if not self._with_curves or experiment.codebase is None:
            return None
        points = self._client.experiments.curves(experiment.id, max_points=_CURVE_POINTS)
        return curve_end(points, experiment.metric_name, self._direction)


def read_diffs(
    client: Client,
    batch: str,
    experiments: Sequence[ExperimentBody],
    *,
    confirmations: bool = False,
) -> Mapping[str, str]:
    """Return the diffs of a batch's experiments by id, in a request per page of them.

    Those of other batches are left out, and all of them if that is one diff or if the object
    store has lost one: each is then asked for by itself. `confirmations`: also if the batch
    confirms results, which no search may learn from.
    """
    if sum(e.batch == batch and e.codebase is not None for e in experiments) < _FEWEST_DIFFS:
        return {}
    try:
        records = client.batches.trajectories(batch, confirmations=confirmations)
        return {record.experiment: record.diff for record in records if record.diff is not None}
    except NotFound:
        return {}


def standing_of(compared: ComparisonBody) -> Standing:
    """A result beside its baseline, in the ideator's terms."""
    baseline = Baseline(compared.baseline_mean, compared.baseline_spread, compared.baseline_n)
    return Standing(
        compared.verdict,
        baseline,
        compared.effect,
        compared.standard_error,
        tuple(compared.mismatch),
    )


def curve_end(points: Iterable[CurvePoint], metric: str, direction: Direction) -> CurveEnd | None:
    """The last points of the value that tells most; None if there is no such value."""
    stepped = [point for point in points if point.step is not None and point.values]
    names = sorted({name for point in stepped for name in point.values})
    wanted = (metric.lower(), *_TELLING[direction])
    found = (name for word in wanted for name in names if word in name.lower())
    name = next(found, None)
    if name is None:
        return None
    values = [(p.step, p.values[name]) for p in stepped if p.step is not None and name in p.values]
    return CurveEnd(name, tuple(values[-_LAST_POINTS:]))
