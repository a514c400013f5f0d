"""Score what training left, and look twice at what is too good."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.contracts.environment import MetricSpec
from assay.domain.failure_codes import FailureCode
from assay.domain.hashing import derive_seed
from assay.domain.rescore import Rescore, agrees
from assay.domain.states import FailureStage
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


@dataclass
class Scoring:
    """The evaluations of one attempt; `facts` is filled for the provenance, also on failure.

    `keep` names the checkpoints that the first of them found worth storing. `judge` may turn an
    outcome into a failure for what the evaluation used.
    """

    spec: MetricSpec
    rescore: Rescore | None
    evaluate: Callable[[EvaluationRequest], EvaluationOutcome]
    on_failure: Callable[[str], object]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    keep: tuple[str, ...] = ()
    bounds: MetricBounds = dataclasses.field(default_factory=MetricBounds)
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
        metric = metrics[self.spec.name]
        too_good = implausible(self.spec, metrics, self.bounds)
        if too_good is not None:
            _log.warning("implausible: %r", metrics)
            raise AttemptFailed(too_good)
        if self._deserves_another(request, metric):
            again = dataclasses.replace(request, seed=derive_seed(request.seed, "again"))
            self._compare(metrics, self._once(again, "rescore"))
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
        name = self.spec.name
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
        self.facts["rescored"] = second[name]


def evaluation_request(
    host: Host,
    bundle: CachedBundle,
    training: Training,
    space: Workspace,
    config: dict[str, Any],
    checkpoints: tuple[Checkpoint, ...],
    seed: int,
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
        held_out=training.data.parent / "search",
        sealed=training.data.parent / "sealed",
        checkpoints=checkpoints,
        seed=seed,
        secret=host.settings.held_out_key.get_secret_value(),
        shown_seed=spec.seed,
        metric_name=manifest.metric.name,
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
