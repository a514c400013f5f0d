"""What this host is: its hardware class, its CPU, what of it may be used.

A hardware class names the instruction set, not the model of the CPU. The libraries that do the
arithmetic choose their kernels by instruction set, and a different kernel adds up the same
numbers in a different order: the same codebase with the same seed gives results that are equal to
the last digit within a class, and differ by rounding, amplified by training, between classes.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

CPUINFO = Path("/proc/cpuinfo")
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Cpu:
    """The processor: `model` is for people, `flags` are the kernel's names of its features."""

    model: str
    machine: str
    flags: frozenset[str]


def read_cpu(cpuinfo: Path = CPUINFO) -> Cpu:
    """What the kernel says about the first processor; without flags where it says nothing."""
    machine = platform.machine().lower()
    fields: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip().lower(), value.strip())
    model = fields.get("model name") or platform.processor() or machine
    flags = fields.get("flags") or fields.get("features") or ""
    return Cpu(model, machine, frozenset(flags.split()))


def hardware_class(cpu: Cpu) -> str:
    """The class results are comparable within: `cpu-amx`, `cpu-bf16`, … or plain `cpu`."""
    if cpu.machine in ("arm64", "aarch64"):
        return "cpu-arm64"
    ranked = {
        "amx_bf16": "cpu-amx",
        "avx512_bf16": "cpu-bf16",
        "avx512f": "cpu-avx512",
        "avx2": "cpu-avx2",
    }
    return next((name for flag, name in ranked.items() if flag in cpu.flags), "cpu")


def available_cpus() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int:
    """Bytes of memory of this host, or of the container it is in."""
    total = int(psutil.virtual_memory().total)
    try:
        text = _CGROUP_MEMORY.read_text().strip()
    except OSError:  # no control groups here, so nothing but the host limits us
        return total
    return min(total, int(text)) if text.isdigit() else total
