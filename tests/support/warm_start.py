"""Python processes that start in a fraction of a second, for tests that restart services often.

Starting a service costs seconds of CPU, nearly all of it imports. `WarmStart` keeps one process
that has done them and forks it for every start. What is forked is an ordinary process: it has its
own session, environment and arguments, and runs `python -m module` as `__main__`.

    with WarmStart() as warm:
        part = Part("scheduler", [sys.executable, "-m", "assay.cli", "scheduler"], folder, env,
                    spawn=warm.spawn)
"""

from __future__ import annotations

import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

_READY_SECONDS = 120.0
#: What the services import when they start.
_PRELOADED = (
    "assay.broker.dispatch",
    "assay.cli.app",
    "assay.storage.s3",
    "boto3",
    "celery",
    "openai",
    "services.implementer.server",
    "services.implementer.worker",
    "services.local.service",
    "services.scheduler.clock",
    "services.worker.supervisor",
)
#: Modules that may be forked; anything else is started by a new interpreter.
_MODULES = ("assay.cli", "tests.support.faults.points", "tests.support.faults.hosts")


class Process(Protocol):
    """What tests do with a child process: `subprocess.Popen` or a fork."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class Spawn(Protocol):
    """A way to start a command in a session of its own."""

    def __call__(
        self, command: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int
    ) -> Process: ...


def spawn(command: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int) -> Process:
    """Start a command as usual."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=dict(env),
        start_new_session=True,
    )


class WarmStart:
    """A process with everything imported, and the forks it made."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WarmStart:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.warm_start", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._socket.settimeout(_READY_SECONDS)
        if self._socket.recv(16) != b"ready":
            raise RuntimeError("the process to fork from did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.wait(_READY_SECONDS)

    def spawn(
        self, command: Sequence[str], env: Mapping[str, str], stdout: int, stderr: int
    ) -> Process:
        """Start a command, by a fork if it is one of the modules that are known."""
        if list(command[:2]) != [sys.executable, "-m"] or command[2] not in _MODULES:
            return spawn(command, env, stdout, stderr)
        assert self._socket is not None
        # What is said of a process comes on a connection of its own: threads start processes at
        # once, and from a common one each could take the answer for another's.
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The environment may be longer than a packet.
            request = os.memfd_create("request")
            os.write(request, json.dumps({"argv": command[2:], "env": dict(env)}).encode())
            try:
                fds = [request, stdout, stderr, theirs.fileno()]
                socket.send_fds(self._socket, [b"start"], fds)
            finally:
                os.close(request)
        return _Fork(status.detach())


class _Fork:
    """A process whose parent is the warm one, which says what its id is and how it ended."""

    def __init__(self, status: int) -> None:
        self._status = status
        weakref.finalize(self, os.close, status)
        self._reading = threading.Lock()
        self.returncode: int | None = None
        if not select.select([status], [], [], _READY_SECONDS)[0]:
            raise RuntimeError(f"the warm process forked nothing within {_READY_SECONDS:g} s")
        self.pid = int(os.read(status, 32))

    def poll(self) -> int | None:
        self._read(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._read(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def _read(self, timeout: float | None) -> None:
        # Several threads may ask, and one of them is told.
        if self.returncode is not None or not select.select([self._status], [], [], timeout)[0]:
            return
        with self._reading:
            if self.returncode is None:
                said = os.read(self._status, 32)
                if not said:
                    raise RuntimeError(f"nobody says how process {self.pid} ended")
                self.returncode = int(said)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _say(status: int, number: int) -> None:
    # The test that started the process may have gone.
    with suppress(BrokenPipeError):
        os.write(status, str(number).encode())


class _Forker:
    """The warm process's loop. It has one thread, so that its forks are sound."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._statuses: dict[int, int] = {}
        self._ended, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._waker = waker
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """Fork as often as asked. Return what to run in a fork, and None at the end."""
        self._control.send(b"ready")
        while True:
            control = self._control.fileno()
            readable, _, _ = select.select([control, self._ended], [], [])
            if self._ended in readable:
                os.read(self._ended, 4096)
                self._reap()
            if control in readable:
                message, fds, _, _ = socket.recv_fds(self._control, 16, 4)
                if not message:
                    return None
                request = self._start(fds)
                if request is not None:
                    return request

    def _reap(self) -> None:
        for pid, status in list(self._statuses.items()):
            ended, code = os.waitpid(pid, os.WNOHANG)
            if ended:
                _say(status, os.waitstatus_to_exitcode(code))
                os.close(status)
                del self._statuses[pid]

    def _start(self, fds: list[int]) -> dict[str, Any] | None:
        request, stdout, stderr, status = fds
        pid = os.fork()
        if pid:
            self._statuses[pid] = status
            for fd in (request, stdout, stderr):
                os.close(fd)
            _say(status, pid)
            return None
        return self._become(request, stdout, stderr, status)

    def _become(self, request: int, stdout: int, stderr: int, status: int) -> dict[str, Any]:
        """Let go of what is the warm process's alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        wanted: dict[str, Any] = json.loads(os.pread(request, os.fstat(request).st_size, 0))
        for fd in (request, stdout, stderr, status, self._ended, self._waker):
            os.close(fd)
        for fd in self._statuses.values():
            os.close(fd)
        self._control.close()
        random.seed()
        return wanted


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in _PRELOADED:
        importlib.import_module(module)
    wanted = _Forker(control).serve()
    if wanted is None:
        return
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    sys.argv = wanted["argv"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
