"""A driver with GPUs in memory that speaks the calls of `pynvml` which the worker makes."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


@dataclass
class FakeGpu:
    """One GPU, or one part of one (`parts` of another)."""

    uuid: str
    name: str = "NVIDIA H200"
    total: int = 141 * GIB
    used: int = 0
    reserved: int = 600 << 20
    processes: int = 0
    desktop: dict[int, int | None] = field(default_factory=dict)
    """Processes that draw, with the memory they hold; `computing` of them compute besides."""
    computing: set[int] = field(default_factory=set)
    screen: bool = False
    minor: int | None = None
    ecc: int | None = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    xids: deque[int] = field(default_factory=deque)
    lost: bool = False
    parts: list[FakeGpu] = field(default_factory=list)
    whole: FakeGpu | None = None
    watched: bool = False


class FakeNvml:
    """What `import pynvml` gives. `hang` makes every call wait; `broken` makes every call fail."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_UNKNOWN = 999
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8
    nvmlMemory_v2 = 0x02000028

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, *gpus: FakeGpu) -> None:
        self.gpus = list(gpus)
        self.started = 0
        self.broken = False
        self.go = threading.Event()
        self.go.set()
        for gpu in gpus:
            for part in gpu.parts:
                part.whole = gpu

    def _check(self, gpu: FakeGpu | None = None) -> None:
        self.go.wait(30)
        if self.broken:
            raise self.NVMLError(self.NVML_ERROR_UNKNOWN)
        if gpu is not None and (gpu.lost or (gpu.whole is not None and gpu.whole.lost)):
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)

    def _unless(self, wrong: bool) -> None:
        if wrong:
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

    def nvmlInit(self) -> None:
        self._check()
        self.started += 1

    def nvmlShutdown(self) -> None:
        self._check()

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check()
        return "580.1"

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._check(self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._check()
        for gpu in self.gpus:
            for each in (gpu, *gpu.parts):
                if each.uuid == uuid:
                    self._check(each)
                    return each
        raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        self._check(gpu)
        self._unless(gpu.name.startswith("NVIDIA L4"))
        return [int(bool(gpu.parts)), int(bool(gpu.parts))]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        self._check(gpu)
        if index >= len(gpu.parts):
            raise self.NVMLError(self.NVML_ERROR_NOT_FOUND)
        return gpu.parts[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:
        self._check(gpu)
        if gpu.whole is None:
            raise self.NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        return gpu.whole

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        self._check(gpu)
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        self._check(gpu)
        return gpu.name

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        self._check(gpu)
        if version is None:  # the first version counts what the driver keeps, too
            return SimpleNamespace(total=gpu.total, used=gpu.used + gpu.reserved)
        self._unless(gpu.whole is not None)
        return SimpleNamespace(total=gpu.total, used=gpu.used, reserved=gpu.reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self._check(gpu)
        strangers = range(10_000, 10_000 + gpu.processes)
        return [SimpleNamespace(pid=pid) for pid in (*strangers, *gpu.computing)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        self._unless(gpu.whole is not None)
        return [SimpleNamespace(pid=p, usedGpuMemory=used) for p, used in gpu.desktop.items()]

    def nvmlDeviceGetDisplayActive(self, gpu: FakeGpu) -> int:
        self._check(gpu)
        self._unless(gpu.whole is not None)
        return int(gpu.screen)

    def nvmlDeviceGetMinorNumber(self, gpu: FakeGpu) -> int:
        self._check(gpu)
        return self.gpus.index(gpu) if gpu.minor is None else gpu.minor

    def nvmlEventSetCreate(self) -> list[FakeGpu]:
        self._check()
        return []

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: list[FakeGpu]) -> None:
        self._check(gpu)
        assert kinds == self.nvmlEventTypeXidCriticalError
        gpu.watched = True
        events.append(gpu)

    def nvmlEventSetWait_v2(self, events: list[FakeGpu], milliseconds: int) -> Any:
        self._check()
        for gpu in events:
            if gpu.xids:
                return SimpleNamespace(eventData=gpu.xids.popleft())
        raise self.NVMLError(self.NVML_ERROR_TIMEOUT)

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int | None:
        self._check(gpu)
        self._unless(gpu.ecc is None)
        return gpu.ecc

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        self._check(gpu)
        return gpu.rows

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        self._check(gpu)
        self._unless(gpu.whole is not None)
        return SimpleNamespace(gpu=75, memory=20)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        self._check(gpu)
        return 350_000
