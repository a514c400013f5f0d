"""Measures a container: from its control group where this host shows it, else by asking Docker."""

import contextlib
import time
from pathlib import Path
from typing import Any

from assay.sandbox.cgroups import Group, find_hierarchies
from assay.sandbox.docker.engine import Engine, translated
from assay.sandbox.interface import SandboxError
from assay.sandbox.meter import Usage
from assay.sandbox.starvation import Starvation, waits_of

_ASK_SECONDS = 1.0


def container_group(pid: int, container: str) -> Group | None:
    """The control groups of a container with the process `pid`, or None where they are hidden."""
    try:
        membership = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    own = "".join(f"{line}\n" for line in membership.splitlines() if container in line)
    found = find_hierarchies(mounts, own)
    v1 = {name: path for name, path in found.v1.items() if container in str(path)}
    v2 = found.v2 if found.v2 and container in str(found.v2) else None
    group = Group(v1, v2, "memory" in v1 or v2 is not None, True)
    return group if group.limits_memory and group.counts_cpu else None


class GroupMeter:
    """Reads the container's control group, which counts everything that ever ran in it.

    CPU time counts from here on, because setting up a container takes some, too; of a program that
    `began` earlier (monotonic seconds), all of it. `processors` is its share.
    """

    interval = 0.05

    def __init__(
        self, group: Group, processors: float | None, *, began: float | None = None
    ) -> None:
        self._group = group
        self._before = 0.0 if began is not None else group.cpu_seconds()
        self._usage = Usage()
        self._starvation = Starvation(
            lambda: waits_of(group.threads()),
            lambda: group.cpu_seconds() - self._before,
            processors,
            pressure=group.cpu_pressure,
            began=began,
        )

    def sample(self, *, up_to_date: bool = False) -> Usage:
        """The usage so far, or when last seen if the group is gone already."""
        group, last = self._group, self._usage
        peaks = [peak for peak in (group.peak_memory(), last.peak_bytes) if peak is not None]
        killed = group.out_of_memory()
        own = killed and group.reached_memory_limit()
        self._usage = Usage(
            max(group.cpu_seconds() - self._before, last.cpu_seconds),
            max(peaks, default=None),
            own or last.out_of_memory,
            group.out_of_processes() or last.out_of_processes,
            out_of_host_memory=(killed and not own) or last.out_of_host_memory,
            starved_seconds=self._starvation.seconds(now=up_to_date),
        )
        return self._usage

    def starved_seconds(self) -> float:
        """Seconds for which the host has kept the program waiting so far."""
        return self._starvation.seconds()

    def gauges(self) -> dict[str, float]:
        """What is used right now, as the control group says; CPU time as in `sample`."""
        found = self._group.gauges()
        if "cpu_seconds" in found:
            found["cpu_seconds"] = max(0.0, found["cpu_seconds"] - self._before)
        return found


class EngineMeter:
    """Asks the engine once a second: all values are lower bounds of what was used.

    That memory ran out is seen at the end only, from the container's state. How long the program
    was kept waiting for a processor is not known.
    """

    interval = 0.1

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container
        self._next = 0.0
        self._usage = Usage()

    def sample(self, *, up_to_date: bool = False) -> Usage:
        """The usage when last asked; never fails."""
        if time.monotonic() >= self._next:
            with contextlib.suppress(SandboxError):
                self._usage = self._ask()
            self._next = time.monotonic() + _ASK_SECONDS
        return self._usage

    def starved_seconds(self) -> float:
        """Nobody counts them."""
        return 0.0

    def gauges(self) -> dict[str, float]:
        """What is used right now, as the engine says."""
        found = self._stats()
        gauges = {
            "cpu_seconds": ((found.get("cpu_stats") or {}).get("cpu_usage") or {}).get(
                "total_usage", 0
            )
            / 1e9,
            "memory_bytes": (found.get("memory_stats") or {}).get("usage", 0),
            "processes": (found.get("pids_stats") or {}).get("current", 0),
        }
        return {name: float(value) for name, value in gauges.items() if value}

    def _stats(self) -> dict[str, Any]:
        with translated("Docker tells no usage"):
            found: dict[str, Any] = self._engine.client.stats(
                self._container, stream=False, one_shot=True
            )
        return found

    def _ask(self) -> Usage:
        found = self._stats()
        memory = found.get("memory_stats") or {}
        peak = max(memory.get("max_usage", 0), memory.get("usage", 0), self._usage.peak_bytes or 0)
        used = (found.get("cpu_stats") or {}).get("cpu_usage") or {}
        seconds = max(used.get("total_usage", 0) / 1e9, self._usage.cpu_seconds)
        processes = found.get("pids_stats") or {}
        crowded = processes.get("current", 0) >= processes.get("limit", 1 << 62)
        return Usage(seconds, peak or None, False, crowded or self._usage.out_of_processes)
