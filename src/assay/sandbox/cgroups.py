"""Control groups: limits on memory, processes and CPU, accounting, a kill that misses nothing.

Works on version 1, version 2 and the hybrid of both. Groups are made below the group this process
already lives in, so that limits set on the worker keep holding for what it starts. Whatever the
machine does not allow is left out, and `Group` says what it has.
"""

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from assay.sandbox.interface import Limits

_PREFIX = "assay-"
_SUPERVISOR = "assay-supervisor"
_CONTROLLERS = {"memory", "pids", "cpuacct", "cpu"}
_PERIOD = 100_000  # microseconds over which a share of processors is counted
#: Memory is charged in pieces: one that does not fit leaves the group below its limit by so much.
_CHARGE = 4 << 20


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _keyed(text: str, key: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


@dataclass(frozen=True)
class Hierarchies:
    """Folders below which groups can be made: version 1 by controller, and version 2."""

    v1: dict[str, Path] = field(default_factory=dict)
    v2: Path | None = None

    def folders(self) -> list[Path]:
        # Two controllers may share a hierarchy.
        return [*dict.fromkeys(self.v1.values()), *([self.v2] if self.v2 else [])]


def find_hierarchies(mountinfo: str, membership: str) -> Hierarchies:
    """Read `/proc/self/mountinfo` and `/proc/self/cgroup` texts into writable group folders."""
    own: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        root, mount_point = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup":
            for controller in set(options.split(",")) & _CONTROLLERS & set(own):
                v1[controller] = _own_folder(mount_point, root, own[controller])
        elif kind == "cgroup2" and "" in own:
            v2 = _own_folder(mount_point, root, own[""])
    writable = {name: path for name, path in v1.items() if os.access(path, os.W_OK)}
    return Hierarchies(writable, v2 if v2 and os.access(v2, os.W_OK) else None)


def _own_folder(mount_point: str, root: str, path: str) -> Path:
    inside = path.removeprefix(root) if root != "/" else path
    folder = Path(mount_point) / inside.lstrip("/")
    if not folder.is_dir():  # a container's view: the path belongs to the host
        folder = Path(mount_point)
    return folder.parent if folder.name == _SUPERVISOR else folder


@dataclass
class Group:
    """The groups of one sandbox, over all hierarchies."""

    v1: dict[str, Path]
    v2: Path | None
    limits_memory: bool
    limits_processes: bool

    @property
    def counts_cpu(self) -> bool:
        return self.v2 is not None or "cpuacct" in self.v1

    def join_files(self) -> list[str]:
        """Files into which a process writes `0` to become a member."""
        return [str(folder / "cgroup.procs") for folder in self._folders()]

    def _folders(self) -> list[Path]:
        return Hierarchies(self.v1, self.v2).folders()

    def cpu_seconds(self) -> float:
        """CPU time of everything that was ever in the group."""
        if self.v2:
            return _keyed(_read(self.v2 / "cpu.stat"), "usage_usec") / 1e6
        return int(_read(self.v1["cpuacct"] / "cpuacct.usage") or 0) / 1e9

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a member for memory."""
        if "memory" in self.v1:
            return _keyed(_read(self.v1["memory"] / "memory.oom_control"), "oom_kill") > 0
        return self.v2 is not None and _keyed(_read(self.v2 / "memory.events"), "oom_kill") > 0

    def reached_memory_limit(self) -> bool:
        """Whether the group itself was ever full, rather than one above it.

        Version 1 counts memory that could be reclaimed after all, too.
        """
        if "memory" in self.v1:
            # Charges that fail for memory and swap together are not counted in every kernel.
            peak, limit = (
                int(_read(self.v1["memory"] / f"memory.{name}_in_bytes") or 0)
                for name in ("max_usage", "limit")
            )
            return peak >= limit - _CHARGE
        return self.v2 is not None and _keyed(_read(self.v2 / "memory.events"), "oom") > 0

    def out_of_processes(self) -> bool:
        """Whether the kernel refused a member another process."""
        folder = self.v1.get("pids", self.v2)
        return folder is not None and _keyed(_read(folder / "pids.events"), "max") > 0

    def peak_memory(self) -> int | None:
        """Largest memory in bytes, page cache included; None where the kernel does not say."""
        if "memory" in self.v1:
            text = _read(self.v1["memory"] / "memory.max_usage_in_bytes")
        else:
            text = _read(self.v2 / "memory.peak") if self.v2 else ""
        return int(text) if text.strip() else None

    def gauges(self) -> dict[str, float]:
        """What the members use right now, as far as the kernel says."""
        found = {"cpu_seconds": self.cpu_seconds()} if self.counts_cpu else {}
        memory = self.v1.get("memory")
        used = _read(memory / "memory.usage_in_bytes") if memory else ""
        used = used or (_read(self.v2 / "memory.current") if self.v2 else "")
        pids = self.v1.get("pids", self.v2)
        count = _read(pids / "pids.current") if pids else ""
        for name, text in (("memory_bytes", used), ("processes", count)):
            if text.strip().isdigit():
                found[name] = float(text)
        return found

    def members(self) -> list[int]:
        """Process ids in any of the groups."""
        found: set[int] = set()
        for folder in self._folders():
            found.update(int(line) for line in _read(folder / "cgroup.procs").split())
        return sorted(found - {0, os.getpid()})

    def cpu_pressure(self) -> float:
        """Seconds for which at least one member waited for a processor; 0 where nobody counts."""
        text = _read(self.v2 / "cpu.pressure") if self.v2 else ""
        for line in text.splitlines():
            if line.startswith("some "):
                return int(line.rpartition("total=")[2]) / 1e6
        return 0.0

    def threads(self) -> list[int]:
        """Ids of the members' threads."""
        folder = self.v1.get("cpuacct") or next(iter(self.v1.values()), None)
        path = self.v2 / "cgroup.threads" if folder is None and self.v2 else None
        path = folder / "tasks" if folder is not None else path
        return [] if path is None else [int(line) for line in _read(path).split()]

    def kill(self) -> None:
        """Kill every member, in one step where version 2 is there."""
        if self.v2:
            with contextlib.suppress(OSError):
                (self.v2 / "cgroup.kill").write_text("1")
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, 9)

    def drop_cache(self) -> None:
        """Drop the pages of files that the members were the first to read.

        The page cache is shared by all sandboxes of a host. A page that is in it takes a hundredth
        of the time to read, so a program that sees held-out data could leave a bit in every page
        that nobody else has read. The kernel charges a page to whoever read it first, so these are
        the pages that emptying the group drops. To be called when no member is left.
        """
        if "memory" in self.v1:
            _write(self.v1["memory"] / "memory.force_empty", 0)
        elif self.v2 is not None:  # a kernel before 5.19 has no such file
            held = _read(self.v2 / "memory.current").strip()
            _write(self.v2 / "memory.reclaim", held or 0)

    def remove(self) -> bool:
        """Remove the empty groups; False when something in them would not die within 1 s."""
        deadline = time.monotonic() + 1.0
        left = self._folders()
        while left:
            left = [folder for folder in left if not _removed(folder)]
            if left and time.monotonic() > deadline:
                return False
            if left:
                time.sleep(0.005)
        return True


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _write(path: Path, value: int | str) -> bool:
    try:
        path.write_text(str(value))
    except OSError:
        return False
    return True


class ControlGroups:
    """Makes a `Group` per sandbox in the hierarchies of this machine."""

    def __init__(self, hierarchies: Hierarchies | None = None) -> None:
        if hierarchies is None:
            hierarchies = find_hierarchies(
                _read(Path("/proc/self/mountinfo")), _read(Path("/proc/self/cgroup"))
            )
        if hierarchies.v2:
            _delegate(hierarchies.v2)
        self.hierarchies = _usable(hierarchies)

    def create(self, limits: Limits, wrapper_processes: int = 0) -> Group | None:
        """A new group with the limits set, or None where no group can be made.

        `wrapper_processes` of a backend's own come on top of the program's.
        """
        name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        v1: dict[str, Path] = {}
        for controller, base in self.hierarchies.v1.items():
            if base / name in v1.values() or _made(base / name):
                v1[controller] = base / name
        v2 = self.hierarchies.v2
        v2 = v2 / name if v2 and _made(v2 / name) else None
        if not v1 and not v2:
            return None
        processes = limits.processes + wrapper_processes
        if limits.cpus is not None:
            _limit_cpu(v1, v2, limits.cpus)
        return Group(
            v1,
            v2,
            limits_memory=_limit_memory(v1, v2, limits),
            limits_processes=_limit_processes(v1, v2, processes),
        )

    def sweep(self) -> int:
        """Empty and remove groups whose owner is gone (it was killed); returns how many.

        Programs die with their owner, except in the few milliseconds before their wrapper has
        asked for that; this closes the gap at the next start.
        """
        count = 0
        for base in self.hierarchies.folders():
            for folder in _orphans(base):
                Group({}, folder, limits_memory=False, limits_processes=False).kill()
                count += _removed(folder)
        return count


def _usable(hierarchies: Hierarchies) -> Hierarchies:
    """The hierarchies in which a child process can really be put into a new group.

    Being allowed to make a folder does not yet mean being allowed to move a process there.
    """
    v1 = {name: base for name, base in hierarchies.v1.items() if _can_join(base)}
    v2 = hierarchies.v2
    return Hierarchies(v1, v2 if v2 and _can_join(v2) else None)


def _can_join(base: Path) -> bool:
    folder = base / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    if not _made(folder):
        return False
    try:
        joined = subprocess.run(
            ["/bin/sh", "-c", 'echo 0 >"$1"', "join", str(folder / "cgroup.procs")],
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return joined.returncode == 0
    finally:
        Group({}, folder, limits_memory=False, limits_processes=False).remove()


def _orphans(base: Path) -> Iterator[Path]:
    for folder in base.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            yield folder


def _made(folder: Path) -> bool:
    try:
        folder.mkdir()
    except OSError:
        return False
    return True


def _limit_memory(v1: dict[str, Path], v2: Path | None, limits: Limits) -> bool:
    if "memory" in v1:
        folder = v1["memory"]
        held = _write(folder / "memory.limit_in_bytes", limits.memory_bytes)
        # Absent where the kernel counts no swap.
        _write(folder / "memory.memsw.limit_in_bytes", limits.memory_bytes)
        return held
    if v2 is None or not _write(v2 / "memory.max", limits.memory_bytes):
        return False
    _write(v2 / "memory.swap.max", 0)
    _write(v2 / "memory.oom.group", 1)
    return True


def _limit_processes(v1: dict[str, Path], v2: Path | None, processes: int) -> bool:
    folder = v1.get("pids", v2)
    return folder is not None and _write(folder / "pids.max", processes)


def _limit_cpu(v1: dict[str, Path], v2: Path | None, cpus: float) -> None:
    quota = max(1000, round(cpus * _PERIOD))  # the kernel takes no less than a millisecond
    if "cpu" in v1:
        _write(v1["cpu"] / "cpu.cfs_period_us", _PERIOD)
        _write(v1["cpu"] / "cpu.cfs_quota_us", quota)
    elif v2 is not None:
        _write(v2 / "cpu.max", f"{quota} {_PERIOD}")


def _delegate(base: Path) -> None:
    """Let version 2 controllers act below `base`, where that touches nobody else's processes.

    A group that holds processes cannot hand controllers to its children, so this process moves
    into a leaf of its own first; only when all members are this process and its descendants.
    """
    wanted = {"memory", "pids", "cpu"} & set(_read(base / "cgroup.controllers").split())
    if wanted <= set(_read(base / "cgroup.subtree_control").split()):
        return
    members = [int(line) for line in _read(base / "cgroup.procs").split()]
    if not all(_is_ours(pid) for pid in members):
        return
    leaf = base / _SUPERVISOR
    if not (_made(leaf) or leaf.is_dir()):
        return
    for pid in members:
        _write(leaf / "cgroup.procs", pid)
    _write(base / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(wanted)))


def _is_ours(pid: int) -> bool:
    own = os.getpid()
    while pid > 1 and pid != own:
        fields = _read(Path("/proc", str(pid), "stat")).rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return pid == own
