"""Waits for one started program, holds it to its limits and kills its whole tree."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil

from assay.sandbox.disk import DiskWatch
from assay.sandbox.interface import Exit, Reason, SandboxError, SandboxSpec
from assay.sandbox.meter import Meter, Usage
from assay.sandbox.supervise import DEATH_SECONDS, SupervisedHandle


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


class ProcessHandle(SupervisedHandle):
    """The common part of the handles of child processes.

    A backend says how to reach the code (`_interrupt`), how to kill everything (`_destroy`) and
    whether everything is gone (`_gone`).
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        spec: SandboxSpec,
        grace_seconds: float,
        meter: Meter,
        disk: DiskWatch,
        started: float,
    ) -> None:
        super().__init__(spec, grace_seconds, meter, disk)
        self._process = process
        self._exact_memory = meter.exact_memory
        self._started = started
        self._watcher = Watcher(process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def _ended(self, seconds: float) -> bool:
        return self._watcher.wait(seconds)

    def _gone(self, seconds: float) -> bool:
        """Whether everything is dead, waiting up to `seconds`."""
        raise NotImplementedError

    def _finish(self, reason: Reason) -> Exit | SandboxError:
        self._destroy()
        if not self._watcher.wait(DEATH_SECONDS) or not self._gone(DEATH_SECONDS):
            self._keep()
            return SandboxError(f"processes of the sandbox (process {self.pid}) do not die")
        self._close()
        with self.cleanup, contextlib.closing(self._watcher):
            wall_seconds, warm_up_seconds = self._durations()
            usage = self.meter.sample(up_to_date=True)
            status, cpu_seconds, peak_bytes = self._reap(usage)
            code, certain = self._program_code(status)
            if reason == "exited":
                reason = self._explain(replace(usage, cpu_seconds=cpu_seconds), code, certain)
            error = self._start_error() if reason == "exited" else None
            return error or Exit(
                reason,
                code,
                wall_seconds,
                cpu_seconds,
                peak_bytes,
                certain,
                usage.starved_seconds,
                warm_up_seconds,
            )

    def _start_error(self) -> SandboxError | None:
        """Why the wrapper ended before it started the program, if it did."""
        return None

    def _reap(self, usage: Usage) -> tuple[int, float, int | None]:
        """Exit code of the outermost process, CPU seconds and peak memory of the tree."""
        try:
            _, state, resources = os.wait4(self.pid, 0)
        except ChildProcessError as error:
            raise SandboxError(f"process {self.pid} was reaped by somebody else") from error
        code = os.waitstatus_to_exitcode(state)
        self._process.returncode = code  # or Popen would try to reap it again
        cpu_seconds = max(usage.cpu_seconds, resources.ru_utime + resources.ru_stime)
        peak_bytes = usage.peak_bytes
        if not self._exact_memory:  # the largest single process is a lower bound
            unit = 1 if sys.platform == "darwin" else 1024
            peak_bytes = max(peak_bytes or 0, resources.ru_maxrss * unit)
        return code, cpu_seconds, peak_bytes

    def _program_code(self, code: int) -> tuple[int, bool]:
        """The program's exit code, from its outermost process's, and whether it is certain."""
        return code, True
