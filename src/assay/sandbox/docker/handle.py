"""A program in a container: waits for it, kills it and clears away."""

import signal
import time
from dataclasses import replace

from assay.sandbox.disk import DiskWatch
from assay.sandbox.docker.engine import Engine
from assay.sandbox.docker.link import Link
from assay.sandbox.docker.meter import EngineMeter, GroupMeter
from assay.sandbox.interface import Exit, Reason, SandboxError, SandboxSpec
from assay.sandbox.supervise import DEATH_SECONDS, SupervisedHandle


class DockerHandle(SupervisedHandle):
    """See `interface.Handle`; `cleanup` gives back what the start took, but for the container."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        spec: SandboxSpec,
        grace_seconds: float,
        link: Link,
        meter: GroupMeter | EngineMeter,
        disk: DiskWatch,
        started: float | None = None,
    ) -> None:
        super().__init__(spec, grace_seconds, meter, disk)
        if started is not None:
            self._started = started
        self._engine = engine
        self._container = container
        self._link = link
        self._pid = link.pid
        self._knows_memory = isinstance(meter, GroupMeter)

    @property
    def pid(self) -> int:
        """Process id of the container's init; 0 where this process does not see it."""
        return self._pid

    def _ended(self, seconds: float) -> bool:
        return self._link.wait(seconds)

    def _interrupt(self) -> bool:
        return self._link.interrupt()

    def _destroy(self) -> None:
        """Kill everything in the container; at once where this process sees its init."""
        if not self._link.kill():
            self._engine.kill(self._container)

    def _finish(self, reason: Reason) -> Exit | SandboxError:
        # The init waits for us before it ends, so the container's numbers are still there.
        wall_seconds, warm_up_seconds = self._durations()
        usage = self.meter.sample(up_to_date=True)
        try:
            self._destroy()
            code, out_of_memory = self._result()
            error = self._start_error() if reason == "exited" else None
            if reason == "exited" and self._link.late:
                reason = self._out_of_time()
            elif reason == "exited":
                if not usage.out_of_host_memory:  # the engine cannot tell the two apart
                    usage = replace(usage, out_of_memory=usage.out_of_memory or out_of_memory)
                reason = self._explain(usage, code)
                error = error or self._interference(reason)
            self._close()
            self._engine.remove(self._container)
        except SandboxError as failure:
            self._keep()
            return SandboxError(f"the container {self._container[:12]} does not die: {failure}")
        finally:
            self._link.close()
        self.cleanup.close()
        return error or Exit(
            reason,
            code,
            wall_seconds,
            usage.cpu_seconds,
            usage.peak_bytes,
            starved_seconds=usage.starved_seconds,
            warm_up_seconds=warm_up_seconds,
        )

    def _start_error(self) -> SandboxError | None:
        problem = self._link.problem
        return None if problem is None else SandboxError(f"the program did not start: {problem}")

    def _interference(self, reason: Reason) -> SandboxError | None:
        """A program cannot end its init: if that never said how it ended, somebody else did."""
        if self._link.status is not None or reason != "exited":
            return None
        return SandboxError("the container was ended from outside")

    def _result(self) -> tuple[int, bool]:
        """The program's exit code, and whether Docker says that memory ran out."""
        status = self._link.status
        if status is not None and (self._knows_memory or status == 0):
            return status, False
        deadline = time.monotonic() + DEATH_SECONDS
        while (state := self._engine.state(self._container))["Running"]:
            if time.monotonic() > deadline:
                raise SandboxError("it is still running")
            time.sleep(0.02)
        code = -signal.SIGKILL if status is None else status
        return code, bool(state.get("OOMKilled"))
