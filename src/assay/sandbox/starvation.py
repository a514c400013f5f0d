"""How long a program was kept waiting for a processor, from the kernel's account of each thread.

The kernel counts, for every thread, the time that it was runnable and did not run
(`/proc/TID/schedstat`, second field, nanoseconds; Documentation/scheduler/sched-stats.rst). Time
asleep is not in it: a deadlock starves of nothing. The pressure of a control group (PSI) would
need no look at threads, but lagged behind by a quarter in trials on two cores, and version 1 of
control groups has none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

#: A program that is out of time, and was kept waiting for so large a share of it, might have ended
#: in time on an idle host: neighbours also take caches and memory bandwidth, which nobody counts.
UNCLEAR_SHARE = 0.2
#: Between two looks. Looking at ten threads takes a tenth of a millisecond.
LOOK_SECONDS = 0.5


class Starvation:
    """Counts the seconds that a tree of processes lost because its host was busy.

    In each stretch of time the loss is what the thread that waited most has waited, but at most
    what the tree did not get of its share of the processors: threads that wait for one another's
    turn within their own share lose nothing to the host.

    `waits` says for how long each thread of the tree has waited so far, by thread id (`waits_of`),
    `cpu_seconds` what the tree has used, and `processors` is its share (None: all). Where the
    kernel does not count, nothing is ever lost. `began` and `clock` are in monotonic seconds.
    """

    def __init__(
        self,
        waits: Callable[[], Mapping[int, float]],
        cpu_seconds: Callable[[], float],
        processors: float | None,
        *,
        began: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waits = waits
        self._cpu_seconds = cpu_seconds
        self._processors = processors or float(os.cpu_count() or 1)
        self._clock = clock
        self._looked = clock() if began is None else began
        self._seen: Mapping[int, float] = {}
        self._used = 0.0
        self._lost = 0.0
        self._lock = threading.Lock()

    def seconds(self, *, now: bool = False) -> float:
        """Seconds lost so far, at most `LOOK_SECONDS` old; up to date with `now`."""
        with self._lock:
            elapsed = self._clock() - self._looked
            if now or elapsed >= LOOK_SECONDS:
                self._look(elapsed)
            return self._lost

    def _look(self, elapsed: float) -> None:
        waits, used = self._waits(), self._cpu_seconds()
        longest = max(
            (total - self._before(tid, total) for tid, total in waits.items()), default=0
        )
        missing = elapsed - max(0.0, used - self._used) / self._processors
        self._lost += max(0.0, min(longest, missing))
        self._seen, self._used = waits, used
        self._looked += elapsed

    def _before(self, tid: int, total: float) -> float:
        """What the thread had waited at the last look; its id may have been another's then."""
        before = self._seen.get(tid, 0.0)
        return before if before <= total else 0.0


def waits_of(threads: Iterable[int]) -> dict[int, float]:
    """Seconds for which each thread was runnable and did not run, where the kernel says so."""
    return {tid: found for tid in threads if (found := _wait_of(tid)) is not None}


def _wait_of(tid: int) -> float | None:
    try:
        return int(Path(f"/proc/{tid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def threads_of(pid: int) -> list[int]:
    """Ids of the threads of a process; none where it has ended or this is not Linux."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
