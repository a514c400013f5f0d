"""How long `assay demo` will take here and now, said before it starts and corrected as it goes.

The work is known: so many measurements, each as much as so many rounds of a short loop. How fast
the loop runs at this moment, in as many processes as will train at once, says how long that takes
on this processor and beside whatever else is running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from assay.analysis.text import counted, format_seconds

#: Long enough to share a busy processor with others a few times, short enough to wait for.
PROBE_SECONDS = 0.8
#: Rounds of the loop below that take as long as a measurement with its evaluation, by environment
#: and profile. nanogpt's `tiny`: 43 CPU-seconds by the provenance of its results on a busy EPYC
#: with AVX2 (34 of training, 9 of evaluation), where a CPU-second had 500 rounds.
MEASUREMENT_ROUNDS = {("nanogpt", "tiny"): 21_500.0}
#: Hardware classes that compute with bfloat16 need about half of that: 13 CPU-seconds on an idle
#: machine, of about 800 rounds (benchmarks/results/discrimination-nanogpt-cpu-bf16.json).
BFLOAT16 = ("cpu-amx", "cpu-bf16")
BFLOAT16_SHARE = 0.5
#: So many waves of measurements say how fast it goes now.
WAVES = 3
_LOOP = """
import sys, time
seconds = float(sys.argv[1])
rounds, start, cpu = 0, time.perf_counter(), time.process_time()
while time.perf_counter() - start < seconds:
    total = 0.0
    for i in range(10000):
        total += i * 0.5
    rounds += 1
print(rounds, time.perf_counter() - start, time.process_time() - cpu)
"""


@dataclass(frozen=True)
class Speed:
    """What `processes` at once get done now: rounds per second and process, and rounds per second
    of processor time."""

    processes: int
    per_second: float
    per_cpu_second: float

    @property
    def share(self) -> float:
        """How much of a core each process gets."""
        return min(1.0, self.per_second / self.per_cpu_second)


#: Where there is nothing to measure, no speed is needed.
IDLE = Speed(1, 1.0, 1.0)


def rounds_of(environment: str, profile: str, hardware_class: str) -> float | None:
    """Return the work of a measurement, in rounds; None where it is not known."""
    rounds = MEASUREMENT_ROUNDS.get((environment, profile))
    if rounds is None or hardware_class not in BFLOAT16:
        return rounds
    return rounds * BFLOAT16_SHARE


def measure_speed(processes: int, seconds: float = PROBE_SECONDS) -> Speed:
    """Measure the machine's present speed in so many processes at once.

    Each is in a session of its own, as trainings are: Linux shares processor time between sessions
    before it shares it between processes.
    """
    command = [sys.executable, "-I", "-S", "-c", _LOOP, str(seconds)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        for _ in range(processes)
    ]
    found = [tuple(map(float, probe.communicate()[0].split())) for probe in started]
    rounds = sum(done for done, _, _ in found)
    wall = sum(took for _, took, _ in found)
    cpu = sum(used for _, _, used in found)
    return Speed(processes, rounds / wall, rounds / max(cpu, 1e-3))


def slots(
    cpus: int,
    memory_bytes: int,
    *,
    need_cpus: int,
    need_memory_gb: float,
    cores: int | None = None,
) -> int:
    """Return how many measurements a worker on this machine, of so many `cores`, runs at once."""
    by_memory = int(memory_bytes / max(need_memory_gb * (1 << 30), 1.0))
    return max(1, min(cpus // max(need_cpus, 1), by_memory, cores or os.cpu_count() or 1))


class Expectation:
    """What is left of a known number of measurements: at first from the speed, then from how long
    those that have ended took."""

    def __init__(
        self,
        measurements: int,
        speed: Speed,
        *,
        rounds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speed = speed
        self._pace = rounds / speed.per_second / speed.processes
        self._cpu_seconds = measurements * rounds / speed.per_cpu_second
        self._clock = clock
        self._start = clock()
        #: When each measurement had ended, as far as it was looked at.
        self._ends: list[float] = []
        self._total = measurements
        #: The whole, as it was expected at the start.
        self.seconds = measurements * self._pace

    def __str__(self) -> str:
        if not self._total:
            return "expected: seconds, as everything is measured already"
        work = (
            f"{counted(self._total, 'measurement')}, about {self._cpu_seconds:.0f} CPU-seconds on "
            f"{counted(self._speed.processes, 'core')}"
        )
        free = f", {self._speed.share:.0%} of each free now" if self._speed.share < 0.9 else ""
        return f"expected: about {format_about(self.seconds)} ({work}{free})"

    def too_slow(self, budget_seconds: float) -> str | None:
        """Return a warning if measurements are likely to run out of their wall clock budget."""
        one = self._pace * self._speed.processes
        if not self._total or one <= budget_seconds:
            return None
        return (
            f"warning: at this speed a measurement takes about {format_about(one)}, and its "
            f"training is ended after {budget_seconds:g} s: stop other programs, and start again"
        )

    def outcome(self) -> str:
        """Return what was expected beside what it took, for the end."""
        expected = f"about {format_about(self.seconds)}" if self.seconds else "seconds"
        return f"Expected: {expected}; taken: {format_seconds(self.elapsed)}."

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    @contextmanager
    def part(self, planned: int) -> Iterator[Callable[[int], float]]:
        """Follow a part of the work, of so many measurements.

        Yields what gives the seconds left of the whole, from how many measurements of the part
        have ended. Those that were not made after all, since ideas share a codebase, are not
        waited for afterwards.
        """
        before = len(self._ends)

        def left(ended: int) -> float:
            new = before + min(ended, planned) - len(self._ends)
            self._ends += [self._clock()] * new
            return self.left

        yield left
        self._total -= planned - (len(self._ends) - before)

    @property
    def left(self) -> float:
        """Seconds left.

        While one is late, no more than half is taken off: it need not be about to end.
        """
        last = self._ends[-1] if self._ends else self._start
        rest = max(0, self._total - len(self._ends)) * self._pace_now(last)
        return max(rest - (self._clock() - last), rest / 2)

    def _pace_now(self, last: float) -> float:
        """Seconds between two ends, over the last few waves; before there are so many, the pace
        that was expected counts as one wave."""
        wave, done = self._speed.processes, len(self._ends)
        if done > WAVES * wave:
            return (last - self._ends[-1 - WAVES * wave]) / (WAVES * wave)
        return (wave * self._pace + last - self._start) / (wave + done)


def format_about(seconds: float) -> str:
    """Return a length that pretends no precision: `40 s`, `3 min`, `1 h 20 min`."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
