"""Start the codebase's training in the sandbox and see how it ends."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.contracts.environment import Profile
from assay.contracts.worker import AttemptSpec
from assay.evaluation import thread_variables
from assay.sandbox import Exit, Handle, Keep, Limits, Mount, Sandbox, SandboxSpec
from services.worker.failures import AttemptFailed, training_failure
from services.worker.output import TAIL, stored_output
from services.worker.settings import WorkerSettings
from services.worker.telemetry import read_tail
from services.worker.warm_up import ASK, DATA
from services.worker.workspace import Workspace

_ROOT = "/assay"


@dataclass(frozen=True)
class Training:
    """What to train: `data` is the prepared `train/` split, `argv` the entry point, `gpus` the
    UUIDs of the devices it has, `locks` the descriptors that keep others from them. A smoke ends
    after `smoke_seconds`, of which the codebase is not told. `cpu_seconds` end a training that is
    far beyond its cap on compute."""

    spec: AttemptSpec
    profile: Profile
    argv: tuple[str, ...]
    data: Path
    gpus: tuple[str, ...] = ()
    locks: tuple[int, ...] = ()
    smoke_seconds: float | None = None
    cpu_seconds: float | None = None

    @property
    def warm_up_seconds(self) -> float | None:
        """How long the code may take before it asks for its data; None: it is there at once. A
        smoke has no warm-up: it shows that steps are taken, not how fast."""
        return self.profile.budget.warm_up_seconds if self.smoke_seconds is None else None


def limits_of(training: Training, settings: WorkerSettings) -> Limits:
    """What the training may use; memory is what the attempt was given."""
    budget, disk_bytes = training.profile.budget, training.profile.disk_bytes
    wall = training.smoke_seconds or budget.seconds
    wanted = training.profile.most_processes
    return Limits(
        wall_seconds=wall,
        starved_seconds=training.profile.patience * wall,
        memory_bytes=training.spec.memory_bytes,
        processes=min(wanted, settings.processes or wanted),
        open_files=settings.open_files,
        file_bytes=disk_bytes,
        cpu_seconds=min(
            (cap for cap in (budget.cpu_seconds, training.cpu_seconds) if cap is not None),
            default=None,
        ),
        cpus=training.spec.cpus,
        disk_bytes=disk_bytes,
        disk_files=settings.disk_files,
        warm_up_seconds=training.warm_up_seconds or 0.0,
    )


def start_and_wait(
    sandbox: Sandbox,
    training: Training,
    space: Workspace,
    settings: WorkerSettings,
    cancel: threading.Event,
    *,
    adopt: bool = False,
    on_start: Callable[[Handle], object] = lambda _: None,
) -> Exit:
    """Train in the calling thread, which must live until the end.

    With `adopt`, a killed worker may have started the training: then go on with that one.

    Raises:
        SandboxError: the code never started, could not be ended, or nobody knows how it ended.
    """
    spec = _sandbox_spec(sandbox, training, space, settings)
    if spec.keep is not None:
        handle = sandbox.adopt(spec) if adopt else None
        return _waited(handle or sandbox.start(spec), cancel, on_start)
    with stored_output(space.train_log, settings.log_bytes) as log:
        spec = dataclasses.replace(spec, stdout=log.descriptor, stderr=log.descriptor)
        handle = sandbox.start(spec)
        log.close_writer()
        return _waited(handle, cancel, on_start)


def _waited(handle: Handle, cancel: threading.Event, on_start: Callable[[Handle], object]) -> Exit:
    try:
        on_start(handle)
        return handle.wait(cancel)
    finally:
        handle.kill()


def _sandbox_spec(
    sandbox: Sandbox, training: Training, space: Workspace, settings: WorkerSettings
) -> SandboxSpec:
    """What to start. It depends on nothing but its arguments: whoever adopts it makes it again."""
    mounts = {
        "codebase": Mount(space.codebase, f"{_ROOT}/codebase", writable=True),
        "data": Mount(training.data, f"{_ROOT}/data"),
        "out": Mount(space.out, f"{_ROOT}/out", writable=True),
        "config": Mount(space.config, f"{_ROOT}/config.json"),
    }
    if training.warm_up_seconds is not None:
        mounts["data"] = Mount(space.gate, f"{_ROOT}/gate")
        mounts["ask"] = Mount(space.ask, f"{_ROOT}/ask", writable=True)
    if not sandbox.isolated:  # a sandbox has a /tmp of its own
        mounts["tmp"] = Mount(space.temporary, f"{_ROOT}/tmp", writable=True)
    seen = {"tmp": "/tmp"} | {name: sandbox.path(mount) for name, mount in mounts.items()}
    if training.warm_up_seconds is not None:
        seen["data"], seen["ask"] = f"{seen['data']}/{DATA}", f"{seen['ask']}/{ASK}"
    return SandboxSpec(
        name=training.spec.attempt,
        argv=with_interpreter(training.argv, sandbox.python),
        env=training_environment(training, seen),
        mounts=tuple(mounts.values()),
        cwd=seen["codebase"],
        limits=limits_of(training, settings),
        gpus=training.gpus,
        keep=_keep(training, space, settings) if settings.adopt and sandbox.adopts else None,
    )


def _keep(training: Training, space: Workspace, settings: WorkerSettings) -> Keep:
    labels = {
        "assay.attempt": training.spec.attempt,
        "assay.lease_token": str(training.spec.lease_token),
        "assay.devices": ",".join(training.gpus),
    }
    return Keep(space.keep, space.train_log, settings.log_bytes, TAIL, labels, training.locks)


def with_interpreter(argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """The entry point with `python` as the interpreter at that path."""
    return (python, *argv[1:]) if argv[0] in ("python", "python3") else argv


def training_environment(training: Training, seen: Mapping[str, str]) -> dict[str, str]:
    """Every environment variable of ours that the code gets; nothing of this process's own."""
    profile = training.profile
    asking = {"ASSAY_ASK": seen["ask"]} if "ask" in seen else {}
    return {
        "ASSAY_DATA": seen["data"],
        "ASSAY_OUT": seen["out"],
        "ASSAY_CONFIG": seen["config"],
        "ASSAY_SEED": str(training.spec.seed),
        "ASSAY_PROFILE": training.spec.profile,
        "ASSAY_HARDWARE_CLASS": training.spec.hardware_class,
        "ASSAY_GPUS": str(profile.gpus),
        "ASSAY_SECONDS": f"{profile.budget.seconds:g}",
        **thread_variables(profile.threads, profile.gpus),
        "PYTHONUNBUFFERED": "1",  # what was printed before a kill is in the log
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": seen["tmp"],
        "TMPDIR": seen["tmp"],
        **asking,
    }


def failure_of(end: Exit, training: Training, space: Workspace) -> AttemptFailed | None:
    """What went wrong in training; None when it ended well."""
    wall = training.profile.budget.seconds
    patience = training.profile.patience * wall
    return training_failure(
        end,
        read_tail(space.train_log),
        wall=wall,
        patience=patience,
        warm_up=training.warm_up_seconds or 0.0,
    )
