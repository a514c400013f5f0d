"""The machine that is measured: its GPU, its software, and what it lacks."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import threading
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "4090": 165e12}
"""Dense bfloat16 operations per second, by a part of the device's name."""
_PACKAGES = ("torch", "numpy", "psutil", "pydantic", "safetensors", "tokenizers", "transformers")


def facts() -> dict[str, Any]:
    """Device, driver, versions and date, and which packages are absent."""
    name, driver = [*query("name,driver_version"), None, None][:2]
    return {
        "device": name or "cpu",
        "driver": driver,
        "torch": _version("torch"),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "absent": [name for name in _PACKAGES if importlib.util.find_spec(name) is None],
    }


def peak() -> float | None:
    """Dense bfloat16 operations per second of the first GPU, where they are known."""
    name = next(iter(query("name")), "")
    return next((rate for part, rate in PEAK.items() if part in name), None)


def uuids() -> tuple[str, ...]:
    """The first GPU, as sandboxes name it; nothing without one."""
    return tuple(query("uuid")[:1])


def query(what: str) -> list[str]:
    """What the driver says about the first GPU; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        [cell.strip() for cell in found.stdout.strip().split(",")] if not found.returncode else []
    )


class MemoryPeak:
    """The most memory of the first GPU that was in use within a `with`, in bytes; None without
    a driver. What was in use before is taken off."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._before = _memory()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            now = _memory()
            if now is not None and self._before is not None:
                self.bytes = max(self.bytes or 0, now - self._before)


def _memory() -> int | None:
    found = query("memory.used")
    return int(found[0]) << 20 if found and found[0].isdigit() else None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
