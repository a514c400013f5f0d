"""Hold an attempt to caps that are multiples of what the baseline uses on this host.

CPU time is divided by what a fixed probe took meanwhile, so that a slow host or busy neighbours do
not count against an idea. The clock is the kernel's, for the whole tree,
from the first instruction: nothing trains before it.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.contracts.environment import Budget
from assay.domain.failure_codes import FailureCode, rules_for
from assay.domain.states import FailureStage, MeasurementKind
from assay.domain.usage import FACT, Used, multiple
from assay.evaluation import EvaluationOutcome, evaluate_in_child
from assay.evaluation.artifact import CURVE_FILE
from assay.evaluation.codes import Rejection
from assay.evaluation.evaluation import EvaluationFailure
from assay.sandbox import Exit
from services.worker import collect
from services.worker.cache import CachedBundle
from services.worker.checkpoints import CheckpointWatch
from services.worker.failures import (
    AttemptFailed,
    Cancelled,
    failure,
    infrastructure,
    score_failure,
)
from services.worker.host import Host
from services.worker.reference import References
from services.worker.scoring import Splits, evaluation_request
from services.worker.speed import VERSION, Speed, speed_probe
from services.worker.telemetry import open_regular
from services.worker.training import Training, failure_of, start_and_wait
from services.worker.workspace import open_workspace

_log = logging.getLogger(__name__)
#: A training this far beyond its cap by the speed at its start is ended. Until then neighbours may
#: have come who slow it down, as only the mean over the whole training can tell.
_HOPELESS = 2.0
#: Names and formats take some bytes, whatever the model's size.
_ARTIFACT_SLACK = 64 << 10
_CURVE_BYTES = 64 << 10
#: What a program used at most of which a meter saw nothing: Docker's engine is asked each second.
_UNSEEN_SECONDS = 1.0
_SEED = 0
_SPEED = "train_speed"


@dataclass
class UsageMeter:
    """What one attempt uses; `reference` is None for the baseline, which no such cap holds."""

    budget: Budget
    references: References
    reference: Used | None
    speed: Speed | None = None
    training: float = 0.0
    evaluation: float = 0.0
    seconds: float = 0.0
    memory_bytes: int = 0
    artifact_bytes: int = 0
    parameters: int | None = None

    def most_cpu_seconds(self, speed: Speed) -> float | None:
        """When to end a training, at this speed, without waiting for its end."""
        if self.reference is None or self.budget.compute is None:
            return None
        return _HOPELESS * self.budget.compute * self.reference.training * speed.seconds

    def trained(self, end: Exit, speed: Speed) -> None:
        """The training has ended well, and this was the host's speed meanwhile.

        Raises:
            AttemptFailed: it used more compute than its cap.
        """
        self._note(speed, end.cpu_seconds, end.wall_seconds, end.peak_memory_bytes)
        if self.reference is None or self.budget.compute is None:
            return
        used = self._beside(self.training, self.reference.training, speed)
        if used > self.budget.compute:
            raise compute_exceeded(self.budget.compute, f"{used:.2f} times")

    def resume(self, facts: Mapping[str, Any]) -> None:
        """Continue from what another worker noted of a training that was within its cap."""
        names = ("train_cpu_seconds", "train_seconds", "peak_memory_bytes")
        self._note(Speed(**facts[_SPEED]), *(facts[name] for name in names))

    def _note(
        self, speed: Speed, cpu_seconds: float, seconds: float, memory_bytes: int | None
    ) -> None:
        self.speed = speed
        self.training = cpu_seconds / speed.seconds
        self.seconds = seconds
        self.memory_bytes = memory_bytes or 0

    def left(self, found: Sequence[collect.Found], parameters: int | None) -> None:
        """The training left these files.

        Raises:
            AttemptFailed: they are larger than the cap on the artifact.
        """
        # Names count, too: a predictor can read them.
        self.artifact_bytes = sum(
            file.size + len(file.name.encode()) for file in found if file.name != CURVE_FILE
        )
        self.parameters = parameters
        if self.reference is None or self.budget.artifact is None:
            return
        most = self.budget.artifact * self.reference.artifact_bytes + _ARTIFACT_SLACK
        if self.artifact_bytes > most:
            message = (
                f"training left {self.artifact_bytes} bytes in $ASSAY_OUT; this profile allows "
                f"{math.floor(most)}, {self.budget.artifact:g} times the baseline's and 64 KiB"
            )
            raise AttemptFailed(
                failure(FailureStage.TRAIN, FailureCode.ARTIFACT_EXCEEDED, message)
            )

    def scored(self, outcome: EvaluationOutcome) -> EvaluationOutcome:
        """The outcome of an evaluation, or a failure when its predictors used too much."""
        assert self.speed is not None  # it was trained
        evaluation = outcome.code_cpu_seconds / self.speed.seconds
        self.evaluation = max(self.evaluation, evaluation)  # some results are scored twice
        if self.reference is None or self.budget.evaluation_compute is None:
            return outcome
        used = self._beside(evaluation, self.reference.evaluation, self.speed)
        if used <= self.budget.evaluation_compute or outcome.metrics is None:
            return outcome
        detail = f"{used:.2f} times the baseline's, {self.budget.evaluation_compute:g} are allowed"
        rejected = EvaluationFailure.of(Rejection.COMPUTE_EXCEEDED, detail)
        return dataclasses.replace(outcome, metrics=None, failure=rejected)

    @staticmethod
    def _beside(used: float, reference: float, speed: Speed) -> float:
        return used / (reference or _UNSEEN_SECONDS / speed.seconds)

    def facts(self) -> dict[str, Any]:
        """For the provenance: the host's speed, and multiples of what the baseline used.

        What has not been measured yet is left out.
        """
        speed = {} if self.speed is None else {_SPEED: dataclasses.asdict(self.speed)}
        reference = self.reference or self.references.get()
        if reference is None:
            return speed
        found = {
            "train_compute": multiple(self.training, reference.training),
            "evaluation_compute": multiple(self.evaluation, reference.evaluation),
            "train_wall": multiple(self.seconds, reference.seconds),
            "train_memory": multiple(self.memory_bytes, reference.memory_bytes),
            "train_artifact": multiple(self.artifact_bytes, reference.artifact_bytes),
            "train_parameters": multiple(self.parameters, reference.parameters),
        }
        return speed | {FACT: {name: value for name, value in found.items() if value}}

    def used(self) -> Used:
        """What was used, for the references."""
        return Used(
            self.training,
            self.evaluation,
            self.seconds,
            self.memory_bytes,
            self.artifact_bytes,
            self.parameters,
        )


def compute_exceeded(cap: float, used: str) -> AttemptFailed:
    """The failure of a training that used `used` ("1.9 times", say) the baseline's compute."""
    message = (
        f"training used {used} the baseline's processor time on this host; this profile "
        f"allows {cap:g} times. Make a step cheaper or take fewer"
    )
    return AttemptFailed(failure(FailureStage.TRAIN, FailureCode.COMPUTE_EXCEEDED, message))


def references_of(
    host: Host, bundle: CachedBundle, profile: str, kind: MeasurementKind
) -> References:
    """What the baseline uses on this host under this profile.

    Where a confirmation reads the sealed split beside the other, its evaluation costs more.
    """
    environment = bundle.environment
    confirms = (
        kind is MeasurementKind.CONFIRM and environment.manifest.metric.confirmed is not None
    )
    about = {
        "environment": environment.content_hash,
        "profile": profile,
        "hardware_class": host.hardware_class,
        "cpu_model": host.cpu.model,
        "sandbox": host.sandbox.name,
        "probe": VERSION,
        **({"confirms": True} if confirms else {}),
        **{name: host.info[name] for name in ("kernel", "python", "numpy", "torch")},
        **host.sandbox_facts,
    }
    folder = host.settings.cache / "references"
    return References(folder, f"{environment.name}-{profile.replace('/', '_')[:64]}", about)


def stated_parameters(out: int) -> int | None:
    """How many parameters the model has by the codebase's own curve; a claim."""
    descriptor = open_regular(CURVE_FILE, out)
    if descriptor is None:
        return None
    with open(descriptor, "rb") as file:
        lines = file.read(_CURVE_BYTES).splitlines()
    for line in lines:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        count = found.get("parameters") if isinstance(found, dict) else None
        if type(count) is int and 0 < count < 2**53:
            return count
    return None


def run_baseline(
    host: Host,
    bundle: CachedBundle,
    training: Training,
    config: dict[str, Any],
    cancel: threading.Event,
) -> Used:
    """Train and score the baseline, for what it uses; nothing of it is stored or reported.

    Raises:
        AttemptFailed: it did not succeed on this host.
        Cancelled: `cancel` was set.
    """
    spec, profile = training.spec, training.profile
    name = f"{spec.attempt}-baseline"
    codebase, kind = bundle.environment.codebase_hash, MeasurementKind(spec.kind)
    splits = Splits.of(bundle.environment.manifest.metric, training.data.parent, kind)
    changes = {"attempt": name, "codebase": codebase, "seed": _SEED}
    training = dataclasses.replace(training, spec=spec.model_copy(update=changes))
    settings = host.settings.model_copy(update={"adopt": False})
    _log.info("%s: running the baseline, to know what it uses on this host", spec.attempt)
    disk = {"disk_bytes": profile.disk_bytes, "disk_files": settings.disk_files}
    with open_workspace(host.scratch.attempts, name, bundle.baseline, config, **disk) as space:
        meter = UsageMeter(profile.budget, references_of(host, bundle, spec.profile, kind), None)
        watch = CheckpointWatch(space.out_descriptor, profile.disk_bytes, cancel)
        with speed_probe(host.sandbox, training, settings) as probe:
            probe.first(cancel)
            watch.start(time.monotonic())
            try:
                end = start_and_wait(host.sandbox, training, space, settings, cancel)
            finally:
                checkpoints = watch.stop()
            if end.reason == "cancelled":
                raise Cancelled
            failed = failure_of(end, training, space)
            if failed is not None:
                raise _no_reference(failed)
            meter.trained(end, probe.stop())
        collect.normalise(space.out_descriptor)
        bounds = collect.Bounds(settings.artifact_files, profile.disk_bytes)
        try:
            found = collect.scan(space.out_descriptor, bounds)
        except collect.UnsafeArtifact as error:
            body = failure(FailureStage.TRAIN, FailureCode.UNSAFE_ARTIFACT, str(error))
            raise _no_reference(AttemptFailed(body)) from error
        meter.left(found, stated_parameters(space.out_descriptor))
        space.write_pristine(bundle.baseline)
        request = evaluation_request(
            host, bundle, training, space, config, checkpoints, _SEED, splits
        )
        outcome = meter.scored(evaluate_in_child(request, cancel))
        if outcome.failure is not None:
            raise _no_reference(score_failure(outcome.failure))
    return meter.used()


def _no_reference(why: AttemptFailed) -> AttemptFailed:
    if rules_for(why.failure.code, why.failure.stage).retried:
        return why
    message = f"the baseline failed on this host: {why.failure.message}"
    return infrastructure(FailureCode.NO_REFERENCE, message, signalled=why.signalled)
