"""How long a program was kept waiting for a processor, from the kernel's own accounts.

For every thread the kernel counts the time for which it was runnable and did not run
(`/proc/TID/schedstat`, second field, nanoseconds; Documentation/scheduler/sched-stats.rst). Time
asleep is not in it: a deadlock starves of nothing. Threads that end between two looks take their
counts with them. Where a control group of version 2 tells its pressure (`cpu.pressure`, the time
for which at least one member waited), that covers them; it lags behind by a second or two.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

#: A program that is out of time, and was kept waiting for so large a share of it, might have ended
#: in time on an idle host: neighbours also take caches and memory bandwidth, which nobody counts.
UNCLEAR_SHARE = 0.2
#: Between two looks. Looking at ten threads takes a tenth of a millisecond.
LOOK_SECONDS = 0.5
#: A wait is booked when it ends: one that is longer than a look belongs to so many looks before.
_REMEMBERED = 120


class Starvation:
    """Counts the seconds that a tree of processes lost because its host was busy.

    In each stretch of time the loss is what the thread that waited most has waited, but at most
    what the tree did not get of its share of the processors: threads that wait for one another's
    turn within their own share lose nothing to the host.

    `waits` says for how long each thread of the tree has waited so far, by thread id (`waits_of`),
    `cpu_seconds` what the tree has used, and `processors` is its share (None: all). `pressure` is
    the time for which any thread has waited so far; it counts only where the share is one
    processor or less, since threads that are bound to one of several make it themselves. Where the
    kernel does not count, nothing is ever lost. `began` and `clock` are in monotonic seconds.
    """

    def __init__(
        self,
        waits: Callable[[], Mapping[int, float]],
        cpu_seconds: Callable[[], float],
        processors: float | None,
        *,
        pressure: Callable[[], float] = lambda: 0.0,
        began: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waits = waits
        self._cpu_seconds = cpu_seconds
        self._processors = processors or float(os.cpu_count() or 1)
        self._pressure = pressure if self._processors <= 1 else lambda: 0.0
        self._clock = clock
        self._looked = clock() if began is None else began
        self._seen: Mapping[int, float] = {}
        self._pressed = 0.0
        self._used = 0.0
        self._lost = 0.0
        #: What was missing in each of the last looks, and was not waiting that was booked by then.
        self._unexplained: deque[float] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def seconds(self, *, now: bool = False) -> float:
        """Seconds lost so far, at most `LOOK_SECONDS` old; up to date with `now`."""
        with self._lock:
            elapsed = self._clock() - self._looked
            if now or elapsed >= LOOK_SECONDS:
                self._look(elapsed)
            return self._lost

    def _look(self, elapsed: float) -> None:
        waits, used = self._waits(), max(self._used, self._cpu_seconds())
        pressed = max(self._pressed, self._pressure())
        longest = max(
            (total - self._before(tid, total) for tid, total in waits.items()), default=0
        )
        longest = max(longest, pressed - self._pressed)
        missing = max(0.0, elapsed - (used - self._used) / self._processors)
        lost = min(longest, missing)
        self._lost += lost + self._explain(longest - elapsed)
        self._unexplained.append(missing - lost)
        self._seen, self._used, self._pressed = waits, used, pressed
        self._looked += elapsed

    def _before(self, tid: int, total: float) -> float:
        """What the thread had waited at the last look; its id may have been another's then."""
        before = self._seen.get(tid, 0.0)
        return before if before <= total else 0.0

    def _explain(self, seconds: float) -> float:
        """How much of earlier looks a wait explains that reaches back by so many seconds."""
        found = 0.0
        for place in range(len(self._unexplained) - 1, -1, -1):
            if seconds <= found:
                break
            part = min(self._unexplained[place], seconds - found)
            self._unexplained[place] -= part
            found += part
        return found


def waits_of(threads: Iterable[int]) -> dict[int, float]:
    """Seconds for which each thread was runnable and did not run, where the kernel says so.

    A thread that bound itself to fewer processors than this process may use is left out: it could
    wait for a neighbour of its own making while others are idle.
    """
    allowed = _affinity(0)
    return {
        tid: found
        for tid in threads
        if _affinity(tid) >= allowed and (found := _wait_of(tid)) is not None
    }


def _affinity(tid: int) -> int:
    """On how many processors a thread may run; none if it has ended or nobody knows."""
    try:
        return len(os.sched_getaffinity(tid))
    except (AttributeError, OSError):
        return 0


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
