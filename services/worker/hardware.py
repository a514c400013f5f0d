"""What this host is: its hardware class, its processors, what of it may be used.

A hardware class names the instruction set, not the model of the CPU. The libraries that do the
arithmetic choose their kernels by instruction set, and a different kernel adds up the same
numbers in a different order: the same codebase with the same seed gives results that are equal to
the last digit within a class, and differ by rounding, amplified by training, between classes.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from assay.contracts.worker import Device
from assay.domain.errors import InvalidInput

CPUINFO = Path("/proc/cpuinfo")
_NOISE = re.compile(r"nvidia|geforce|tesla|hbm\w*|(\d+g\.)?\d+gb")
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


def gpu_class(devices: Sequence[Device]) -> str:
    """The class of a host with GPUs, by model and memory: `gpu-h200-141`, `gpu-a100-sxm4-40`.

    Raises:
        InvalidInput: they are of several kinds, so results would not be comparable.
    """
    classes = sorted({_gpu_name(device) for device in devices})
    if len(classes) != 1:
        raise InvalidInput(
            f"this host has GPUs of several kinds ({', '.join(classes)}); run a worker for each, "
            "with the UUIDs of one kind in ASSAY_WORKER_GPUS"
        )
    return classes[0][:64]


def _gpu_name(device: Device) -> str:
    words = re.split(r"[^a-z0-9.]+", device.name.lower())
    kept = [w for w in words if w and not _NOISE.fullmatch(w)] or ["unknown"]
    memory = [str(math.ceil(device.memory_bytes / (1 << 30)))] if device.memory_bytes else []
    return "-".join(["gpu", *kept, *memory]).replace(".", "_")


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
