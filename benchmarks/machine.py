"""Which machine a benchmark ran on: figures, and bars, hold there alone."""

from __future__ import annotations

from typing import Any

import psutil

from services.worker.hardware import hardware_class, read_cpu


def about_machine() -> dict[str, Any]:
    """Return processor, hardware class, cores and load, for the last line of a benchmark."""
    cpu = read_cpu()
    return {
        "processor": cpu.model,
        "hardware_class": hardware_class(cpu),
        "cores": psutil.cpu_count(),
        "load": round(psutil.getloadavg()[0], 1),
    }
