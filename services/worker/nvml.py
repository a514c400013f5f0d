"""GPUs as NVIDIA's management library (NVML) shows them.

A GPU that is falling off the bus can make a call hang for ever, so all calls are made by one
thread, and whoever asks waits for it for a bounded time.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.contracts.worker import Device
from assay.domain.errors import AssayError
from assay.domain.failure_codes import FailureCode
from assay.domain.states import DeviceState

T = TypeVar("T")
CALL_SECONDS = 10.0
_SET_TIMEOUT_MS = 0
_HARMLESS_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of a program, not of the device: a bad address, a kernel that was ended."""
_MEMORY_XIDS = frozenset({48, 63, 64, 92, 94, 95})
_LOST_XIDS = frozenset({79})


class NvmlError(AssayError):
    """NVML, or the device it was asked about, is in trouble."""

    code = FailureCode.GPU_TROUBLE

    def __init__(self, message: str, state: DeviceState = DeviceState.DRIVER_ERROR) -> None:
        super().__init__(message)
        self.state = state


@dataclass(frozen=True)
class Trouble:
    """Why a device is left out: the kind, and a sentence for people."""

    state: DeviceState
    detail: str

    @classmethod
    def of(cls, error: NvmlError) -> Trouble:
        """Return the trouble that an error of the driver means."""
        return cls(error.state, str(error))


@dataclass(frozen=True)
class Load:
    """Who uses a device, and how much of its memory.

    `processes` compute. Those that draw are not counted, also where they compute besides, as the
    programs of a desktop do: `display_bytes` is the memory they hold, 0 where there are none, and
    None where the driver does not tell.
    """

    processes: int
    used_bytes: int
    total_bytes: int
    display_bytes: int | None = 0


@dataclass(frozen=True)
class Board:
    """A GPU as the driver counts it, and what of it can be given to a program: the GPU itself, or
    its parts where it is divided (MIG). `minor` is the number of its node. One that the driver
    cannot ask has a `trouble` and no devices."""

    index: int
    uuid: str
    minor: int | None = None
    devices: tuple[Device, ...] = ()
    trouble: Trouble | None = None


class Nvml:
    """NVML by way of `module`, which is `pynvml` or speaks the same calls.

    Devices are named by UUID; those of a GPU that is divided (MIG) are its parts. Every method
    raises `NvmlError` when the driver does not answer as it should, or within `call_seconds`.
    """

    def __init__(self, module: Any, *, call_seconds: float = CALL_SECONDS) -> None:
        self._module = module
        self._calls = _OneThread(call_seconds)
        self._events: dict[str, Any] = {}
        self._called(module.nvmlInit)
        self.driver = _text(self._called(module.nvmlSystemGetDriverVersion))

    def boards(self) -> list[Board]:
        """All GPUs, in the order of the driver."""
        count = self._called(self._module.nvmlDeviceGetCount)
        return [self._board(index) for index in range(count)]

    def devices(self) -> list[Device]:
        """All devices that can be given to a program, in the order of the driver."""
        return [device for board in self.boards() for device in board.devices]

    def load(self, uuid: str) -> Load:
        """What uses a device right now."""
        return self._called(lambda: self._load(self._handle(uuid)))

    def watch(self, uuid: str) -> None:
        """From here on, `trouble` tells of errors that the driver reports for the device."""
        self._called(lambda: self._watch(uuid))

    def trouble(self, uuid: str) -> Trouble | None:
        """What is wrong with the device itself, if anything is: errors since the last look."""
        return self._called(lambda: self._trouble(uuid))

    def gauges(self, uuid: str) -> dict[str, float]:
        """Utilisation (0 to 1), memory and power, as far as the device tells."""
        return self._called(lambda: self._gauges(self._handle(uuid)))

    def restart(self) -> None:
        """Begin anew with the driver, which may have been reloaded."""
        self._events.clear()
        with contextlib.suppress(NvmlError):
            self._called(self._module.nvmlShutdown)
        self._called(self._module.nvmlInit)

    def _called(self, call: Callable[[], T]) -> T:
        try:
            return self._calls.call(call)
        except self._module.NVMLError as error:
            raise self._explained(error) from error

    def _explained(self, error: Any) -> NvmlError:
        module = self._module
        # A device that left the bus is not found by its UUID once the driver was reloaded.
        if error.value in (module.NVML_ERROR_GPU_IS_LOST, module.NVML_ERROR_NOT_FOUND):
            message = f"the GPU is off the bus (NVML: {error}); reset it, or restart the host"
            return NvmlError(message, DeviceState.LOST)
        return NvmlError(f"NVML: {error}")

    def _handle(self, uuid: str) -> Any:
        return self._module.nvmlDeviceGetHandleByUUID(uuid)

    def _board(self, index: int) -> Board:
        try:
            return self._called(lambda: self._asked_board(index))
        except NvmlError as error:  # the others can still be used
            return Board(index, f"GPU {index}", trouble=Trouble.of(error))

    def _asked_board(self, index: int) -> Board:
        module = self._module
        whole = module.nvmlDeviceGetHandleByIndex(index)
        handles = list(self._parts(whole)) if self._is_divided(whole) else [whole]
        return Board(
            index,
            _text(module.nvmlDeviceGetUUID(whole)),
            self._optional(lambda: module.nvmlDeviceGetMinorNumber(whole)),
            tuple(self._device(handle) for handle in handles),
        )

    def _is_divided(self, whole: Any) -> bool:
        return bool(self._optional(lambda: self._module.nvmlDeviceGetMigMode(whole)[0]))

    def _parts(self, whole: Any) -> Iterator[Any]:
        module = self._module
        for index in range(module.nvmlDeviceGetMaxMigDeviceCount(whole)):
            with contextlib.suppress(module.NVMLError):  # places that hold no part
                yield module.nvmlDeviceGetMigDeviceHandleByIndex(whole, index)

    def _device(self, handle: Any) -> Device:
        module = self._module
        return Device(
            uuid=_text(module.nvmlDeviceGetUUID(handle)),
            name=_text(module.nvmlDeviceGetName(handle)),
            memory_bytes=self._memory(handle).total,
        )

    def _memory(self, handle: Any) -> Any:
        """What the driver keeps for itself does not count as used, where it tells them apart."""
        module = self._module
        try:
            return module.nvmlDeviceGetMemoryInfo(handle, version=module.nvmlMemory_v2)
        except module.NVMLError:
            return module.nvmlDeviceGetMemoryInfo(handle)

    def _load(self, handle: Any) -> Load:
        module = self._module
        computing = {each.pid for each in module.nvmlDeviceGetComputeRunningProcesses(handle)}
        found = self._optional(lambda: module.nvmlDeviceGetGraphicsRunningProcesses(handle))
        drawing = {each.pid: each.usedGpuMemory for each in found or ()}
        memory = self._memory(handle)
        return Load(
            len(computing - drawing.keys()),
            int(memory.used),
            int(memory.total),
            self._display_bytes(handle, drawing.values()),
        )

    def _display_bytes(self, handle: Any, held: Collection[int | None]) -> int | None:
        if held:
            told = [each for each in held if each is not None]
            return sum(told) if len(told) == len(held) else None
        shows = self._optional(lambda: self._module.nvmlDeviceGetDisplayActive(handle))
        return None if shows else 0  # a screen whose programs the driver does not list

    def _whole(self, handle: Any) -> Any:
        """The GPU that a part belongs to, or the GPU itself."""
        module = self._module
        found = self._optional(lambda: module.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
        return handle if found is None else found

    def _watch(self, uuid: str) -> None:
        module = self._module
        if uuid in self._events:
            return
        events = module.nvmlEventSetCreate()
        whole = self._whole(self._handle(uuid))
        kinds = module.nvmlEventTypeXidCriticalError
        if self._optional(lambda: module.nvmlDeviceRegisterEvents(whole, kinds, events) or True):
            self._events[uuid] = events

    def _trouble(self, uuid: str) -> Trouble | None:
        xids = set(self._xids(uuid)) - _HARMLESS_XIDS
        if xids:
            names = ", ".join(f"Xid {xid}" for xid in sorted(xids))
            return Trouble(_state_of(xids), f"the driver reports error {names}")
        whole = self._whole(self._handle(uuid))
        module = self._module
        errors = self._optional(
            lambda: module.nvmlDeviceGetTotalEccErrors(
                whole, module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, module.NVML_VOLATILE_ECC
            )
        )
        if errors:
            detail = f"{errors} memory errors that could not be corrected; reset the GPU"
            return Trouble(DeviceState.MEMORY_ERRORS, detail)
        rows = self._optional(lambda: module.nvmlDeviceGetRemappedRows(whole))
        if rows is None or not (rows[2] or rows[3]):
            return None
        waits = "rows of its memory wait to be replaced; reset the GPU"
        return Trouble(
            DeviceState.MEMORY_ERRORS, waits if rows[2] else "its memory wears out; replace it"
        )

    def _xids(self, uuid: str) -> Iterator[int]:
        events = self._events.get(uuid)
        while events is not None:
            try:
                found = self._module.nvmlEventSetWait_v2(events, _SET_TIMEOUT_MS)
            except self._module.NVMLError as error:
                if error.value == self._module.NVML_ERROR_TIMEOUT:  # there are no more
                    return
                raise
            yield int(found.eventData)

    def _gauges(self, handle: Any) -> dict[str, float]:
        module = self._module
        memory = self._memory(handle)
        found = {"memory_bytes": float(memory.used)}
        rates = self._optional(lambda: module.nvmlDeviceGetUtilizationRates(handle))
        if rates is not None:  # parts of a GPU tell none
            found["utilisation"] = rates.gpu / 100
        power = self._optional(lambda: module.nvmlDeviceGetPowerUsage(handle))
        if power is not None:
            found["power_watts"] = power / 1000
        return found

    def _optional(self, call: Callable[[], T]) -> T | None:
        """What some devices cannot tell; every other error is one."""
        module = self._module
        unknown = (
            module.NVML_ERROR_NOT_SUPPORTED,
            module.NVML_ERROR_INVALID_ARGUMENT,
            module.NVML_ERROR_NO_PERMISSION,
            module.NVML_ERROR_FUNCTION_NOT_FOUND,
        )
        try:
            return call()
        except module.NVMLError as error:
            if error.value in unknown:
                return None
            raise


class _OneThread:
    """Makes calls one after the other in a thread of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stuck: threading.Event | None = None
        threading.Thread(target=self._run, name="nvml", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    def call(self, call: Callable[[], T]) -> T:
        """Raises `NvmlError` when it does not return in time, or one before still has not."""
        if self._stuck is not None and not self._stuck.is_set():
            raise NvmlError("NVML does not answer", DeviceState.NO_ANSWER)
        done = threading.Event()
        results: list[T] = []
        errors: list[Exception] = []

        def job() -> None:
            try:
                results.append(call())
            except Exception as error:  # raised again where it was asked for
                errors.append(error)
            finally:
                done.set()

        self._jobs.put(job)
        if not done.wait(self._seconds):
            self._stuck = done
            raise NvmlError("NVML does not answer", DeviceState.NO_ANSWER)
        if errors:
            raise errors[0]
        return results[0]


def open_nvml() -> Nvml | None:
    """NVML of this machine; None where there is no driver.

    Raises:
        NvmlError: there is one, and it is in trouble, or the Python package is missing.
    """
    try:
        module = importlib.import_module("pynvml")
    except ModuleNotFoundError as error:
        raise NvmlError(
            "GPUs are looked for with nvidia-ml-py, which is not installed; "
            "remedy: pip install 'assay[gpu]'"
        ) from error
    try:
        return Nvml(module)
    except NvmlError as error:
        cause = error.__cause__
        absent = (module.NVML_ERROR_LIBRARY_NOT_FOUND, module.NVML_ERROR_DRIVER_NOT_LOADED)
        if getattr(cause, "value", None) in absent:
            return None
        raise


def _state_of(xids: Collection[int]) -> DeviceState:
    if not _LOST_XIDS.isdisjoint(xids):
        return DeviceState.LOST
    if not _MEMORY_XIDS.isdisjoint(xids):
        return DeviceState.MEMORY_ERRORS
    return DeviceState.DRIVER_ERROR


def _text(found: str | bytes) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else found
