"""Measures what a tree of processes uses: by control group where there is one, else by polling."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from assay.sandbox.cgroups import Group
from assay.sandbox.interface import Limits
from assay.sandbox.starvation import Starvation, threads_of, waits_of


@dataclass(frozen=True)
class Usage:
    """CPU seconds and peak memory in bytes so far, and which limits the kernel had to enforce.

    `out_of_host_memory`: members were killed for memory, and not for their own limit.
    `starved_seconds`: see `starvation`.
    """

    cpu_seconds: float = 0.0
    peak_bytes: int | None = None
    out_of_memory: bool = False
    out_of_processes: bool = False
    out_of_host_memory: bool = False
    starved_seconds: float = 0.0


def _kernel_children(pid: int) -> list[int] | None:
    """Children of every thread of `pid`; None where this kernel does not list them."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            found.extend(int(word) for word in (thread / "children").read_text().split())
        except FileNotFoundError:
            if thread.exists():
                return None
        except OSError:
            continue
    return found


def children(pid: int) -> list[int]:
    """Process ids of the direct children, without a scan of all processes where possible."""
    if sys.platform == "linux":
        listed = _kernel_children(pid)
        if listed is not None:
            return listed
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.Error:
        return []


def descendants(pid: int) -> Iterator[int]:
    """Process ids below `pid`, parents first. A daemon that left the tree is not among them."""
    pending = children(pid)
    seen: set[int] = set()
    while pending:
        child = pending.pop(0)
        if child not in seen:
            seen.add(child)
            yield child
            pending.extend(children(child))


class Meter:
    """Samples one tree.

    Without a control group, memory is the sum of resident sizes taken every `interval` seconds
    (shared pages are divided among their users before a tree counts as over its limit), and CPU
    time misses what lived and died between two samples.
    """

    def __init__(self, pid: int, limits: Limits, group: Group | None) -> None:
        self._pid = pid
        self._limit = limits.memory_bytes
        self._group = group
        self._group_memory = group is not None and group.limits_memory
        self._group_cpu = group is not None and group.counts_cpu
        self._cpu: dict[tuple[int, float], float] = {}
        self._peak: int | None = None
        self._exceeded = False
        complete = self._group_memory and self._group_cpu
        self.interval = 0.05 if complete else 0.1
        self._starvation = Starvation(
            self._waits,
            self._cpu_seconds,
            limits.cpus,
            pressure=(lambda: 0.0) if group is None else group.cpu_pressure,
        )

    @property
    def exact_memory(self) -> bool:
        """Whether peak memory is counted by the kernel rather than polled."""
        return self._group_memory

    def sample(self, *, up_to_date: bool = False) -> Usage:
        """The usage so far; never fails for processes that vanish meanwhile."""
        if not (self._group_memory and self._group_cpu):
            self._poll_tree()
        refused = self._group is not None and self._group.out_of_processes()
        killed = self._out_of_memory()
        own = killed and self._own_limit()
        return Usage(
            self._cpu_seconds(),
            self._peak_bytes(),
            own,
            refused,
            out_of_host_memory=killed and not own,
            starved_seconds=self._starvation.seconds(now=up_to_date),
        )

    def starved_seconds(self) -> float:
        """Seconds for which the host has kept the tree waiting so far."""
        return self._starvation.seconds()

    def gauges(self) -> dict[str, float]:
        """What the tree uses right now; never fails for processes that vanish meanwhile."""
        if self._group is not None and self._group_memory and self._group_cpu:
            return self._group.gauges()
        resident = count = 0
        cpu = dict(self._cpu)  # with those that ended; the other thread adds to the original
        for pid in (self._pid, *descendants(self._pid)):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                resident += process.memory_info().rss
                cpu[pid, process.create_time()] = _cpu_time(process)
                count += 1
        used = {"memory_bytes": float(resident), "processes": float(count)}
        seconds = self._cpu_seconds() if self._group_cpu else sum(cpu.values())
        return {"cpu_seconds": seconds} | used if count else {}

    def _cpu_seconds(self) -> float:
        if self._group is not None and self._group_cpu:
            return self._group.cpu_seconds()
        return sum(self._cpu.values())

    def _peak_bytes(self) -> int | None:
        if self._group is not None and self._group_memory:
            return self._group.peak_memory()
        return self._peak

    def _out_of_memory(self) -> bool:
        if self._group is not None and self._group_memory:
            return self._group.out_of_memory()
        return self._exceeded

    def _own_limit(self) -> bool:
        return self._group is None or not self._group_memory or self._group.reached_memory_limit()

    def _waits(self) -> dict[int, float]:
        if self._group is not None:
            return waits_of(self._group.threads())
        pids = (self._pid, *descendants(self._pid))
        return waits_of(tid for pid in pids for tid in threads_of(pid))

    def _poll_tree(self) -> None:
        processes = []
        resident = 0
        for pid in (self._pid, *descendants(self._pid)):
            try:
                process = psutil.Process(pid)
                self._cpu[pid, process.create_time()] = _cpu_time(process)
                resident += process.memory_info().rss
            except psutil.Error:
                continue
            processes.append(process)
        if resident > self._limit:
            resident = _proportional(processes)
        self._peak = max(self._peak or 0, resident)
        self._exceeded = self._exceeded or resident > self._limit


def _cpu_time(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _proportional(processes: list[psutil.Process]) -> int:
    """Memory with shared pages divided among their users, where the system can tell."""
    total = 0
    for process in processes:
        try:
            full = process.memory_full_info()
            total += int(getattr(full, "pss", full.rss))
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            total += process.memory_info().rss if process.is_running() else 0
    return total
