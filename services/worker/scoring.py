"""Score what training left, and look twice at what is too good."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.contracts.environment import MetricSpec
from assay.contracts.worker import SEALED, SEARCH, RescoreReport
from assay.domain.failure_codes import FailureCode
from assay.domain.hashing import derive_seed
from assay.domain.rescore import Rescore, agrees
from assay.domain.states import FailureStage, MeasurementKind
from assay.evaluation import EvaluationOutcome, EvaluationRequest
from assay.evaluation.checkpoints import Checkpoint
from services.worker.cache import CachedBundle
from services.worker.failures import (
    AttemptFailed,
    MetricBounds,
    failure,
    implausible,
    infrastructure,
    score_failure,
)
from services.worker.host import Host
from services.worker.training import Training, limits_of
from services.worker.workspace import Workspace

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Splits:
    """The held-out splits that an evaluation reads, and the name of the metric that counts."""

    held_out: Path
    sealed: Path | None
    scored_on: str
    metric: str

    @classmethod
    def of(cls, spec: MetricSpec, data: Path, kind: MeasurementKind) -> Splits:
        """For a measurement of this kind, with the prepared `data`.

        A confirmation is scored on `sealed/`: by the evaluator beside `search/`, where the
        environment names such a metric, else in its place. Without `sealed/`, fresh seeds alone
        confirm.
        """
        search, sealed = data / "search", data / "sealed"
        metric = spec.deciding(kind)
        if kind is not MeasurementKind.CONFIRM or not _has_files(sealed):
            return cls(search, None, SEARCH, metric)
        if spec.confirmed is not None:
            return cls(search, sealed, SEALED, metric)
        return cls(sealed, None, SEALED, metric)

    def bounds(self, spec: MetricSpec, found: MetricBounds) -> dict[str, float | None]:
        """The best plausible value of each metric that the evaluation takes."""
        if self.scored_on == SEARCH:
            return {self.metric: found.search}
        beside = {} if self.sealed is None else {spec.name: found.search}
        return beside | {self.metric: found.sealed}


def _has_files(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


@dataclass
class Scoring:
    """The evaluations of one attempt; `facts` is filled for the provenance, also on failure.

    `metric` names the number that counts. `keep` names the checkpoints that the first evaluation
    found worth storing. `second` is the second one, where one was wanted and agreed. `judge` may
    turn an outcome into a failure for what the evaluation used.
    """

    spec: MetricSpec
    metric: str
    rescore: Rescore | None
    evaluate: Callable[[EvaluationRequest], EvaluationOutcome]
    on_failure: Callable[[str], object]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    keep: tuple[str, ...] = ()
    second: RescoreReport | None = None
    #: By the name of a metric: the best value that is plausible.
    bounds: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    judge: Callable[[EvaluationOutcome], EvaluationOutcome] = lambda outcome: outcome

    def run(self, request: EvaluationRequest) -> dict[str, float]:
        """The metrics of the first evaluation, if a second one that was wanted agrees with it.

        The first one counts, so that a result does not depend on whether the baseline was known
        when it was looked at.

        Raises:
            AttemptFailed: what training left is not valid, is implausible, or scored differently.
            EvaluationCancelled: the result is not wanted any more.
        """
        metrics = self._once(request, "evaluation")
        metric = metrics[self.metric]
        too_good = implausible(self.spec.direction, metrics, self.bounds)
        if too_good is not None:
            _log.warning("implausible: %r", metrics)
            raise AttemptFailed(too_good)
        if self._deserves_another(request, metric):
            again = dataclasses.replace(request, seed=derive_seed(request.seed, "again"))
            second = self._once(again, "rescore")
            self._compare(metrics, second)
            seconds = self.facts["rescore_seconds"]
            self.second = RescoreReport(metrics=second, seconds=seconds)
        return metrics

    def _deserves_another(self, request: EvaluationRequest, metric: float) -> bool:
        """An evaluation that asks no predictor has no secrets: it would say the same again."""
        if self.rescore is None or request.predict is None:
            return False
        return self.rescore.wanted(self.spec.direction, metric)

    def _once(self, request: EvaluationRequest, name: str) -> dict[str, float]:
        outcome = self.judge(self.evaluate(request))
        self.seconds += outcome.seconds
        self.facts |= {
            f"{name}_seconds": outcome.seconds,
            f"{name}_cpu_seconds": outcome.cpu_seconds,
        }
        if outcome.metrics is not None:
            self.keep = self.keep or outcome.keep
            return outcome.metrics
        if outcome.failure is None:
            raise infrastructure(
                FailureCode.WORKER_ERROR, "the evaluation gave neither result nor reason"
            )
        _log.warning("%s failed (%s): %r", name, outcome.failure.code, outcome.failure.detail)
        self.on_failure(outcome.failure.message)
        raise score_failure(outcome.failure)

    def _compare(self, first: Mapping[str, float], second: Mapping[str, float]) -> None:
        name = self.metric
        errors = [found[f"{name}/se"] for found in (first, second) if f"{name}/se" in found]
        # The smaller one: the code may add noise to one of them to excuse a difference.
        if not agrees(first[name], second[name], min(errors, default=None)):
            # The code chose both: neither is told.
            _log.warning("not confirmed: %s is %r and %r", name, first[name], second[name])
            message = (
                f"{name} was scored again with fresh secret positions, and the two scores differ "
                "by more than the evaluation's own error, so neither counts. Look at how the code "
                "predicts."
            )
            raise AttemptFailed(failure(FailureStage.GUARD, FailureCode.NOT_CONFIRMED, message))


def evaluation_request(
    host: Host,
    bundle: CachedBundle,
    training: Training,
    space: Workspace,
    config: dict[str, Any],
    checkpoints: tuple[Checkpoint, ...],
    seed: int,
    splits: Splits,
) -> EvaluationRequest:
    """How to score what a training left; `seed` is the evaluation's own."""
    manifest, spec = bundle.environment.manifest, training.spec
    limits = limits_of(training, host.settings)
    seconds = training.profile.budget.evaluation_seconds
    return EvaluationRequest(
        environment_dir=bundle.folder,
        config=config,
        predict=manifest.entry_points.predict,
        codebase_dir=space.pristine,
        artifact_dir=space.out,
        held_out=splits.held_out,
        sealed=splits.sealed,
        checkpoints=checkpoints,
        seed=seed,
        secret=host.settings.held_out_key.get_secret_value(),
        shown_seed=spec.seed,
        metric_name=splits.metric,
        sandbox=dataclasses.replace(host.sandbox_settings, scratch=space.folder),
        limits=dataclasses.replace(
            limits, wall_seconds=seconds, cpu_seconds=None, warm_up_seconds=0.0
        ),
        seconds=seconds,
        starved_seconds=training.profile.patience * seconds,
        profile=spec.profile,
        hardware_class=host.hardware_class,
        threads=training.profile.cpus,
        gpus=training.gpus,
        declared_failures=manifest.failures,
    )
