"""Waits for one started program, holds it to its limits and kills its whole tree."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psutil

from assay.sandbox.interface import Exit, Limits, Reason, SandboxError
from assay.sandbox.meter import Meter, Usage

_DEATH_SECONDS = 10.0


class Watcher:
    """Waits for the end of a child without reaping it, and for readable descriptors.

    On Linux a process descriptor wakes the wait at once; elsewhere it looks every few
    milliseconds.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = False
        self._actions: dict[int, Callable[[], None]] = {}
        self._poll: Any = None
        self._descriptor = -1
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # a kernel or a filter without the call
                self._descriptor = os.pidfd_open(pid)
                self._poll = select.poll()
                self._poll.register(self._descriptor, select.POLLIN)

    def on_readable(self, descriptor: int, action: Callable[[], None]) -> None:
        """Call `action` once, from within `wait`, when `descriptor` has something to read."""
        if self._poll is not None:
            self._actions[descriptor] = action
            self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """True as soon as the child has ended, False after `seconds`."""
        if self._ended:
            return True
        if self._poll is None:
            return self._wait_in_steps(seconds)
        deadline = time.monotonic() + seconds
        while True:
            # Rounded up: a wait of 0.4 ms must not become a busy loop.
            left = max(0.0, deadline - time.monotonic())
            ready = {descriptor for descriptor, _ in self._poll.poll(int(left * 1000 + 0.999))}
            for descriptor in ready & set(self._actions):
                self._poll.unregister(descriptor)
                self._actions.pop(descriptor)()
            if self._descriptor in ready:
                self._ended = True
                return True
            if time.monotonic() >= deadline:
                return False

    def _wait_in_steps(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        step = 0.001
        while not self._has_ended():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(step, left))
            step = min(step * 1.5, 0.02)
        return True

    def _has_ended(self) -> bool:
        # `waitid` with WNOWAIT would say the same, but macOS has it only in newer Pythons.
        try:
            self._ended = psutil.Process(self._pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            self._ended = True
        return self._ended

    def close(self) -> None:
        """Give the process descriptor back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._poll, self._ended = -1, None, True


class ProcessHandle:
    """The common part of both backends' handles; see `interface.Handle`.

    A backend says how to reach the code (`_interrupt`), how to kill everything (`_destroy`) and
    whether everything is gone (`_gone`); `cleanup` gives back what the start took.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        limits: Limits,
        grace_seconds: float,
        meter: Meter,
        started: float,
    ) -> None:
        self.cleanup = ExitStack()
        self._kept: ExitStack | None = None
        self._process = process
        self._limits = limits
        self._grace = grace_seconds
        self._meter = meter
        self._started = started
        self._watcher = Watcher(process.pid)
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._waiting = False
        self._killed = False
        self._closing = False
        self._outcome: Exit | SandboxError | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, cancel: threading.Event | None = None) -> Exit:
        with self._lock:
            if self._outcome is None:
                with self._state:
                    self._waiting = True
                try:
                    reason = self._watch(cancel)
                    if reason in ("wall", "cancelled", "cpu") and not self._killed:
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
            self._destroy()
            if self._waiting:  # the waiting thread wakes up and clears away
                return
        with self._lock:
            if self._outcome is None:
                self._outcome = self._finish("cancelled")

    def _interrupt(self) -> bool:
        """Ask the code to stop; False when there is nothing to ask."""
        raise NotImplementedError

    def _destroy(self) -> None:
        """Kill everything that belongs to this program."""
        raise NotImplementedError

    def _gone(self, seconds: float) -> bool:
        """Whether everything is dead, waiting up to `seconds`."""
        raise NotImplementedError

    def _watch(self, cancel: threading.Event | None) -> Reason:
        deadline = self._started + self._limits.wall_seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            if self._watcher.wait(min(self._meter.interval, left)):
                return "cancelled" if self._killed else "exited"
            overrun = self._overrun(deadline, cancel)
            if overrun is not None:
                return overrun

    def _overrun(self, deadline: float, cancel: threading.Event | None) -> Reason | None:
        if self._killed or (cancel is not None and cancel.is_set()):
            return "cancelled"
        if time.monotonic() >= deadline:
            return "wall"
        return self._over_limit(self._meter.sample())

    def _over_limit(self, usage: Usage) -> Reason | None:
        if usage.out_of_memory:
            return "memory"
        cpu_limit = self._limits.cpu_seconds
        return "cpu" if cpu_limit is not None and usage.cpu_seconds >= cpu_limit else None

    def _give_grace(self) -> None:
        if not self._interrupt():
            return
        deadline = time.monotonic() + self._grace
        while (left := deadline - time.monotonic()) > 0 and not self._killed:
            if self._watcher.wait(min(self._meter.interval, left)):
                return
            if self._meter.sample().out_of_memory:
                return

    def _finish(self, reason: Reason) -> Exit | SandboxError:
        """Kill what is left, account, clear away and reap; holds `self._lock`."""
        self._destroy()
        if not self._watcher.wait(_DEATH_SECONDS) or not self._gone(_DEATH_SECONDS):
            # What was lent to the program (its user id, its mounts) is not safe to lend again.
            self._kept = self.cleanup.pop_all()
            self._closing = True
            return SandboxError(f"processes of the sandbox (process {self.pid}) do not die")
        with self._state:  # from here on the process id may become somebody else's
            self._closing = True
        wall_seconds = time.monotonic() - self._started
        usage = self._meter.sample()
        code, cpu_seconds, peak_bytes = self._reap(usage)
        if reason == "exited":
            reason = self._explain(usage, code)
        error = self._start_error() if reason == "exited" else None
        self._watcher.close()
        self.cleanup.close()
        return error or Exit(reason, code, wall_seconds, cpu_seconds, peak_bytes)

    def _start_error(self) -> SandboxError | None:
        """Why the wrapper ended before it started the program, if it did."""
        return None

    def _explain(self, usage: Usage, code: int) -> Reason:
        """A program that ended by itself may still have hit a limit of the kernel."""
        if code == -signal.SIGXCPU:
            return "cpu"
        return self._over_limit(usage) or "exited"

    def _reap(self, usage: Usage) -> tuple[int, float, int | None]:
        """Exit code, CPU seconds and peak memory of the ended program."""
        try:
            _, state, resources = os.wait4(self.pid, 0)
        except ChildProcessError as error:
            raise SandboxError(f"process {self.pid} was reaped by somebody else") from error
        code = os.waitstatus_to_exitcode(state)
        self._process.returncode = code  # or Popen would try to reap it again
        cpu_seconds = max(usage.cpu_seconds, resources.ru_utime + resources.ru_stime)
        peak_bytes = usage.peak_bytes
        if not self._meter.exact_memory:  # the largest single process is a lower bound
            unit = 1 if sys.platform == "darwin" else 1024
            peak_bytes = max(peak_bytes or 0, resources.ru_maxrss * unit)
        return self._program_code(code), cpu_seconds, peak_bytes

    def _program_code(self, code: int) -> int:
        """The program's exit code, from its outermost process's."""
        return code
