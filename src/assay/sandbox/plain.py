"""The backend without isolation: an ordinary child process with limits.

For code that is trusted, and for machines without bubblewrap. The program runs as this user: it
reaches the network, reads and writes this user's files, sees and signals this user's processes,
reads their environments, and ignores that mounts are read-only. A worker running as root gives it
root. What it does hold: a clean environment, no inherited descriptors, limits on time and single
processes, memory of the tree (by control group, else by polling), and the death of the tree at the
end. A daemon that left session and tree is found by a variable in its environment; one that also
cleared that survives, unless a control group holds it.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil

from assay.sandbox.cgroups import ControlGroups, Group
from assay.sandbox.disk import DiskWatch
from assay.sandbox.gpus import driver_libraries
from assay.sandbox.interface import (
    DEVNULL,
    Guarantee,
    Mount,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
)
from assay.sandbox.launcher import launch_command
from assay.sandbox.meter import Meter, descendants
from assay.sandbox.probe import probe_sandbox
from assay.sandbox.process import ProcessHandle

TOKEN = "ASSAY_SANDBOX_TOKEN"
"""Environment variable by which processes that left the tree are found."""

_PASSES = 5  # a process may fork between a look and its kill


class PlainHandle(ProcessHandle):
    """An ordinary child process, its session and whoever carries its token."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        spec: SandboxSpec,
        grace_seconds: float,
        group: Group | None,
        disk: DiskWatch,
        started: float,
        token: str,
    ) -> None:
        meter = Meter(process.pid, spec.limits, group)
        super().__init__(process, spec, grace_seconds, meter, disk, started)
        self._group = group
        self._token = token

    def _interrupt(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
            return True
        return False

    def _destroy(self) -> None:
        below = list(descendants(self.pid))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        for pid in below:
            _kill(pid)
        if self._group is not None:
            self._group.kill()
        for _ in range(_PASSES):
            strays = _carrying(self._token)
            if not strays:
                break
            for pid in strays:
                _kill(pid)

    def _gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while _carrying(self._token):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _carrying(token: str) -> list[int]:
    """Living processes with the token in the environment they were started with."""
    wanted = f"{TOKEN}={token}".encode()
    if not os.path.isdir("/proc/self"):
        return _carrying_portable(token)
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if wanted in Path(entry.path, "environ").read_bytes():  # empty for a zombie
                found.append(int(entry.name))
    return found


def _carrying_portable(token: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(TOKEN) == token:
                found.append(process.pid)
    return found


class PlainSandbox:
    """Starts programs without isolation; see the module's text and `interface.Sandbox`."""

    name = "subprocess"
    isolated = False

    def __init__(self, settings: SandboxSettings, groups: ControlGroups | None = None) -> None:
        self._settings = settings
        self._groups = ControlGroups() if groups is None else groups

    @property
    def adopts(self) -> bool:
        return False

    @property
    def python(self) -> str:
        return sys.executable

    def adopt(self, spec: SandboxSpec) -> None:
        """Nothing of a program is found again."""

    @property
    def facts(self) -> dict[str, str]:
        return {}

    def path(self, mount: Mount) -> str:
        return str(mount.source)

    def probe(self, quick: bool = False) -> dict[Guarantee, bool]:
        hasty = PlainSandbox(replace(self._settings, grace_seconds=0.1), self._groups)
        return probe_sandbox(hasty, self._settings.scratch, quick)

    def start(self, spec: SandboxSpec) -> PlainHandle:
        with ExitStack() as stack:
            try:
                return self._start(spec, stack)
            except OSError as error:
                raise SandboxError(f"{spec.name} could not be started: {error}") from error

    def _start(self, spec: SandboxSpec, stack: ExitStack) -> PlainHandle:
        group = self._groups.create(spec.limits)
        if group is not None:
            stack.callback(group.remove)
        token = secrets.token_hex(16)
        environment = {
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._settings.scratch),
            "LANG": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus),  # none unless given
            **driver_libraries(spec.gpus).variables,
            **spec.env,
            TOKEN: token,
        }
        streams = [
            subprocess.DEVNULL if stream == DEVNULL else stream
            for stream in (spec.stdin, spec.stdout, spec.stderr)
        ]
        joins = group.join_files() if group is not None else []
        disk = DiskWatch(spec.mounts, spec.limits)
        started = time.monotonic()
        process = subprocess.Popen(
            launch_command(spec.argv, spec.limits, joins),
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=environment,
            cwd=spec.cwd,
            start_new_session=True,
        )
        grace = self._settings.grace_seconds
        handle = PlainHandle(process, spec, grace, group, disk, started, token)
        handle.cleanup.push(stack.pop_all())
        return handle
