"""The GPUs of this host: who has which, and whether one may be used again.

An attempt gets devices by UUID, never by number: numbers change when a GPU drops out. A lock file
for each UUID keeps workers of one host apart. A device that was used is looked at before anybody
else gets it; one in trouble is left out and looked at again, less and less often.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.contracts.worker import Device
from assay.domain.errors import AssayError, InvalidInput
from assay.domain.failure_codes import FailureCode
from services.worker.nvml import Nvml, NvmlError, open_nvml

_log = logging.getLogger(__name__)
_SETTLE_SECONDS = 5.0  # for the driver to clear away after a program that was killed
_LOOK_SECONDS = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0
_FREE_SHARE = 0.01  # of its memory; utilisation says nothing
DRIVER = Path("/dev/nvidiactl")


class GpusUnavailable(AssayError):
    """Not as many healthy GPUs are free as the attempt needs."""

    code = FailureCode.GPU_UNAVAILABLE


@dataclass
class _Slot:
    device: Device
    taken: bool = False
    checked: bool = False
    trouble: str | None = None
    pause: float = _FIRST_PAUSE
    next_look: float = 0.0


@dataclass
class GpuLease:
    """GPUs of one attempt. `locks` are descriptors: whoever holds a copy keeps others away."""

    uuids: tuple[str, ...] = ()
    locks: tuple[int, ...] = ()
    owner: Gpus | None = field(default=None, repr=False)

    def release(self) -> None:
        """Look at the devices and let others use those in good health; may be repeated."""
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.give_back(self)


NO_GPUS = GpuLease()


def lock_folder() -> Path:
    """Where the workers of this host meet."""
    usual = Path("/run/lock")
    if usual.is_dir() and os.access(usual, os.W_OK | os.X_OK):
        return usual
    return Path(tempfile.gettempdir())


class Gpus:
    """The devices this worker offers; safe to use from several threads.

    Without `nvml` they are what somebody declared, and nobody looks at them. `clock` says when a
    device in trouble is looked at again.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        nvml: Nvml | None,
        locks: Path | None = None,
        *,
        settle_seconds: float = _SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.devices = list(devices)
        self._nvml = nvml
        self._locks = locks or lock_folder()
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._slots = {device.uuid: _Slot(device) for device in devices}
        self._guard = threading.Lock()
        for uuid in self._slots:
            self._watch(uuid)

    @property
    def driver(self) -> str | None:
        """The version of the driver; None where nobody asks it."""
        return None if self._nvml is None else self._nvml.driver

    def take(self, count: int) -> GpuLease:
        """As many healthy, free devices as an attempt needs.

        Raises:
            GpusUnavailable: there are not enough.
        """
        if count == 0:
            return NO_GPUS
        had: dict[str, int] = {}
        with self._guard, contextlib.ExitStack() as undo:
            for uuid, slot in self._slots.items():
                if len(had) == count:
                    break
                if slot.taken or slot.trouble is not None:
                    continue
                lock = self._lock(slot)
                if lock is None:
                    continue
                if not slot.checked and not self._passes(slot, 0.0):
                    os.close(lock)
                    continue
                had[uuid] = lock
                undo.callback(os.close, lock)
            if len(had) < count:
                raise GpusUnavailable(f"{count} GPUs are needed, {len(had)} are free and healthy")
            undo.pop_all()
            for uuid in had:
                self._slots[uuid].taken = True
                self._slots[uuid].checked = False
        return GpuLease(tuple(had), tuple(had.values()), self)

    def adopt(self, uuids: Sequence[str]) -> GpuLease:
        """Devices that a program has which another worker started; it holds their locks itself.

        Raises:
            GpusUnavailable: this worker does not offer them, or has given them to somebody else.
        """
        if not uuids:
            return NO_GPUS
        with self._guard:
            slots = [self._slots.get(uuid) for uuid in uuids]
            for uuid, slot in zip(uuids, slots, strict=True):
                if slot is None or slot.taken:
                    raise GpusUnavailable(f"{uuid} is not this worker's to use")
            for slot in slots:
                if slot is not None:
                    slot.taken, slot.checked = True, False
        return GpuLease(tuple(uuids), (), self)

    def give_back(self, lease: GpuLease) -> None:
        """See `GpuLease.release`."""
        locks = dict(zip(lease.uuids, lease.locks, strict=False))
        deadline = self._clock() + self._settle_seconds
        for uuid in lease.uuids:
            slot = self._slots[uuid]
            lock = locks.get(uuid)
            if lock is None:
                lock = self._lock(slot)
            if lock is not None:
                self._passes(slot, deadline)
                os.close(lock)
            with self._guard:
                slot.taken = False

    def usable(self) -> int:
        """How many devices are in good health, in use or not; looks at the others when due."""
        for slot in self._slots.values():
            if slot.trouble is not None and self._clock() >= slot.next_look:
                self._look_again(slot)
        return sum(slot.trouble is None for slot in self._slots.values())

    def trouble(self, uuids: Sequence[str]) -> str | None:
        """What is wrong with a device in use, if anything is; it is left out from now on."""
        for uuid in uuids:
            problem = self._trouble(uuid)
            if problem is not None:
                self._blame(self._slots[uuid], problem)
                return problem
        return None

    def facts(self, uuids: Sequence[str]) -> dict[str, Any]:
        """What a result's provenance says about the devices it was made on."""
        if not uuids:
            return {}
        return {
            "gpus": list(uuids),
            "gpu_names": [self._slots[uuid].device.name for uuid in uuids],
            "gpu_driver": self.driver,
            "gpu_health": "unchecked" if self._nvml is None else "nvml",
        }

    def gauges(self, uuids: Sequence[str]) -> dict[str, float]:
        """What devices do right now, by their place in `uuids`: `gpu0_utilisation`, …"""
        found: dict[str, float] = {}
        for place, uuid in enumerate(uuids):
            if self._nvml is not None:
                shown = self._nvml.gauges(uuid)
                found |= {f"gpu{place}_{name}": value for name, value in shown.items()}
        return found

    def _watch(self, uuid: str) -> None:
        if self._nvml is not None:
            try:
                self._nvml.watch(uuid)
            except NvmlError as error:
                self._blame(self._slots[uuid], str(error))

    def _lock(self, slot: _Slot) -> int | None:
        """The host-wide lock of a device; None when another worker has it."""
        path = self._locks / f"assay-gpu-{slot.device.uuid.replace('/', '_')}.lock"
        try:
            descriptor = _opened(path)
        except OSError as error:
            self._blame(slot, f"its lock {path} cannot be opened: {error}")
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            self._blame(slot, f"another worker of this host uses it ({path})")
            return None
        return descriptor

    def _passes(self, slot: _Slot, deadline: float) -> bool:
        """Whether a device that nobody should use is idle and healthy; it may take until then."""
        uuid = slot.device.uuid
        problem = self._trouble(uuid)  # told once: it does not pass by itself
        if problem is None:
            problem = self._in_use(uuid)
            while problem is not None and self._clock() < deadline:
                time.sleep(_LOOK_SECONDS)
                problem = self._in_use(uuid)
        if problem is not None:
            self._blame(slot, problem)
            return False
        slot.checked, slot.trouble, slot.pause = True, None, _FIRST_PAUSE
        return True

    def _trouble(self, uuid: str) -> str | None:
        try:
            return None if self._nvml is None else self._nvml.trouble(uuid)
        except NvmlError as error:
            return str(error)

    def _in_use(self, uuid: str) -> str | None:
        if self._nvml is None:
            return None
        try:
            load = self._nvml.load(uuid)
        except NvmlError as error:
            return str(error)
        if load.processes:
            return f"{load.processes} processes still use it"
        if load.used_bytes > _FREE_SHARE * load.total_bytes:
            return f"{load.used_bytes >> 20} MiB of its memory are still in use"
        return None

    def _blame(self, slot: _Slot, problem: str) -> None:
        if slot.trouble != problem:
            _log.error("GPU %s is left out: %s", slot.device.uuid, problem)
        slot.trouble = problem
        slot.next_look = self._clock() + slot.pause
        slot.pause = min(2 * slot.pause, _LONGEST_PAUSE)

    def _look_again(self, slot: _Slot) -> None:
        with self._guard:
            if slot.taken:
                return
            self._wake_driver(slot.device.uuid)
            lock = self._lock(slot)
            if lock is None:
                return
            if self._passes(slot, 0.0):
                _log.warning("GPU %s is in good health again", slot.device.uuid)
            os.close(lock)

    def _wake_driver(self, uuid: str) -> None:
        """A driver that was reloaded answers again only to those who begin anew."""
        if self._nvml is None:
            return
        try:
            self._nvml.load(uuid)
        except NvmlError:
            with contextlib.suppress(NvmlError):
                self._nvml.restart()
            for other in self._slots:
                with contextlib.suppress(NvmlError):  # seen when it is looked at
                    self._nvml.watch(other)


def _opened(path: Path) -> int:
    """A lock file that workers of several users may share; never followed to somewhere else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644))
        return os.open(path, flags)


def open_gpus(
    wanted: str | Sequence[str],
    *,
    driver: Path = DRIVER,
    open_driver: Callable[[], Nvml | None] = open_nvml,
) -> Gpus:
    """Return the GPUs this worker offers: `auto` (all), `none`, or those with these UUIDs.

    The driver is asked where the file `driver` exists.

    Raises:
        InvalidInput: a device that was asked for is not there.
        NvmlError: there are GPUs, but nobody can look at them.
    """
    if wanted == "none":
        return Gpus([], None)
    if isinstance(wanted, str):
        if not driver.exists():
            return Gpus([], None)
        nvml = open_driver()
        return Gpus(nvml.devices() if nvml is not None else [], nvml)
    nvml = open_driver() if driver.exists() else None
    if nvml is None:
        _log.warning("the GPUs are as declared: without a driver nobody looks at their health")
        return Gpus([Device(uuid=uuid) for uuid in wanted], None)
    found = {device.uuid: device for device in nvml.devices()}
    missing = [uuid for uuid in wanted if uuid not in found]
    if missing:
        raise InvalidInput(f"ASSAY_WORKER_GPUS: this host has no {', '.join(missing)}")
    return Gpus([found[uuid] for uuid in wanted], nvml)
