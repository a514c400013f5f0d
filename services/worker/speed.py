"""Measure how fast this host computes while a training runs, in a sandbox like the training's.

The same work takes one host twice the CPU time of another, and half as much again beside busy
neighbours. `services/worker/usage.py` divides what a training used by what a fixed piece of work
took meanwhile, so that a budget of compute means the same everywhere. Looking only before and
after it gave twice the error (0.066 against 0.030, standard deviation of the logarithm over 28
trainings of nanogpt `tiny`, alone and beside neighbours of three kinds).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean

from assay.domain.failure_codes import FailureCode
from assay.sandbox import Exit, Sandbox, SandboxError, SandboxSpec
from services.worker.failures import AttemptFailed, Cancelled, infrastructure
from services.worker.settings import WorkerSettings
from services.worker.training import Training, limits_of

_log = logging.getLogger(__name__)
#: What another version of the probe has measured is not comparable.
VERSION = 2
#: For the first samples, which take a tenth of a second of an idle processor.
_FIRST_SECONDS = 60.0
_LOOK_SECONDS = 0.02
# Half of a sample is what a small model's training does (products, an activation), the other half
# is Python. What comes first after a pause runs on a cold cache and a slow clock: it is not timed.
# No code of an idea is in the sandbox, so its own clock counts.
_PROGRAM = """
import time
import numpy

x = numpy.linspace(-1, 1, 1024 * 128, dtype=numpy.float32).reshape(1024, 128)
w = numpy.linspace(-1, 1, 128 * 512, dtype=numpy.float32).reshape(128, 512)


def work():
    h = x @ w
    numpy.tanh(h, out=h)
    h @ w.T
    seen = {}
    last = 0
    for i in range(10_000):
        last = (last * 31 + i) & 0xFFFF
        seen[last] = i


def sample():
    work()
    start = time.process_time()
    for _ in range(3):
        work()
    print("seconds", time.process_time() - start, flush=True)


work()
for _ in range(4):
    sample()
while True:
    time.sleep(1.0)
    sample()
"""
_AT_LEAST = 4


@dataclass(frozen=True)
class Speed:
    """CPU seconds of the fixed piece of work, the mean of `samples`; all took `cpu_seconds`."""

    seconds: float
    samples: int
    cpu_seconds: float = 0.0


class SpeedProbe:
    """Samples the host's speed from a thread of its own; see `speed_probe`."""

    def __init__(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        self._sandbox, self._spec = sandbox, spec
        self._stop = threading.Event()
        self._end: Exit | None = None
        self._error = ""
        # Programs may end with the thread that started them: this one lives as long.
        self._thread = threading.Thread(target=self._run, name="speed", daemon=True)
        self._thread.start()

    def first(self, cancel: threading.Event) -> Speed:
        """Wait for the first samples. To be asked before the training starts.

        Raises:
            AttemptFailed: the work could not be done here; another host may be able to.
            Cancelled: `cancel` was set.
        """
        deadline = time.monotonic() + _FIRST_SECONDS
        while len(self._samples()) < _AT_LEAST:
            if cancel.wait(_LOOK_SECONDS):
                raise Cancelled
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise self._failed()
        return self._speed()

    def stop(self) -> Speed:
        """End it, and return the mean of all samples."""
        if not self._thread.is_alive():  # killed for want of memory, say: no reason to lose a run
            _log.warning("%s ended early: %s", self._spec.name, self._why())
        self.close()
        return self._speed()

    def _speed(self) -> Speed:
        samples = self._samples()
        used = self._end.cpu_seconds if self._end else 0.0
        return Speed(fmean(samples), len(samples), used)

    def close(self) -> None:
        """End it. May be repeated."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            handle = self._sandbox.start(self._spec)
            try:
                self._end = handle.wait(self._stop)
            finally:
                handle.kill()
        except (SandboxError, OSError) as error:
            self._error = str(error)

    def _said(self) -> list[str]:
        """The lines so far. Not by `read`: the program writes where this process reads."""
        output = self._spec.stdout
        text = os.pread(output, os.fstat(output).st_size, 0).decode(errors="replace")
        return text.rpartition("\n")[0].splitlines()

    def _samples(self) -> list[float]:
        """The numbers after the program's mark; libraries may print warnings between them."""
        lines = (line.partition(" ") for line in self._said())
        return [found for mark, _, text in lines if mark == "seconds" and (found := _number(text))]

    def _why(self) -> str:
        end = f"{self._end.reason}, code {self._end.code}" if self._end else self._error
        last = (self._said() or ["nothing was printed"])[-1]
        return f"({end}): {last}"

    def _failed(self) -> AttemptFailed:
        self.close()
        return infrastructure(
            FailureCode.PROBE_FAILED,
            f"the speed of this host could not be measured {self._why()}. "
            "The sandbox's interpreter needs numpy.",
        )


@contextmanager
def speed_probe(
    sandbox: Sandbox, training: Training, settings: WorkerSettings
) -> Iterator[SpeedProbe]:
    """Sample the host's speed meanwhile, under the limits of the training.

    An idea that slows the host down on purpose slows the samples too, but what it does so with
    counts as its own compute.
    """
    with tempfile.TemporaryFile() as output:
        probe = SpeedProbe(sandbox, _spec(sandbox, training, settings, output.fileno()))
        try:
            yield probe
        finally:
            probe.close()


def _spec(
    sandbox: Sandbox, training: Training, settings: WorkerSettings, output: int
) -> SandboxSpec:
    limits = limits_of(training, settings)
    # It is stopped when the training has ended, whatever that takes.
    wall = limits.longest_seconds + 2 * _FIRST_SECONDS
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return SandboxSpec(
        name=f"{training.spec.attempt}-speed",
        argv=(sandbox.python, "-I", "-c", _PROGRAM),
        env=dict.fromkeys(threads, "1") | {"PYTHONDONTWRITEBYTECODE": "1"},
        mounts=(),
        cwd="/",
        limits=dataclasses.replace(
            limits, wall_seconds=wall, starved_seconds=0.0, cpu_seconds=None
        ),
        stdout=output,
        stderr=output,
    )


def _number(text: str) -> float | None:
    """A usable number; None for anything else."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) and found > 0 else None
