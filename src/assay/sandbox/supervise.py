"""Holds one started program to its limits; what all backends' handles have in common."""

import os
import signal
import threading
import time
from contextlib import ExitStack
from typing import Protocol

from assay.sandbox.disk import DiskWatch
from assay.sandbox.interface import Exit, Limits, Reason, SandboxError, SandboxSpec
from assay.sandbox.meter import Usage

DEATH_SECONDS = 10.0
"""What does not die within this time after it was killed is given up."""

GUARD_SECONDS = 2.0
"""So much later than the worker, a sandbox ends its program by itself: the worker may hang."""


class UsageMeter(Protocol):
    """Says what a program has used so far."""

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        ...

    def sample(self, *, up_to_date: bool = False) -> Usage:
        """The usage so far; never fails. Time without a processor is counted twice a second, and
        now with `up_to_date`."""
        ...

    def gauges(self) -> dict[str, float]:
        """What is used right now; see `interface.Handle`."""
        ...

    def starved_seconds(self) -> float:
        """See `interface.Handle`."""
        ...


def blame_memory(disk: DiskWatch, limits: Limits) -> Reason:
    """Return why memory ran out.

    `disk` when files on volumes in memory hold more than half of it: the kernel counts them as
    memory, but the program has to write less, not to allocate less.
    """
    return "disk" if 2 * disk.bytes_in_memory() > limits.memory_bytes else "memory"


class SupervisedHandle:
    """The common part of a backend's handle; see `interface.Handle`.

    A backend says how to wait for the end (`_ended`), how to reach the code (`_interrupt`), how to
    kill everything (`_destroy`) and how to clear away (`_finish`); `cleanup` gives back what the
    start took.
    """

    def __init__(
        self, spec: SandboxSpec, grace_seconds: float, meter: UsageMeter, disk: DiskWatch
    ) -> None:
        self.cleanup = ExitStack()
        self._kept: ExitStack | None = None
        self._limits = spec.limits
        self._grace = grace_seconds
        self.meter = meter
        self._disk = disk
        self._started = time.monotonic()
        self._clock_started: float | None = None
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._waiting = False
        self._killed = False
        self._closing = False
        self._outcome: Exit | SandboxError | None = None

    def wait(self, cancel: threading.Event | None = None) -> Exit:
        with self._lock:
            if self._outcome is None:
                with self._state:
                    self._waiting = True
                try:
                    reason = self._watch(cancel)
                    if reason in ("wall", "warm_up", "cancelled", "cpu") and not self._killed:
                        self._give_grace()
                    self._outcome = self._finish(reason)
                finally:
                    with self._state:
                        self._waiting = False
            if isinstance(self._outcome, SandboxError):
                raise self._outcome
            return self._outcome

    def kill(self) -> None:
        with self._state:
            if self._closing:
                return
            self._killed = True
            self.meter.sample()  # afterwards what it reads may be gone
            self._destroy()
            if self._waiting:  # the waiting thread wakes up and clears away
                return
        with self._lock:
            if self._outcome is None:
                self._outcome = self._finish("cancelled")

    def start_clock(self, at: float | None = None) -> None:
        with self._state:
            if self._limits.warm_up_seconds and self._clock_started is None:
                self._clock_started = time.monotonic() if at is None else at

    def gauges(self) -> dict[str, float]:
        return self.meter.gauges()

    def starved_seconds(self) -> float:
        return self.meter.starved_seconds()

    def _ended(self, seconds: float) -> bool:
        """True as soon as the program has ended, False after `seconds`."""
        raise NotImplementedError

    def _interrupt(self) -> bool:
        """Ask the code to stop; False when there is nothing to ask."""
        raise NotImplementedError

    def _destroy(self) -> None:
        """Kill everything that belongs to this program."""
        raise NotImplementedError

    def _finish(self, reason: Reason) -> Exit | SandboxError:
        """Kill what is left, account and clear away; holds `self._lock`."""
        raise NotImplementedError

    def _close(self) -> None:
        """From here on `kill` does nothing: what it would kill may be somebody else's."""
        with self._state:
            self._closing = True

    def _keep(self) -> None:
        """What was lent to a program that does not die (its user id, its mounts) is not safe to
        lend again."""
        self._kept = self.cleanup.pop_all()
        self._close()

    def _watch(self, cancel: threading.Event | None) -> Reason:
        usage = Usage()
        while True:
            left = max(0.0, self._deadline(usage) - time.monotonic())
            if self._ended(min(self.meter.interval, left)):
                return "cancelled" if self._killed else "exited"
            usage = self.meter.sample()
            if time.monotonic() >= self._deadline(usage):
                usage = self.meter.sample(up_to_date=True)
            overrun = self._overrun(usage, cancel)
            if overrun is not None:
                return overrun

    @property
    def _warms_up(self) -> bool:
        """Whether the wall clock stands still."""
        return self._limits.warm_up_seconds > 0 and self._clock_started is None

    def _deadline(self, usage: Usage) -> float:
        """When the warm-up or the wall clock is used up; time without a processor does not count
        as wall clock."""
        since = self._clock_started
        if since is None:
            if self._limits.warm_up_seconds > 0:
                return self._started + self._limits.warm_up_seconds
            since = self._started
        granted = min(usage.starved_seconds, self._limits.starved_seconds)
        return since + self._limits.wall_seconds + granted

    def _out_of_time(self) -> Reason:
        return "warm_up" if self._warms_up else "wall"

    def _durations(self) -> tuple[float, float]:
        """Seconds on the wall clock so far, and those before it was started."""
        now, since = time.monotonic(), self._clock_started
        if self._limits.warm_up_seconds == 0:
            return now - self._started, 0.0
        since = now if since is None else since
        return now - since, since - self._started

    def _overrun(self, usage: Usage, cancel: threading.Event | None) -> Reason | None:
        if self._killed or (cancel is not None and cancel.is_set()):
            return "cancelled"
        if time.monotonic() >= self._deadline(usage):
            return self._out_of_time()
        if self._disk.exceeded():
            return "disk"
        return self._over_limit(usage)

    def _over_limit(self, usage: Usage) -> Reason | None:
        if usage.out_of_memory:
            return blame_memory(self._disk, self._limits)
        if usage.out_of_host_memory:
            return "host_memory"
        cpu_limit = self._limits.cpu_seconds
        return "cpu" if cpu_limit is not None and usage.cpu_seconds >= cpu_limit else None

    def _give_grace(self) -> None:
        if not self._interrupt():
            return
        deadline = time.monotonic() + self._grace
        while (left := deadline - time.monotonic()) > 0 and not self._killed:
            if self._ended(min(self.meter.interval, left)):
                return
            usage = self.meter.sample()
            if usage.out_of_memory or usage.out_of_host_memory:
                return

    def _could_use_up_its_time(self) -> bool:
        """Whether all processors together had the time that the program may use."""
        seconds = time.monotonic() - self._started
        limit = self._limits.cpu_seconds
        return limit is not None and seconds * (os.cpu_count() or 1) >= limit

    def _explain(self, usage: Usage, code: int, certain: bool = True) -> Reason:
        """A program that ended by itself may still have hit a limit of the kernel.

        A signal says so only where it is `certain` that it was one. Where it is not, SIGXCPU is
        believed of a program that has lived long enough to use its time up: between two looks, the
        kernel alone has seen how much it used.
        """
        if code == -signal.SIGXCPU and (certain or self._could_use_up_its_time()):
            return "cpu"
        over = self._over_limit(usage)
        if over is not None:
            return over
        if code == 0:
            return "disk" if self._disk.over() else "exited"
        if usage.out_of_processes:
            return "processes"
        too_long = certain and code == -signal.SIGXFSZ
        return "disk" if too_long or self._disk.full() else "exited"
