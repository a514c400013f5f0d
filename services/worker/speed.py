"""Measure how fast this host computes right now, in a sandbox like the one that trains.

The same work takes one host twice the CPU time of another, and half as much again beside busy
neighbours. `services/worker/usage.py` divides what a training used by what a fixed piece of work
took before and after it, so that a budget of compute means the same everywhere.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import threading

from assay.sandbox import Sandbox, SandboxSpec
from services.worker.failures import Cancelled, infrastructure
from services.worker.settings import WorkerSettings
from services.worker.training import Training, limits_of

#: Measured references of another version of the probe are not comparable.
VERSION = 1
_SECONDS = 60.0
_MOST_BYTES = 4096
# Half of it is what a small model's training does (products, an activation), half is Python; the
# first pass of each is not timed. No code of an idea is in the sandbox, so its own clock counts.
_PROGRAM = """
import time
import numpy

x = numpy.linspace(-1, 1, 1024 * 128, dtype=numpy.float32).reshape(1024, 128)
w = numpy.linspace(-1, 1, 128 * 512, dtype=numpy.float32).reshape(128, 512)


def multiply(times):
    for _ in range(times):
        h = x @ w
        numpy.tanh(h, out=h)
        h @ w.T


def count(times):
    seen = {}
    last = 0
    for i in range(times):
        last = (last * 31 + i) & 0xFFFF
        seen[last] = i


multiply(2)
count(5_000)
start = time.process_time()
multiply(16)
count(100_000)
print("seconds", time.process_time() - start)
"""


def measure_speed(
    sandbox: Sandbox,
    training: Training,
    settings: WorkerSettings,
    cancel: threading.Event,
    purpose: str,
) -> float:
    """CPU seconds of a fixed piece of work, under the limits of the training; about 0.1.

    Raises:
        AttemptFailed: the work could not be done here; another host may be able to.
        Cancelled: `cancel` was set.
    """
    with tempfile.TemporaryFile() as output:
        handle = sandbox.start(_spec(sandbox, training, settings, purpose, output.fileno()))
        try:
            end = handle.wait(cancel)
        finally:
            handle.kill()
        said = os.pread(output.fileno(), _MOST_BYTES, 0).decode(errors="replace").strip()
    if end.reason == "cancelled":
        raise Cancelled
    seconds = _seconds_in(said) if (end.reason, end.code) == ("exited", 0) else None
    if seconds is None:
        last = said.rpartition("\n")[2] or "nothing was printed"
        raise infrastructure(
            "probe_failed",
            f"the speed of this host could not be measured ({end.reason}, code {end.code}): "
            f"{last}. The sandbox's interpreter needs numpy.",
        )
    return seconds


def _seconds_in(said: str) -> float | None:
    """The number after the program's mark; libraries may have printed warnings before it."""
    mark, _, number = said.rpartition("\n")[2].partition(" ")
    try:
        found = float(number)
    except ValueError:
        return None
    return found if mark == "seconds" and math.isfinite(found) and found > 0 else None


def _spec(
    sandbox: Sandbox, training: Training, settings: WorkerSettings, purpose: str, output: int
) -> SandboxSpec:
    limits = dataclasses.replace(
        limits_of(training, settings), wall_seconds=_SECONDS, cpu_seconds=None
    )
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return SandboxSpec(
        name=f"{training.spec.attempt}-{purpose}",
        argv=(sandbox.python, "-I", "-c", _PROGRAM),
        env=threads | {"PYTHONDONTWRITEBYTECODE": "1"},
        mounts=(),
        cwd="/",
        limits=limits,
        stdout=output,
        stderr=output,
    )
