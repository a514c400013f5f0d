"""The isolating backend: bubblewrap with an own user, own filter and control groups.

Namespaces keep network, processes and files away, the system call filter closes what namespaces
leave open, control groups (or a poller) hold memory. A root worker never lends its user: the
program runs under an unprivileged id of its own, because inside a user namespace the outer root
would still open root's files.
"""

import contextlib
import functools
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from assay.sandbox import seccomp
from assay.sandbox.cgroups import ControlGroups, Group
from assay.sandbox.counters import advance_counters
from assay.sandbox.disk import DiskWatch
from assay.sandbox.filesystem import (
    OWN_FILES,
    Reach,
    check_target,
    hiding_arguments,
    interpreter_arguments,
    mount_arguments,
    secrecy_arguments,
    system_arguments,
    tmpfs_bytes,
)
from assay.sandbox.gpus import driver_libraries, gpu_mounts
from assay.sandbox.interface import (
    DEVNULL,
    Guarantee,
    Mount,
    Reason,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
)
from assay.sandbox.launcher import TRUSTED_PATH, launch_command, program_of, tool
from assay.sandbox.meter import Meter, Usage, children
from assay.sandbox.ownership import hand_over
from assay.sandbox.probe import probe_sandbox
from assay.sandbox.process import ProcessHandle
from assay.sandbox.staging import staging_folder
from assay.sandbox.supervise import GUARD_SECONDS
from assay.sandbox.users import is_root, lend_user

_GUARD_CODES = (124, -signal.SIGKILL)  # timeout(1) ended the program, gently or not
_WRAPPER_PROCESSES = 3  # bubblewrap outside, the init of the process namespace, the guard


class BubblewrapHandle(ProcessHandle):
    """A program inside bubblewrap: outer wrapper, init of the process namespace, program."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        spec: SandboxSpec,
        grace_seconds: float,
        group: Group | None,
        disk: DiskWatch,
        started: float,
        state_fd: int,
    ) -> None:
        meter = Meter(process.pid, spec.limits, group)
        super().__init__(process, spec, grace_seconds, meter, disk, started)
        self._group = group
        self._state_fd = state_fd
        self._state_text = ""
        self._reading = threading.Lock()
        self._init_pid: int | None = None
        self._init_fd = -1
        self._watcher.on_readable(state_fd, self._read_state)
        self.cleanup.callback(self._forget)

    def _read_state(self) -> None:
        with self._reading:
            self._read_state_locked()

    def _read_state_locked(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._state_fd, 4096):
                self._state_text += chunk.decode()
        if self._init_pid is None and "\n" in self._state_text:
            self._init_pid = int(json.loads(self._state_text.splitlines()[0])["child-pid"])
            if sys.platform == "linux":
                with contextlib.suppress(ProcessLookupError):
                    self._init_fd = os.pidfd_open(self._init_pid)

    def _forget(self) -> None:
        if self._init_fd >= 0:
            os.close(self._init_fd)
        self._init_fd = -1

    def _interrupt(self) -> bool:
        self._read_state()
        if self._init_pid is None:
            return False
        asked = False
        for pid in children(self._init_pid)[:1]:  # the program; what it started is its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
                asked = True
        return asked

    def _destroy(self) -> None:
        self._read_state()
        # The death of the namespace's init is the death of everything in it.
        if self._init_fd >= 0 and sys.platform == "linux":
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
        if self._group is not None:
            self._group.kill()

    def _gone(self, seconds: float) -> bool:
        if self._init_fd < 0:
            return True
        poll = select.poll()
        poll.register(self._init_fd, select.POLLIN)
        return bool(poll.poll(int(seconds * 1000)))

    def _explain(self, usage: Usage, code: int, certain: bool = True) -> Reason:
        """The guard may have ended it while this process hung."""
        guarded = self._limits.longest_seconds + GUARD_SECONDS
        if code in _GUARD_CODES and time.monotonic() - self._started >= guarded:
            return self._out_of_time()
        return super()._explain(usage, code, certain)

    def _program_code(self, code: int) -> tuple[int, bool]:
        # Bubblewrap answers 128 + signal for a program that a signal ended, and passes on what a
        # program exited with. Nothing outside can tell 137 from 137.
        return (128 - code, False) if 128 < code < 128 + signal.NSIG else (code, True)

    def _start_error(self) -> SandboxError | None:
        self._read_state()
        killed = (self._process.returncode or 0) < 0  # by the host; bubblewrap did nothing wrong
        if killed or "exit-code" in self._state_text:
            return None
        return SandboxError("bubblewrap could not start the program; its reason is on stderr")


@functools.cache
def _check_kernel() -> None:
    if sys.platform == "linux":
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError as error:
            raise SandboxError(f"bubblewrap needs Linux 5.3 or newer: {error}") from error
    else:
        raise SandboxError("bubblewrap exists on Linux only")


@functools.cache
def _supports(option: str) -> bool:
    found = subprocess.run([tool("bwrap"), "--help"], capture_output=True, text=True, check=False)
    return option in found.stdout + found.stderr


@functools.cache
def _version() -> str:
    found = subprocess.run(
        [tool("bwrap"), "--version"], capture_output=True, text=True, check=False
    )
    return found.stdout.split()[-1] if found.stdout.split() else "unknown"


class BubblewrapSandbox:
    """Starts programs inside bubblewrap; see the module's text and `interface.Sandbox`.

    Of two sandboxes alive at the same time, no two may share a writable mount.
    """

    name = "bubblewrap"
    isolated = True

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
        """Programs die with their worker."""

    @functools.cached_property
    def facts(self) -> dict[str, str]:
        return {"bubblewrap": _version()}

    def path(self, mount: Mount) -> str:
        return mount.target

    def probe(self, quick: bool = False) -> dict[Guarantee, bool]:
        hasty = BubblewrapSandbox(replace(self._settings, grace_seconds=0.1), self._groups)
        return probe_sandbox(hasty, self._settings.scratch, quick)

    def start(self, spec: SandboxSpec) -> BubblewrapHandle:
        _check_kernel()
        libraries = driver_libraries(spec.gpus)
        mounts = (*spec.mounts, *gpu_mounts(spec.gpus), *libraries.mounts)
        spec = replace(spec, mounts=mounts, env={**libraries.variables, **spec.env})
        for mount in spec.mounts:
            check_target(mount)
        with ExitStack() as stack:
            try:
                return self._start(spec, stack)
            except OSError as error:
                raise SandboxError(f"sandbox {spec.name} could not be started: {error}") from error

    def _start(self, spec: SandboxSpec, stack: ExitStack) -> BubblewrapHandle:
        user = stack.enter_context(lend_user()) if is_root() else None
        binds: dict[str, str] = {}
        table = None
        reach: Reach = str
        if user is not None:
            staging = stack.enter_context(staging_folder())
            reach, binds, table = staging.reach, staging.binds, staging.device_table()
        hand_over(spec.mounts, user, stack)
        if spec.sees_held_out:
            stack.callback(advance_counters, shared_memory=bool(spec.gpus))
        group = self._groups.create(spec.limits, _WRAPPER_PROCESSES)
        if group is not None:
            stack.callback(group.remove)
            if spec.sees_held_out:
                stack.callback(group.drop_cache)
        with ExitStack() as descriptors:
            contents = {"/etc/passwd": _passwd(user)}
            contents |= {path: text.encode() for path, text in OWN_FILES.items()}
            files = {path: _pipe_with(data, descriptors) for path, data in contents.items()}
            filter_fd = None
            if seccomp.supported():
                program = seccomp.build_filter(held_out=spec.sees_held_out, gpus=bool(spec.gpus))
                filter_fd = _pipe_with(program, descriptors)
            state_in, state_out = os.pipe()
            descriptors.callback(os.close, state_out)
            stack.callback(os.close, state_in)
            os.set_blocking(state_in, False)
            options = _options(spec, reach, files, filter_fd, state_out)
            options_fd = _file_with(_joined(options), descriptors)
            inherited = [options_fd, state_out, *files.values()]
            inherited += [] if filter_fd is None else [filter_fd]
            command = [
                *_as_user(user),
                *(tool("bwrap"), "--args", str(options_fd), "--"),
                *_limit_processes(spec, group),
                *_guard(spec, self._settings.grace_seconds),
                *program_of(spec, self.python),
            ]
            joins = group.join_files() if group is not None else []
            disk = DiskWatch(spec.mounts, spec.limits)
            started = time.monotonic()
            process = _popen(
                launch_command(
                    command, spec.limits, joins, binds, table, set_login_id=bool(spec.gpus)
                ),
                spec,
                inherited,
            )
        grace = self._settings.grace_seconds
        handle = BubblewrapHandle(process, spec, grace, group, disk, started, state_in)
        handle.cleanup.push(stack.pop_all())
        return handle


def _as_user(user: int | None) -> list[str]:
    if user is None:
        return []
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    return [tool("setpriv"), *ids, "--"]


def _passwd(user: int | None) -> bytes:
    uid, gid = (user, user) if user is not None else (os.geteuid(), os.getegid())
    return f"sandbox:x:{uid}:{gid}:sandbox:/tmp:/bin/false\n".encode()


def _pipe_with(content: bytes, descriptors: ExitStack) -> int:
    """A fresh descriptor that reads `content` once; far below a pipe's capacity."""
    reader, writer = os.pipe()
    descriptors.callback(os.close, reader)
    try:
        os.write(writer, content)
    finally:
        os.close(writer)
    return reader


def _file_with(content: bytes, descriptors: ExitStack) -> int:
    """A descriptor of a file in memory that reads `content`, however long."""
    if sys.platform != "linux":
        raise SandboxError("files in memory exist on Linux only")
    descriptor = os.memfd_create("assay-options")
    descriptors.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _joined(options: Sequence[str]) -> bytes:
    """Options in the form that `bwrap --args` reads.

    Raises `ValueError` for an option with a NUL, which would begin an option of its own.
    """
    for option in options:
        if "\0" in option:
            raise ValueError(f"a NUL in the specification of a sandbox: {option!r}")
    return b"".join(os.fsencode(option) + b"\0" for option in options)


def _options(
    spec: SandboxSpec,
    reach: Reach,
    files: Mapping[str, int],
    filter_fd: int | None,
    state_fd: int,
) -> list[str]:
    """The options of bubblewrap: namespaces, files, environment.

    `files` are paths in the sandbox with the descriptors that their contents are read from.

    Bubblewrap reads them from a descriptor. Its command line is also that of the first process in
    the sandbox, where the program would read the host's paths.
    """
    nested = ["--disable-userns"] if _supports("--disable-userns") else []
    tmpfs = str(tmpfs_bytes(spec.limits))
    options = [
        *("--unshare-all", "--unshare-user", *nested, "--die-with-parent", "--new-session"),
        *("--json-status-fd", str(state_fd), "--hostname", "sandbox", "--cap-drop", "ALL"),
        *system_arguments(),
        *(word for path, fd in files.items() for word in ("--ro-bind-data", str(fd), path)),
        *("--proc", "/proc", *hiding_arguments(), "--dev", "/dev"),
        *(secrecy_arguments() if spec.sees_held_out and not spec.gpus else ()),
        *("--size", tmpfs, "--tmpfs", "/dev/shm", "--size", tmpfs, "--tmpfs", "/tmp"),
        *interpreter_arguments(reach),
        *mount_arguments(spec.mounts, reach),
        *_protect_init(bool(spec.gpus)),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", spec.cwd, "--clearenv"),
    ]
    environment = {
        "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        **spec.env,
    }
    if spec.gpus:  # in this order; what is reachable is decided by the nodes
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    for name, value in environment.items():
        options += ["--setenv", name, value]
    return options if filter_fd is None else [*options, "--seccomp", str(filter_fd)]


def _protect_init(gpus: bool) -> list[str]:
    """Return the options that keep the program from writing the init's memory through `/proc`.

    CUDA writes the names of its threads to `/proc/self/task/<id>/comm` and fails if it cannot. So
    with GPUs `/proc` stays writable and only the init is hidden.
    """
    if gpus:
        return ["--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
    return ["--remount-ro", "/proc"]


def _limit_processes(spec: SandboxSpec, group: Group | None) -> list[str]:
    # Counted inside the namespace, so that a user's other processes do not count. Where a control
    # group holds the limit it comes first, because it tells that it was reached.
    spare = 8 if group is not None and group.limits_processes else 1  # the guard
    wanted, ceiling = spec.limits.processes + spare, resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
    return [tool("prlimit"), f"--nproc={most}", "--"]


def _guard(spec: SandboxSpec, grace_seconds: float) -> list[str]:
    """Ends the program should the worker hang. A program could stop it; the worker it cannot."""
    seconds = spec.limits.longest_seconds + GUARD_SECONDS
    kill = f"--kill-after={max(grace_seconds, 0.1):.3f}"
    return [tool("timeout"), "--foreground", kill, f"{seconds:.3f}"]


def _popen(
    command: Sequence[str], spec: SandboxSpec, descriptors: list[int]
) -> subprocess.Popen[bytes]:
    streams = [
        subprocess.DEVNULL if stream == DEVNULL else stream
        for stream in (spec.stdin, spec.stdout, spec.stderr)
    ]
    return subprocess.Popen(
        command,
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        env={"PATH": TRUSTED_PATH},
        cwd="/",
        pass_fds=descriptors,
        start_new_session=True,
    )
