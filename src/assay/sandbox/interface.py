"""What every sandbox backend offers: the words, the limits and the two protocols."""

import signal
import threading
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

DEVNULL = -1
"""Stands for "no such stream" in `SandboxSpec.stdin`, `stdout` and `stderr`."""

Reason = Literal[
    "exited", "wall", "warm_up", "memory", "host_memory", "cancelled", "cpu", "disk", "processes"
]


#: Slurm and systemd signal all processes of a job or unit; guardians of memory in user space kill.
_FOREIGN_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})


class SandboxError(RuntimeError):
    """A program could not be started or cleaned up; says nothing about the program itself."""


class SandboxUnavailable(SandboxError):
    """The backend that was asked for by name does not work on this machine."""


class Guarantee(StrEnum):
    """What a backend holds against the code inside it; `Sandbox.probe` shows which."""

    NO_NETWORK = "no_network"
    FILES_CONFINED = "files_confined"
    SECRETS_HIDDEN = "secrets_hidden"
    PROCESSES_HIDDEN = "processes_hidden"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    CPU_LIMIT = "cpu_limit"
    DISK_LIMIT = "disk_limit"
    WALL_LIMIT = "wall_limit"
    KILL_TREE = "kill_tree"
    NO_PRIVILEGES = "no_privileges"
    SYSCALL_FILTER = "syscall_filter"


QUICK_GUARANTEES = frozenset(
    {
        Guarantee.NO_NETWORK,
        Guarantee.FILES_CONFINED,
        Guarantee.SECRETS_HIDDEN,
        Guarantee.NO_PRIVILEGES,
    }
)


ISOLATION_GUARANTEES = frozenset(Guarantee) - {Guarantee.CPU_LIMIT}
"""What must have held in a probe before code that nobody trusts is run. The share of processors
is not among it: without control groups nothing holds it, and it harms only the neighbours' speed.
"""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    `wall_seconds` and `cpu_seconds` are seconds (CPU of the whole tree), `memory_bytes` is for
    the whole tree, `file_bytes` is the size of any single file it writes. `cpus` is the share of
    processors it gets (1.5: one and a half at any time), `disk_bytes` and `disk_files` are what
    all its writable mounts together may hold.

    Of the time for which the host kept the program waiting for a processor, `starved_seconds` do
    not count as wall clock (see `starvation`).

    With `warm_up_seconds` the wall clock stands still until `Handle.start_clock` is called. A
    program for which nobody has called it after so many seconds ends with the reason `warm_up`.
    """

    wall_seconds: float
    memory_bytes: int
    processes: int = 256
    open_files: int = 1024
    file_bytes: int = 1 << 30
    cpu_seconds: float | None = None
    cpus: float | None = None
    disk_bytes: int | None = None
    disk_files: int | None = None
    starved_seconds: float = 0.0
    warm_up_seconds: float = 0.0

    @property
    def longest_seconds(self) -> float:
        """Time after which the program ends, however long it warmed up or was kept waiting."""
        return self.warm_up_seconds + self.wall_seconds + self.starved_seconds

    def __post_init__(self) -> None:
        positive = (
            self.wall_seconds,
            self.memory_bytes,
            self.processes,
            self.open_files,
            self.file_bytes,
            self.cpu_seconds,
            self.cpus,
            self.disk_bytes,
            self.disk_files,
        )
        if any(value is not None and value <= 0 for value in positive):
            raise ValueError(f"limits must be positive: {self}")
        if self.starved_seconds < 0 or self.warm_up_seconds < 0:
            raise ValueError(f"limits must not be negative: {self}")


@dataclass(frozen=True)
class Mount:
    """A host file or folder and the absolute path under which the code sees it.

    Under bubblewrap and Docker a target may not lie over the system, the interpreter or the
    kernel's folders. Under a root worker, a read-only source must be readable by other users (its
    parents need not be), and a writable one belongs to the program's user until the program has
    ended; no two live programs may share it. A source that is a character device (a GPU node) is
    passed through as a device.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Keep:
    """What lets a program outlive the process that started it, until another one adopts it.

    `folder` is an empty folder of this user alone, where the backend leaves what it needs to find
    the program again. What the program prints goes to the file `output`: the first `most_bytes`,
    and in the end, if there was more, a line that says how much was left out and the last
    `tail_bytes`. `labels` tell people what the program is. `descriptors` stay open as long as it
    may run: locks, for example.
    """

    folder: Path
    output: Path
    most_bytes: int
    tail_bytes: int
    labels: Mapping[str, str] = field(default_factory=dict)
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True)
class SandboxSpec:
    """One program to start.

    `env` is everything of ours that the program sees besides PATH, HOME and LANG (which it may
    override). `cwd` and `argv` use paths as the code sees them (`Sandbox.path`); the interpreter
    is `Sandbox.python`. The three streams are descriptors that stay the caller's to close;
    `DEVNULL` connects nothing. `gpus` are the identifiers (UUIDs) of the only GPUs it may use.
    `keep` is for backends that adopt (`Sandbox.adopts`); `stdout` and `stderr` are not used then,
    and `name` must be the program's own: no two live ones may share it. `sees_held_out` is for
    programs that are shown held-out data: they may leave nothing behind that another sandbox could
    read, and get a stricter filter.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    cwd: str
    limits: Limits
    stdin: int = DEVNULL
    stdout: int = DEVNULL
    stderr: int = DEVNULL
    gpus: tuple[str, ...] = ()
    keep: Keep | None = None
    sees_held_out: bool = False


@dataclass(frozen=True)
class Exit:
    """How a program ended.

    `disk` and `processes` mean that it failed after it had run into that limit. `disk` is also the
    reason when memory ran out and files on volumes in memory hold most of it. `code` is the exit
    code, negative for a signal. `cpu_seconds` covers the whole tree where control groups are
    there, otherwise it is a lower bound. `peak_memory_bytes` is None when nothing could measure
    it. `host_memory` means that the kernel killed it for memory that others took: it had not
    reached its own limit. For `starved_seconds` it was kept waiting for a processor.
    `wall_seconds` do not contain `warm_up_seconds`, which passed before the clock was started; of
    a program with a warm-up whose clock nobody started, that is all its time.

    `code_is_certain` is False where the backend saw a status of 128 + n alone: `code` is -n then,
    but the program may as well have exited with 128 + n itself.
    """

    reason: Reason
    code: int
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int | None
    code_is_certain: bool = True
    starved_seconds: float = 0.0
    warm_up_seconds: float = 0.0

    @property
    def signalled(self) -> bool:
        """Whether it ended by a signal that an engine or an operator sends, or may have.

        A program can send itself the same.
        """
        return self.reason == "exited" and -self.code in _FOREIGN_SIGNALS


@runtime_checkable
class Handle(Protocol):
    """A started program."""

    @property
    def pid(self) -> int:
        """Process id, on the host, of the outermost process."""
        ...

    def wait(self, cancel: threading.Event | None = None) -> Exit:
        """Enforce the limits until the program ends; safe to call again afterwards.

        On overrun or cancellation the program gets SIGTERM, then the backend's grace, then its
        whole tree is killed. Call it from the thread that called `Sandbox.start` (see there).

        Raises `SandboxError` when the program never started or its tree would not die.
        """
        ...

    def kill(self) -> None:
        """Kill the whole tree now, without grace; may be called from any thread, repeatedly."""
        ...

    def start_clock(self, at: float | None = None) -> None:
        """Start the wall clock of a program with `Limits.warm_up_seconds`, now or since `at` (of
        the monotonic clock); does nothing when it runs. May be called from any thread."""
        ...

    def gauges(self) -> dict[str, float]:
        """What the tree uses right now, as far as it is known: `cpu_seconds` so far,
        `memory_bytes`, `processes`. May be called from any thread."""
        ...

    def starved_seconds(self) -> float:
        """Seconds for which the host has kept the tree waiting for a processor so far; 0 where
        nobody counts. May be called from any thread."""
        ...


@runtime_checkable
class Sandbox(Protocol):
    """A way of starting programs that are not trusted."""

    @property
    def name(self) -> str:
        """`docker`, `bubblewrap` or `subprocess`."""
        ...

    @property
    def isolated(self) -> bool:
        """Whether the code is kept away from the host; False means: trust the code."""
        ...

    @property
    def adopts(self) -> bool:
        """Whether programs with `SandboxSpec.keep` outlive this process; see `adopt`."""
        ...

    @property
    def python(self) -> str:
        """The Python interpreter, as the code sees it."""
        ...

    @property
    def facts(self) -> dict[str, str]:
        """What a result's provenance says about the backend: versions, the digest of the image."""
        ...

    def path(self, mount: Mount) -> str:
        """The path under which the code sees `mount`."""
        ...

    def probe(self, quick: bool = False) -> dict[Guarantee, bool]:
        """Run small attacks and report which guarantees held.

        With `quick`, only `QUICK_GUARANTEES` (no network, files confined, secrets hidden, no
        privileges) are tried and reported; the limits on memory, processes and wall clock, the
        death of the whole tree, hidden processes and the system call filter are left out.
        """
        ...

    def start(self, spec: SandboxSpec) -> Handle:
        """Start a program.

        Under bubblewrap the program dies with the *thread* that started it, so `start` and
        `Handle.wait` belong in one thread that lives until the program has ended.

        Raises `SandboxError` when it cannot be started, `ValueError` for a malformed spec.
        """
        ...

    def adopt(self, spec: SandboxSpec) -> Handle | None:
        """Go on with a program that a process which is no more has started with this spec.

        Its time counts from its start. A program that has ended meanwhile gives its end to `wait`.
        None: it was never started, and nothing of it is left.

        Raises `SandboxError` when it was started and nobody knows how it ended.
        """
        ...


@dataclass(frozen=True)
class SandboxSettings:
    """Everything needed to open a backend in another process; can be pickled.

    `grace_seconds` lie between SIGTERM and the kill. `scratch` is a folder for what a backend has
    to write.

    For `docker`: `docker_host` is the engine's socket (None: `$DOCKER_HOST`, else the usual one).
    `image` is an image with everything the codebases import (None: an empty one, into which this
    host's system and interpreter are mounted read-only). `scope` labels the containers; leftovers
    are looked for among those with the same label only.
    """

    name: str
    _: KW_ONLY
    grace_seconds: float = 2.0
    scratch: Path
    docker_host: str | None = None
    image: str | None = None
    scope: str = "assay"
