"""One attempt, from its claim to its end."""

from __future__ import annotations

import base64
import dataclasses
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.contracts.base import FailureBody
from assay.contracts.environment import Profile
from assay.contracts.worker import INLINE_BYTES, FinishRequest, ManifestEntry
from assay.domain.errors import AssayError, Fenced, Unavailable
from assay.domain.hashing import derive_seed
from assay.domain.rescore import Rescore
from assay.domain.states import FailureStage
from assay.evaluation import (
    EvaluationCancelled,
    EvaluationRequest,
    evaluate_in_child,
)
from assay.evaluation.artifact import CURVE_FILE
from assay.evaluation.checkpoints import Checkpoint
from assay.patching.guard import size_problem
from assay.sandbox import SandboxError
from services.worker import collect
from services.worker.api import ApiRefused
from services.worker.assignment import Assignment, StopReason
from services.worker.cache import CachedBundle, Corrupt, verified_tree
from services.worker.checkpoints import CheckpointWatch
from services.worker.failures import (
    AttemptFailed,
    Cancelled,
    failure,
    infrastructure,
)
from services.worker.host import Host
from services.worker.reporter import Reporter
from services.worker.scoring import Scoring
from services.worker.telemetry import Telemetry
from services.worker.training import Training, failure_of, limits_of, start_and_wait
from services.worker.workspace import Workspace, open_workspace, restore_protected

_log = logging.getLogger(__name__)
_GOODBYE_SECONDS = 3.0


@dataclass(frozen=True)
class End:
    """How an attempt ended, without what it left in files."""

    state: Literal["succeeded", "failed", "cancelled"]
    failure: FailureBody | None = None
    infrastructure: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: tuple[ManifestEntry, ...] = ()


def run_attempt(host: Host, assignment: Assignment) -> None:
    """Claim, train, score and report an attempt in the calling thread."""
    _Attempt(host, assignment).run()


class _Attempt:
    def __init__(self, host: Host, assignment: Assignment) -> None:
        self._host = host
        self._assignment = assignment
        self._spec = assignment.spec
        self._reporter: Reporter | None = None
        self._telemetry: Telemetry | None = None
        self._started = False
        self._seconds = 0.0
        self._facts: dict[str, Any] = _facts_of(host, assignment)

    def run(self) -> None:
        if not self._claimed():
            return
        with ExitStack() as stack:
            end = self._end(stack)
            if self._reporter is not None:
                self._reporter.stop()
            if self._assignment.reason is StopReason.FENCED:
                _log.info("%s: fenced, discarded", self._spec.attempt)
                return
            self._deliver(end)

    def _claimed(self) -> bool:
        spec = self._spec
        if self._assignment.reason is StopReason.FENCED:
            return False
        try:
            self._host.api.claim(
                spec.attempt,
                spec.lease_token,
                patience=self._host.settings.api_seconds,
                give_up=self._assignment.cancel,
            )
        except AssayError as error:  # not ours, or its lease expires: nothing was started
            _log.info("%s: not claimed: %s", spec.attempt, error)
            return False
        return True

    def _end(self, stack: ExitStack) -> End:
        """Measure, or say why there is no measurement."""
        try:
            return self._measure(stack)
        except (Cancelled, EvaluationCancelled):
            return self._cancelled()
        except AttemptFailed as failed:
            return End("failed", failed.failure, failed.infrastructure)
        except Fenced:
            self._assignment.stop(StopReason.FENCED)
            return self._cancelled()
        except SandboxError as error:
            return _fault("sandbox_failed", str(error))
        except AssayError as error:
            if self._assignment.cancel.is_set():
                return self._cancelled()
            return _fault(error.code, str(error))
        except OSError as error:
            return _fault("host_failed", f"{type(error).__name__}: {error}")
        except Exception as error:
            _log.exception("%s: the worker failed", self._spec.attempt)
            return _fault("worker_error", f"{type(error).__name__}: {error}")

    def _cancelled(self) -> End:
        if self._assignment.reason is StopReason.STOPPING:
            return _fault("worker_stopped", "the worker was stopped")
        stage = FailureStage.TRAIN if self._started else FailureStage.START
        return End("cancelled", failure(stage, "cancelled", "cancelled on request"))

    def _measure(self, stack: ExitStack) -> End:
        host, spec = self._host, self._spec
        bundle = host.bundles.bundle(spec.bundle)
        profile = _profile_of(bundle, spec.environment, spec.profile)
        self._facts |= {"evaluator": bundle.evaluator, "threads": profile.cpus}
        if spec.needs_isolation and not host.isolated:
            raise infrastructure("not_isolated", f"this code is not run here: {host.why_not}")
        if spec.hardware_class != host.hardware_class:
            raise infrastructure(
                "wrong_hardware",
                f"{spec.hardware_class} was asked for; this is {host.hardware_class}",
            )
        files = self._codebase(bundle)
        data = host.bundles.data(bundle, spec.profile)
        self._facts["held_out_key"] = bool(host.settings.held_out_key.get_secret_value())
        self._facts["held_out"] = host.bundles.fingerprint(data / "search")
        self._facts["sealed"] = host.bundles.fingerprint(data / "sealed")
        self._check_cancel()
        config = profile.config | {"budget": profile.budget.model_dump(exclude_none=True)}
        space = stack.enter_context(
            open_workspace(
                host.scratch.attempts,
                spec.attempt,
                files,
                config,
                disk_bytes=profile.disk_bytes,
                disk_files=host.settings.disk_files,
            )
        )
        self._start_reporter(space, stack)
        argv = bundle.environment.manifest.entry_points.train
        training = Training(spec, profile, argv, data / "train")
        checkpoints = self._train(training, space)
        found = self._scan(space, profile)
        request = self._request(bundle, training, space, config, checkpoints)
        space.write_pristine(files)
        scoring = self._scoring(bundle, space)
        try:
            metrics = self._score(scoring, request)
        except AttemptFailed as failed:
            if failed.failure.stage != FailureStage.GUARD.value:
                raise
            # Somebody will want to see how it was done.
            last = tuple(c.name for c in checkpoints[-1:])
            stored = collect.without_checkpoints(found, keep=last)
            return End("failed", failed.failure, artifacts=(self._upload(space, stored),))
        stored = collect.without_checkpoints(found, keep=scoring.keep)
        return End("succeeded", metrics=metrics, artifacts=(self._upload(space, stored),))

    def _check_cancel(self) -> None:
        if self._assignment.cancel.is_set():
            raise Cancelled

    def _codebase(self, bundle: CachedBundle) -> dict[str, bytes]:
        """The codebase, with the environment's protected files as they should be."""
        sha256 = self._spec.codebase
        if self._spec.archive is not None:
            data = base64.b64decode(self._spec.archive)
        else:
            data = self._host.api.codebase(
                sha256,
                patience=self._host.settings.api_seconds,
                give_up=self._assignment.cancel,
            )
        protected = bundle.environment.manifest.codebase.protected
        files, restored = restore_protected(
            verified_tree(data, sha256), bundle.baseline, protected
        )
        sizes = {name: len(content) for name, content in files.items()}
        problem = size_problem(sizes, {n: len(c) for n, c in bundle.baseline.items()})
        if problem is not None:
            raise AttemptFailed(failure(FailureStage.GUARD, "codebase_too_large", problem))
        if restored:
            self._facts["restored"] = restored
            _log.warning("%s: protected files restored: %s", self._spec.attempt, restored)
        return files

    def _start_reporter(self, space: Workspace, stack: ExitStack) -> None:
        self._telemetry = Telemetry(space.logs, space.out_descriptor)
        self._reporter = Reporter(
            self._host.api,
            self._spec.attempt,
            self._spec.lease_token,
            self._telemetry,
            seconds=self._host.settings.progress_seconds,
            on_fenced=lambda: self._assignment.stop(StopReason.FENCED),
        )
        stack.callback(self._reporter.stop)
        self._reporter.start()

    def _train(self, training: Training, space: Workspace) -> tuple[Checkpoint, ...]:
        settings = self._host.settings
        cancel = self._assignment.cancel
        watch = CheckpointWatch(space.out_descriptor, training.profile.disk_bytes, cancel)
        watch.start()
        try:
            end = start_and_wait(self._host.sandbox, training, space, settings, cancel)
        finally:
            checkpoints = watch.stop()
        self._started = True
        self._seconds += end.wall_seconds
        self._facts |= {
            "train_seconds": end.wall_seconds,
            "train_cpu_seconds": end.cpu_seconds,
            "peak_memory_bytes": end.peak_memory_bytes,
        }
        if end.reason == "cancelled":
            raise Cancelled
        body = failure_of(end, training, space)
        if body is not None:
            raise AttemptFailed(body)
        return checkpoints

    def _scan(self, space: Workspace, profile: Profile) -> list[collect.Found]:
        settings = self._host.settings
        # An environment that asks for more disk than usual leaves checkpoints of that size; how
        # much of it is stored is another matter.
        bounds = collect.Bounds(
            settings.artifact_files, max(settings.artifact_bytes, profile.disk_bytes)
        )
        try:
            found = collect.scan(space.out_descriptor, bounds)
            fingerprint = collect.fingerprint(space.out_descriptor, found)
        except collect.UnsafeArtifact as error:
            raise AttemptFailed(failure(FailureStage.TRAIN, error.code, str(error))) from error
        self._facts["artifact"] = fingerprint
        if not collect.has_artifact(found):
            message = "training ended well but left nothing in $ASSAY_OUT"
            raise AttemptFailed(failure(FailureStage.TRAIN, "no_artifact", message))
        return found

    def _request(
        self,
        bundle: CachedBundle,
        training: Training,
        space: Workspace,
        config: dict[str, Any],
        checkpoints: tuple[Checkpoint, ...],
    ) -> EvaluationRequest:
        host, manifest = self._host, bundle.environment.manifest
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
            seed=int(self._facts["evaluation_seed"]),
            secret=host.settings.held_out_key.get_secret_value(),
            shown_seed=self._spec.seed,
            metric_name=manifest.metric.name,
            sandbox=dataclasses.replace(host.sandbox_settings, scratch=space.folder),
            limits=dataclasses.replace(limits, wall_seconds=seconds, cpu_seconds=None),
            seconds=seconds,
            profile=self._spec.profile,
            hardware_class=host.hardware_class,
            threads=training.profile.cpus,
            gpus=training.profile.gpus,
        )

    def _scoring(self, bundle: CachedBundle, space: Workspace) -> Scoring:
        rule = self._spec.rescore
        return Scoring(
            bundle.environment.manifest.metric,
            None if rule is None else Rescore(rule.beyond),
            evaluate=lambda wanted: evaluate_in_child(wanted, self._assignment.cancel),
            on_failure=lambda text: space.score_log.write_text(f"{text}\n", errors="replace"),
        )

    def _score(self, scoring: Scoring, request: EvaluationRequest) -> dict[str, float]:
        if self._reporter is not None:
            self._reporter.finalizing()
        try:
            return scoring.run(request)
        finally:
            self._seconds += scoring.seconds
            self._facts |= scoring.facts

    def _upload(self, space: Workspace, found: list[collect.Found]) -> ManifestEntry:
        size = sum(f.size for f in found)
        if size > self._host.settings.artifact_bytes:
            # The result is worth more than the weights, which the codebase can make again.
            self._facts["artifact_not_stored"] = size
            found = [f for f in found if f.name == CURVE_FILE]
        logs = [path for path in space.logs.values() if path.stat().st_size]
        target = space.folder / collect.ARCHIVE
        try:
            collect.build_archive(space.out_descriptor, found, logs, target)
        except collect.UnsafeArtifact as error:
            raise AttemptFailed(failure(FailureStage.TRAIN, error.code, str(error))) from error
        if target.stat().st_size <= INLINE_BYTES:
            return collect.inline(target)
        return self._host.api.upload(
            self._spec.attempt,
            self._spec.lease_token,
            target,
            patience=self._host.settings.finish_seconds,
            give_up=self._assignment.abandon,
        )

    def _deliver(self, end: End) -> None:
        """Hand the end over, with the telemetry that has not been reported."""
        stopping = self._assignment.reason is StopReason.STOPPING
        patience = _GOODBYE_SECONDS if stopping else self._host.settings.finish_seconds
        try:
            if self._reporter is not None:
                self._reporter.drain(patience=patience, give_up=self._assignment.abandon)
            self._finish(end, patience)
        except Fenced:
            _log.info("%s: fenced, discarded", self._spec.attempt)
        except Unavailable as error:  # the lease expires, and the attempt is tried again
            _log.error("%s: the end could not be reported: %s", self._spec.attempt, error)
        except ApiRefused as error:
            _log.error("%s: the end was refused: %s", self._spec.attempt, error)
            self._deliver_refusal(error)

    def _finish(self, end: End, patience: float) -> None:
        body = FinishRequest(
            lease_token=self._spec.lease_token,
            state=end.state,
            failure=end.failure,
            infrastructure=end.infrastructure,
            metrics=dict(end.metrics),
            provenance=self._facts,
            artifacts=list(end.artifacts),
            started=self._started,
            seconds=self._seconds if self._started else None,
        )
        if self._telemetry is not None:
            body.logs, body.points = self._telemetry.pending(final=True)
        self._host.api.finish(
            self._spec.attempt, body, patience=patience, give_up=self._assignment.abandon
        )

    def _deliver_refusal(self, error: ApiRefused) -> None:
        """The least that can be said, so that the attempt does not wait for its lease."""
        failed = infrastructure("report_refused", str(error))
        body = FinishRequest(
            lease_token=self._spec.lease_token,
            state="failed",
            failure=failed.failure,
            infrastructure=True,
            started=self._started,
        )
        try:
            self._host.api.finish(self._spec.attempt, body, patience=_GOODBYE_SECONDS)
        except AssayError as again:
            _log.error("%s: that was refused, too: %s", self._spec.attempt, again)


def _fault(code: str, message: str) -> End:
    """The end of an attempt whose codebase is not to blame."""
    return End("failed", infrastructure(code, message).failure, infrastructure=True)


def _profile_of(bundle: CachedBundle, environment: str, profile: str) -> Profile:
    name, _, sha256 = environment.partition("@")
    found = bundle.environment
    if found.name != name or not found.content_hash.startswith(sha256):
        raise Corrupt(f"bundle {bundle.sha256[:12]} holds {found.id}, not {environment}")
    return found.profile(profile)


def _facts_of(host: Host, assignment: Assignment) -> dict[str, Any]:
    """Where a number comes from, as far as it is known before anything has started."""
    spec = assignment.spec
    return {
        "codebase": spec.codebase,
        "environment": spec.environment,
        "bundle": spec.bundle,
        "profile": spec.profile,
        "seed": spec.seed,
        "evaluation_seed": derive_seed(spec.seed, "evaluation"),
        "sandbox": host.sandbox.name,
        "isolated": host.isolated,
        "guarantees": host.guarantees,
        **{f"sandbox_{name}": value for name, value in host.sandbox_facts.items()},
        "assay": host.info["assay"],
        "hardware_class": host.hardware_class,
        "cpu_model": host.cpu.model,
        "python": host.info["python"],
        "torch": host.info["torch"],
        "numpy": host.info["numpy"],
        "worker": host.settings.name,
        "host": host.info["host"],
    }
