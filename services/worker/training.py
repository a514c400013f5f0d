"""Start the codebase's training in the sandbox and see how it ends."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.contracts.base import FailureBody
from assay.contracts.environment import Profile
from assay.contracts.worker import AttemptSpec
from assay.sandbox import Exit, Limits, Mount, Sandbox, SandboxSpec
from services.worker.failures import training_failure
from services.worker.output import stored_output
from services.worker.settings import WorkerSettings
from services.worker.telemetry import read_tail
from services.worker.workspace import Workspace

_ROOT = "/assay"


@dataclass(frozen=True)
class Training:
    """What to train: `data` is the prepared `train/` split, `argv` the entry point."""

    spec: AttemptSpec
    profile: Profile
    argv: tuple[str, ...]
    data: Path


def limits_of(training: Training, settings: WorkerSettings) -> Limits:
    """What the training may use; memory is what the attempt was given."""
    budget, disk_bytes = training.profile.budget, training.profile.disk_bytes
    return Limits(
        wall_seconds=budget.seconds,
        memory_bytes=training.spec.memory_bytes,
        processes=settings.processes,
        open_files=settings.open_files,
        file_bytes=disk_bytes,
        cpu_seconds=budget.cpu_seconds,
        cpus=training.spec.cpus,
        disk_bytes=disk_bytes,
        disk_files=settings.disk_files,
    )


def start_and_wait(
    sandbox: Sandbox,
    training: Training,
    space: Workspace,
    settings: WorkerSettings,
    cancel: threading.Event,
) -> Exit:
    """Train in the calling thread, which must live until the end.

    Raises:
        SandboxError: the code never started, or could not be ended.
    """
    mounts = {
        "codebase": Mount(space.codebase, f"{_ROOT}/codebase", writable=True),
        "data": Mount(training.data, f"{_ROOT}/data"),
        "out": Mount(space.out, f"{_ROOT}/out", writable=True),
        "config": Mount(space.config, f"{_ROOT}/config.json"),
    }
    if not sandbox.isolated:  # a sandbox has a /tmp of its own
        mounts["tmp"] = Mount(space.temporary, f"{_ROOT}/tmp", writable=True)
    seen = {"tmp": "/tmp"} | {name: sandbox.path(mount) for name, mount in mounts.items()}
    with stored_output(space.train_log, settings.log_bytes) as log:
        handle = sandbox.start(
            SandboxSpec(
                name=training.spec.attempt,
                argv=with_interpreter(training.argv, sandbox.python),
                env=training_environment(training, seen),
                mounts=tuple(mounts.values()),
                cwd=seen["codebase"],
                limits=limits_of(training, settings),
                stdout=log.descriptor,
                stderr=log.descriptor,
            )
        )
        log.close_writer()
        try:
            return handle.wait(cancel)
        finally:
            handle.kill()


def with_interpreter(argv: tuple[str, ...], python: str) -> tuple[str, ...]:
    """The entry point with `python` as the interpreter at that path."""
    return (python, *argv[1:]) if argv[0] in ("python", "python3") else argv


def training_environment(training: Training, seen: Mapping[str, str]) -> dict[str, str]:
    """Every environment variable of ours that the code gets; nothing of this process's own."""
    threads = str(training.profile.cpus)
    return {
        "ASSAY_DATA": seen["data"],
        "ASSAY_OUT": seen["out"],
        "ASSAY_CONFIG": seen["config"],
        "ASSAY_SEED": str(training.spec.seed),
        "ASSAY_PROFILE": training.spec.profile,
        "ASSAY_HARDWARE_CLASS": training.spec.hardware_class,
        "ASSAY_THREADS": threads,
        "ASSAY_GPUS": str(training.profile.gpus),
        "ASSAY_SECONDS": f"{training.profile.budget.seconds:g}",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",  # what was printed before a kill is in the log
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": seen["tmp"],
        "TMPDIR": seen["tmp"],
    }


def failure_of(end: Exit, training: Training, space: Workspace) -> FailureBody | None:
    """What went wrong in training; None when it ended well."""
    return training_failure(end, read_tail(space.train_log), wall=training.profile.budget.seconds)
