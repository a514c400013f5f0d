"""One attempt, from its claim to its end."""

from __future__ import annotations

import errno
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from assay.contracts.environment import Profile
from assay.contracts.worker import INLINE_BYTES, SCORED_ON, FinishRequest, ManifestEntry
from assay.domain.errors import AssayError, Fenced, Unavailable
from assay.domain.failure_codes import FailureCode
from assay.domain.rescore import Rescore
from assay.domain.states import FailureStage, MeasurementKind
from assay.evaluation import (
    EvaluationCancelled,
    EvaluationRequest,
    evaluate_in_child,
)
from assay.evaluation.artifact import CURVE_FILE
from assay.sandbox import Exit, Handle, SandboxError, discard_kept_container
from services.worker import collect, source
from services.worker.api import ApiRefused
from services.worker.assignment import Assignment, StopReason
from services.worker.cache import CachedBundle
from services.worker.checkpoints import CheckpointWatch
from services.worker.failures import (
    AttemptFailed,
    Cancelled,
    End,
    MetricBounds,
    failure,
    fault,
    fault_of,
    infrastructure,
)
from services.worker.gpus import NO_GPUS, GpuLease
from services.worker.host import Host
from services.worker.journal import SOURCE, Journal, Phase, new_notes
from services.worker.provenance import data_facts, facts_of
from services.worker.reporter import Reporter
from services.worker.sampler import Sampler
from services.worker.scoring import Scoring, Splits, evaluation_request
from services.worker.smoke import SmokeWatch, shown_to_codebase, smoke_of
from services.worker.speed import VERSION, SpeedProbe, speed_probe
from services.worker.telemetry import Telemetry
from services.worker.training import Training, failure_of, start_and_wait
from services.worker.usage import (
    UsageMeter,
    compute_exceeded,
    references_of,
    run_baseline,
    stated_parameters,
)
from services.worker.warm_up import Gate, hold_back
from services.worker.workspace import (
    Workspace,
    clear_workspace,
    open_workspace,
    reopen_workspace,
)

_log = logging.getLogger(__name__)
_GOODBYE_SECONDS = 3.0
_NEWS_SECONDS = 5.0
_TO_REPORT_SECONDS = 20.0
_LEAST_UPLOAD_SECONDS = 2.0
#: What a disk says that has no room for the archive.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_attempt(host: Host, assignment: Assignment) -> None:
    """Claim, train, score and report an attempt in the calling thread.

    One that a killed worker left (`assignment.journal`) is gone on with where it stands.
    """
    _Attempt(host, assignment).run()


def _is_about_bytes(error: Exception) -> bool:
    """Whether an error says that the bytes of an artifact could not be kept or sent."""
    return not isinstance(error, OSError) or error.errno in _NO_ROOM


class _Attempt:
    def __init__(self, host: Host, assignment: Assignment) -> None:
        self._host = host
        self._assignment = assignment
        self._spec = assignment.spec
        self._reporter: Reporter | None = None
        self._telemetry: Telemetry | None = None
        self._sampler: Sampler | None = None
        self._journal: Journal | None = assignment.journal
        self._adopted = self._journal is not None
        self._settled = not self._adopted  # whether nothing runs that nobody has looked for
        self._files: dict[str, bytes] | None = None
        self._gpus: GpuLease = NO_GPUS
        self._usage: UsageMeter | None = None
        self._started = False
        self._scoring_began = False
        self._seconds = 0.0
        self._uploaded: dict[str, Path] = {}
        self._facts: dict[str, Any] = facts_of(host, self._spec)
        if self._journal is not None:
            self._remember(self._journal)

    def _remember(self, journal: Journal) -> None:
        """What a worker that is no more knew about this attempt."""
        notes = journal.notes
        self._facts |= notes.facts | {"adoptions": notes.facts.get("adoptions", 0) + 1}
        journal.note(facts=dict(self._facts))
        self._seconds = notes.seconds
        self._started = notes.phase is not Phase.PREPARED

    def run(self) -> None:
        with ExitStack() as stack:
            stack.callback(self._give_gpus_back)
            end = self._without_gpus()
            if not self._adopted and not self._claimed():
                return
            end = end or self._end(stack)
            if not self._settled:
                self._settle()
            for part in (self._sampler, self._reporter):
                if part is not None:
                    part.stop()
            # Before the end is told: what is free by then must be fit for the next attempt.
            self._give_gpus_back()
            if self._assignment.reason is StopReason.FENCED:
                _log.info("%s: fenced, discarded", self._spec.attempt)
                return
            self._deliver(end)

    def _without_gpus(self) -> End | None:
        """Take the GPUs; an end if they cannot be had."""
        gpus = self._host.gpus
        try:
            if self._journal is not None:
                self._gpus = gpus.adopt(self._journal.notes.devices)
            else:
                self._gpus = gpus.take(self._spec.gpus)
        except AssayError as error:
            return fault_of(error)
        self._facts |= gpus.facts(self._gpus.uuids)
        return None

    def _give_gpus_back(self) -> None:
        lease, self._gpus = self._gpus, NO_GPUS
        lease.release()

    def _settle(self) -> None:
        """The attempt ended before its program was looked for: end that, too, and clear away."""
        try:
            discard_kept_container(self._host.sandbox_settings, self._spec.attempt)
        except SandboxError as error:  # it has a deadline of its own
            _log.warning("%s: its container stays: %s", self._spec.attempt, error)
        if self._telemetry is None:  # the workspace was not opened
            clear_workspace(self._host.scratch.attempts, self._spec.attempt)

    def _claimed(self) -> bool:
        spec = self._spec
        if self._assignment.reason is StopReason.FENCED:
            return False
        try:
            self._host.api.claim(
                spec.attempt,
                spec.lease_token,
                devices=self._gpus.uuids,
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
            return self._failed(failed)
        except Fenced:
            self._assignment.stop(StopReason.FENCED)
            return self._cancelled()
        except SandboxError as error:
            return self._fault(FailureCode.SANDBOX_FAILED, str(error))
        except AssayError as error:
            if self._assignment.cancel.is_set():
                return self._cancelled()
            return self._veiled(fault_of(error))
        except OSError as error:
            return self._fault(FailureCode.HOST_FAILED, f"{type(error).__name__}: {error}")
        except Exception as error:
            _log.exception("%s: the worker failed", self._spec.attempt)
            return self._fault(FailureCode.WORKER_ERROR, f"{type(error).__name__}: {error}")

    def _failed(self, failed: AttemptFailed) -> End:
        """The end that a failure means. One that a signal may have caused waits a moment for news
        that this worker is to end, too: engines signal every process of a job at once."""
        leaving = self._host.leaving
        if failed.signalled and leaving.wait(_NEWS_SECONDS):
            message = "a signal ended the program and this worker alike"
            return fault(FailureCode.WORKER_STOPPED, message)
        end = End("failed", failed.failure, unclear=failed.unclear)
        if end.is_retried and leaving.is_set():
            message = f"the worker was stopped: {failed.failure.message}"
            return fault(FailureCode.WORKER_STOPPED, message)
        return end

    def _fault(self, code: FailureCode, message: str) -> End:
        """A fault of this host."""
        return self._veiled(fault(code, message))

    def _veiled(self, end: End) -> End:
        """Once a predictor was started, the words of an error could be of its making."""
        found = end.failure
        if not self._scoring_began or found is None:
            return end
        _log.warning("%s: %s: %r", self._spec.attempt, found.code, found.message)
        message = "this worker failed while it scored or uploaded; its log says how"
        return replace(end, failure=found.model_copy(update={"message": message}))

    def _cancelled(self) -> End:
        if self._assignment.reason is StopReason.STOPPING:
            return fault(FailureCode.WORKER_STOPPED, "the worker was stopped")
        stage = FailureStage.TRAIN if self._started else FailureStage.START
        return End("cancelled", failure(stage, FailureCode.CANCELLED, "cancelled on request"))

    def _measure(self, stack: ExitStack) -> End:
        host, spec = self._host, self._spec
        bundle = host.bundles.bundle(spec.bundle)
        whole = bundle.profile(spec.environment, spec.profile)
        smoke = smoke_of(spec, bundle)
        profile = shown_to_codebase(whole, smoke)
        self._facts |= {"evaluator": bundle.evaluator, "threads": profile.threads}
        host.check(spec)
        data = host.bundles.data(bundle, spec.profile)
        seconds = None if smoke is None else smoke.budget.seconds
        self._facts |= data_facts(host, data) if smoke is None else {}
        config = profile.config | {"budget": profile.budget.model_dump(exclude_none=True)}
        space, journal = self._open(stack, bundle, profile, config)
        self._start_reporter(space, stack, journal.notes.began)
        argv = bundle.environment.manifest.entry_points.train
        gpus = self._gpus
        training = Training(spec, profile, argv, data / "train", gpus.uuids, gpus.locks, seconds)
        if seconds is not None:
            return self._smoke(training, seconds, space, journal)
        metric = bundle.environment.manifest.metric
        splits = Splits.of(metric, data, MeasurementKind(spec.kind))
        self._facts[SCORED_ON] = splits.scored_on
        bounds = splits.bounds(metric, MetricBounds.of(metric, profile, data))
        # Of one that was scored only the upload and the report are missing.
        is_capped = profile.budget.is_relative and host.holds_relative_caps
        if is_capped and journal.notes.phase is not Phase.SCORED:
            self._usage = self._open_usage(bundle, training, config, journal)
        if journal.notes.phase is Phase.PREPARED:
            self._train(training, space, journal)
        found = self._scan(space, profile)
        if self._usage is not None:
            self._usage.left(found, stated_parameters(space.out_descriptor))
        checkpoints = tuple(journal.notes.checkpoints)
        if journal.notes.phase is Phase.SCORED:
            return self._succeeded(space, found, journal, profile)
        request = evaluation_request(
            host,
            bundle,
            training,
            space,
            config,
            checkpoints,
            int(self._facts["evaluation_seed"]),
            splits,
        )
        space.write_pristine(self._codebase(bundle, space))
        scoring = self._scoring(bundle, space, splits.metric, bounds)
        try:
            metrics = self._score(scoring, request)
        except AttemptFailed as failed:
            if failed.failure.stage is not FailureStage.GUARD:
                raise
            # Somebody will want to see how it was done.
            last = tuple(c.name for c in checkpoints[-1:])
            stored = collect.without_checkpoints(found, keep=last)
            artifact = self._stored(space, stored, profile)
            return End("failed", failed.failure, artifacts=(artifact,))
        if self._usage is not None:
            self._facts |= self._usage.facts()
        self._note(
            journal,
            phase=Phase.SCORED,
            metrics=metrics,
            rescore=scoring.second,
            keep=list(scoring.keep),
        )
        if self._usage is not None and self._usage.reference is None:
            self._usage.references.add(self._usage.used())
        return self._succeeded(space, found, journal, profile)

    def _succeeded(
        self, space: Workspace, found: list[collect.Found], journal: Journal, profile: Profile
    ) -> End:
        notes = journal.notes
        stored = collect.without_checkpoints(found, keep=notes.keep)
        artifact = self._stored(space, stored, profile)
        return End(
            "succeeded", metrics=notes.metrics, rescore=notes.rescore, artifacts=(artifact,)
        )

    def _note(self, journal: Journal, **changes: Any) -> None:
        journal.note(**changes, facts=dict(self._facts), seconds=self._seconds)

    def _open(
        self, stack: ExitStack, bundle: CachedBundle, profile: Profile, config: dict[str, Any]
    ) -> tuple[Workspace, Journal]:
        """The workspace: a new one, or what a killed worker left."""
        host, spec = self._host, self._spec
        if self._journal is not None:
            context = reopen_workspace(host.scratch.attempts, spec.attempt)
            return stack.enter_context(context), self._journal
        cancel, patience = self._assignment.cancel, host.settings.api_seconds
        data = source.fetch(host.api, spec, patience=patience, give_up=cancel)
        self._files = source.unpack(data, spec, bundle, self._facts)
        if cancel.is_set():
            raise Cancelled
        space = stack.enter_context(
            open_workspace(
                host.scratch.attempts,
                spec.attempt,
                self._files,
                config,
                disk_bytes=profile.disk_bytes,
                disk_files=host.settings.disk_files,
            )
        )
        (space.folder / SOURCE).write_bytes(data)
        notes = new_notes(spec, list(self._gpus.uuids), self._facts)
        self._journal = Journal(space.folder, notes, stored=host.adopts)
        self._journal.note()
        return space, self._journal

    def _codebase(self, bundle: CachedBundle, space: Workspace) -> dict[str, bytes]:
        """What was trained, as it was before the training."""
        if self._files is None:
            data = (space.folder / SOURCE).read_bytes()
            self._files = source.unpack(data, self._spec, bundle, self._facts)
        return self._files

    def _start_reporter(self, space: Workspace, stack: ExitStack, since: float) -> None:
        devices = self._gpus.uuids
        sources = [lambda: self._host.gpus.gauges(devices), space.gauges]
        self._sampler = Sampler(sources, since, seconds=self._host.settings.sample_seconds)
        if self._journal is None or self._journal.notes.phase is Phase.PREPARED:
            self._sampler.start()
        stack.callback(self._sampler.stop)
        self._telemetry = Telemetry(
            space.logs,
            space.out_descriptor,
            log_bytes=self._host.settings.log_bytes,
            samples=self._sampler,
        )
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

    def _smoke(
        self, training: Training, seconds: float, space: Workspace, journal: Journal
    ) -> End:
        """See the training start. One that was adopted after it had passed is ended with what is
        left of the attempt."""
        if journal.notes.phase is not Phase.PREPARED:
            return End("succeeded")
        # Noted before the kill: a program that was killed tells nobody that it had passed.
        noted = partial(journal.note, phase=Phase.TRAINED)
        watch = SmokeWatch(space.out_descriptor, seconds, noted)
        try:
            end = self._run_training(training, space, watch.start)
        finally:
            watch.stop()
        self._facts["passed"] = watch.passed(end)
        if self._facts["passed"] is None:
            self._raise_failure(end, training, space)
        return End("succeeded")

    def _train(self, training: Training, space: Workspace, journal: Journal) -> None:
        """Train to a good end, or go on with a training; the journal gets the checkpoints."""
        since = journal.notes.training_began
        if since is None:
            since = time.monotonic()
            journal.note(training_began=since)
        watch = CheckpointWatch(
            space.out_descriptor,
            training.profile.disk_bytes,
            self._assignment.cancel,
            known=journal.notes.checkpoints,
            on_new=journal.add_checkpoint,
        )
        with ExitStack() as probing:
            probe = None
            if self._usage is not None:
                probe = probing.enter_context(
                    speed_probe(self._host.sandbox, training, self._host.settings)
                )
                training = self._capped(training, self._usage, probe, journal)
            warms_up = training.warm_up_seconds is not None
            watch.start(since, stands=warms_up)
            try:
                if warms_up:
                    end = self._run_warming_up(training, space, journal, watch)
                else:
                    end = self._run_training(training, space, lambda _: None)
            finally:
                checkpoints = watch.stop()
            self._raise_failure(end, training, space)
            if probe is not None and self._usage is not None:
                try:
                    self._usage.trained(end, probe.stop())
                finally:
                    self._facts |= self._usage.facts()
        self._note(journal, phase=Phase.TRAINED, checkpoints=list(checkpoints))

    def _run_warming_up(
        self, training: Training, space: Workspace, journal: Journal, watch: CheckpointWatch
    ) -> Exit:
        """As `_run_training`, of a training that has to ask for its data."""
        hold_back(training.data, space)
        gate = Gate(space, journal, watch)
        if self._sampler is not None:
            self._sampler.add(gate.gauges)
        try:
            end = self._run_training(training, space, gate.start)
        finally:
            gate.stop()
        gate.check()
        self._facts["train_warm_up_seconds"] = end.warm_up_seconds
        return end

    def _capped(
        self, training: Training, usage: UsageMeter, probe: SpeedProbe, journal: Journal
    ) -> Training:
        """The training with the limit of CPU time that its cap comes to on this host, now."""
        speed = probe.first(self._assignment.cancel)
        if not journal.notes.capped:
            seconds = usage.most_cpu_seconds(speed)
            reference = usage.reference
            journal.note(capped=True, cpu_seconds=seconds, reference=reference, probe=VERSION)
        return replace(training, cpu_seconds=journal.notes.cpu_seconds)

    def _open_usage(
        self, bundle: CachedBundle, training: Training, config: dict[str, Any], journal: Journal
    ) -> UsageMeter:
        """What the attempt may use beside the baseline; this may run the baseline first."""
        host, spec, cancel = self._host, self._spec, self._assignment.cancel
        notes = journal.notes
        if notes.capped and notes.probe != VERSION:
            raise infrastructure(
                FailureCode.PROBE_CHANGED,
                "this worker's probe of speed is not the one that began this run",
            )
        references = references_of(host, bundle, spec.profile, MeasurementKind(spec.kind))
        reference = notes.reference
        if not notes.capped and spec.codebase != bundle.environment.codebase_hash:
            reference = references.get_or_run(
                lambda: run_baseline(host, bundle, training, config, cancel), cancel
            )
        usage = UsageMeter(training.profile.budget, references, reference)
        if notes.phase is not Phase.PREPARED:  # a worker that is no more saw the training end
            usage.resume(self._facts)
        return usage

    def _run_training(
        self, training: Training, space: Workspace, on_start: Callable[[Handle], object]
    ) -> Exit:
        """Start the training, or go on with it, and wait until nothing of it runs any more."""

        def started(handle: Handle) -> None:
            watched.enter_context(self._host.pressure.watching(handle.starved_seconds))
            self._watch_over(handle)
            on_start(handle)

        with ExitStack() as watched:
            end = start_and_wait(
                self._host.sandbox,
                training,
                space,
                self._host.settings,
                self._assignment.cancel,
                adopt=self._adopted,
                on_start=started,
            )
        if self._sampler is not None:
            # What a predictor uses over time is a message of its making.
            self._sampler.stop()
        self._started = True
        self._seconds += end.wall_seconds
        self._facts |= {
            "train_seconds": end.wall_seconds,
            "train_cpu_seconds": end.cpu_seconds,
            "train_starved_seconds": end.starved_seconds,
            "peak_memory_bytes": end.peak_memory_bytes,
        }
        return end

    def _raise_failure(self, end: Exit, training: Training, space: Workspace) -> None:
        if end.reason == "cancelled":
            raise Cancelled
        cap = training.profile.budget.compute
        if (
            end.reason == "cpu"
            and cap is not None
            and end.cpu_seconds >= (training.cpu_seconds or math.inf)
        ):
            raise compute_exceeded(cap, "far more than the allowed multiple of")
        failed = failure_of(end, training, space)
        if failed is None:
            return
        self._excuse(failed, "while the training ran")
        raise failed

    def _excuse(self, failed: AttemptFailed, when: str) -> None:
        """Raise the host's failure in place of one that trouble with its GPUs may have caused."""
        trouble = self._host.gpus.trouble(self._gpus.uuids)
        if trouble is not None:
            message = f"{when}: {trouble.detail}"
            raise infrastructure(FailureCode.GPU_TROUBLE, message) from failed

    def _watch_over(self, handle: Handle) -> None:
        self._settled = True
        if self._sampler is not None:
            self._sampler.add(handle.gauges)

    def _scan(self, space: Workspace, profile: Profile) -> list[collect.Found]:
        settings = self._host.settings
        # Checkpoints may fill the disk that the profile has; how much of it is stored is another
        # matter.
        bounds = collect.Bounds(
            settings.artifact_files, max(profile.artifact_bytes, profile.disk_bytes)
        )
        try:
            collect.normalise(space.out_descriptor)
            found = collect.scan(space.out_descriptor, bounds)
            collect.fill_holes(space.out_descriptor, found)
            fingerprint = collect.fingerprint(space.out_descriptor, found)
        except collect.UnsafeArtifact as error:
            raise AttemptFailed(
                failure(FailureStage.TRAIN, FailureCode.UNSAFE_ARTIFACT, str(error))
            ) from error
        self._facts["artifact"] = fingerprint
        if not collect.has_artifact(found):
            message = "training ended well but left nothing in $ASSAY_OUT"
            raise AttemptFailed(failure(FailureStage.TRAIN, FailureCode.NO_ARTIFACT, message))
        return found

    def _scoring(
        self,
        bundle: CachedBundle,
        space: Workspace,
        metric: str,
        bounds: Mapping[str, float | None],
    ) -> Scoring:
        rule = self._spec.rescore
        return Scoring(
            bundle.environment.manifest.metric,
            metric,
            None if rule is None else Rescore(rule.beyond),
            evaluate=lambda wanted: evaluate_in_child(wanted, self._assignment.cancel),
            on_failure=lambda text: space.score_log.write_text(f"{text}\n", errors="replace"),
            bounds=bounds,
            judge=lambda outcome: outcome if self._usage is None else self._usage.scored(outcome),
        )

    def _score(self, scoring: Scoring, request: EvaluationRequest) -> dict[str, float]:
        self._scoring_began = True
        if self._reporter is not None:
            self._reporter.finalizing()
        try:
            return scoring.run(request)
        except AttemptFailed as failed:
            if failed.failure.stage is FailureStage.SCORE:
                self._excuse(failed, "while the artifact was scored")
            raise
        finally:
            self._seconds += scoring.seconds
            self._facts |= scoring.facts

    def _stored(
        self, space: Workspace, found: list[collect.Found], profile: Profile
    ) -> ManifestEntry:
        """Store what training left, or else why that is not stored: the result is worth more than
        the weights, which the codebase can make again."""
        size = sum(f.size for f in found)
        why = self._too_large(size, profile)
        if why is not None:
            curve = [f for f in found if f.name == CURVE_FILE]
            return self._upload(self._archive(space, curve, self._not_stored(size, why)))
        try:
            return self._upload(self._archive(space, found))
        except (ApiRefused, Unavailable, OSError) as error:
            if self._assignment.abandon.is_set() or not _is_about_bytes(error):
                raise
            _log.warning("%s: its artifact is not stored: %s", self._spec.attempt, error)
            # The error's own words may quote what was sent: they are in this worker's log.
            why = f"its {size} bytes could not be stored; the log of the worker says why"
            self._uploaded = {}
        # Nothing but the note, which travels with the result: it may be too late for more.
        note = self._not_stored(size, why)
        return collect.inline(self._archive(space, [], note, with_logs=False))

    def _too_large(self, size: int, profile: Profile) -> str | None:
        """Why an artifact of this size is not to be stored, naming both bounds."""
        allowed, most = profile.artifact_bytes, self._host.settings.artifact_bytes
        bounds = {"artifact_gb": allowed, "ASSAY_WORKER_ARTIFACT_BYTES": most}
        passed = [name for name, bound in bounds.items() if size > bound]
        if not passed:
            return None
        return (
            f"it has {size} bytes, and profile {self._spec.profile!r} allows {allowed} "
            f"(artifact_gb), this worker {most} (ASSAY_WORKER_ARTIFACT_BYTES): raise "
            f"{' and '.join(passed)}"
        )

    def _not_stored(self, size: int, why: str) -> str:
        """Note in the result that the artifact is not stored; the text for its archive."""
        note = f"the artifact was scored and not stored: {why}"
        self._facts |= {"artifact_not_stored": size, "artifact_not_stored_because": note}
        return note

    def _archive(
        self,
        space: Workspace,
        found: list[collect.Found],
        note: str = "",
        *,
        with_logs: bool = True,
    ) -> Path:
        # A longer log is read where logs are; here it would outweigh what was trained.
        sizes = ((path, path.stat().st_size) for path in space.logs.values() if with_logs)
        logs = [path for path, size in sizes if 0 < size <= collect.LOG_BYTES]
        target = space.folder / collect.ARCHIVE
        try:
            return collect.build_archive(space.out_descriptor, found, logs, target, note=note)
        except collect.UnsafeArtifact as error:
            _log.warning("%s: %r", self._spec.attempt, str(error))
            message = "the artifact changed after training had ended"
            raise AttemptFailed(
                failure(FailureStage.TRAIN, FailureCode.UNSAFE_ARTIFACT, message)
            ) from error

    def _upload(self, archive: Path) -> ManifestEntry:
        if archive.stat().st_size <= INLINE_BYTES:
            return collect.inline(archive)
        self._uploaded = {archive.name: archive}
        return self._host.api.upload(
            self._spec.attempt,
            self._spec.lease_token,
            archive,
            patience=self._seconds_to_upload(),
            give_up=self._assignment.abandon,
        )

    def _seconds_to_upload(self) -> float:
        """For how long uploads are tried: what the service calls lost is measured again, so the
        result has to arrive while the attempt is still within its bound."""
        patience, bound = self._host.settings.finish_seconds, self._spec.bound_seconds
        notes = self._journal.notes if self._journal is not None else None
        if not bound or notes is None:
            return patience
        began = notes.began if notes.training_began is None else notes.training_began
        left = bound - (time.monotonic() - began) - _TO_REPORT_SECONDS
        return max(_LEAST_UPLOAD_SECONDS, min(patience, left))

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
        try:
            self._report_end(end, patience)
        except ApiRefused as error:
            if not self._uploaded:
                raise
            # The store may have lost the artifact and take no other; the result is worth more.
            _log.warning("%s: reported without its artifact: %s", self._spec.attempt, error)
            self._uploaded = {}
            size = sum(entry.bytes for entry in end.artifacts)
            self._not_stored(size, "the service refused it; the log of the worker says why")
            self._report_end(replace(end, artifacts=()), patience)

    def _report_end(self, end: End, patience: float) -> None:
        body = FinishRequest(
            lease_token=self._spec.lease_token,
            state=end.state,
            failure=end.failure,
            infrastructure=end.is_retried,
            unclear=end.unclear,
            metrics=dict(end.metrics),
            rescore=end.rescore,
            provenance=self._facts,
            artifacts=list(end.artifacts),
            started=self._started,
            seconds=self._seconds if self._started else None,
        )
        if self._telemetry is not None:
            body.logs, body.points, body.system = self._telemetry.pending(final=True)
        self._host.api.finish(
            self._spec.attempt,
            body,
            files=self._uploaded,
            patience=patience,
            give_up=self._assignment.abandon,
        )

    def _deliver_refusal(self, error: ApiRefused) -> None:
        """The least that can be said, so that the attempt does not wait for its lease."""
        # The refusal's own words may quote what was reported: they are in this worker's log.
        message = f"the API refused the end of the attempt ({error.code})"
        failed = infrastructure(FailureCode.REPORT_REFUSED, message)
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
