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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.contracts.worker import Device
from assay.domain.errors import AssayError, InvalidInput
from assay.domain.failure_codes import FailureCode
from assay.domain.states import DeviceState
from services.worker.allocation import allocated
from services.worker.nvml import Board, Load, Nvml, NvmlError, Trouble, open_nvml

_log = logging.getLogger(__name__)
_SETTLE_SECONDS = 5.0  # for the driver to clear away after a program that was killed
_LOOK_SECONDS = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0
_HEALTHY_PAUSE = 30.0  # between two looks at a device in good health
_LOCK_TRIES = 3  # another worker holds a lock for moments, too, while it looks
_FREE_SHARE = 0.01  # of its memory; utilisation says nothing
# A screen needs memory that no process is said to hold.
_SCREEN_BYTES = 512 << 20
# For a desktop whose memory the driver does not tell. What a killed training leaves is more.
_UNTOLD_SHARE = 0.25
DRIVER = Path("/dev/nvidiactl")


class GpusUnavailable(AssayError):
    """Not as many healthy GPUs are free as the attempt needs."""

    code = FailureCode.GPU_UNAVAILABLE


@dataclass
class _Slot:
    device: Device
    taken: bool = False
    ending: bool = False
    trouble: Trouble | None = None
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

    Without `nvml` they are what somebody declared, and nobody looks at them. `absent` are GPUs
    that are this worker's and cannot be asked, by name. `clock` says when a device is looked at
    again.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        nvml: Nvml | None,
        locks: Path | None = None,
        *,
        absent: Mapping[str, Trouble] | None = None,
        settle_seconds: float = _SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.devices = list(devices)
        self._nvml = nvml
        self._locks = locks or lock_folder()
        self._settle_seconds = settle_seconds
        self._clock = clock
        self._slots = {device.uuid: _Slot(device) for device in devices}
        self._absent = dict(absent or {})
        self._unreachable: Callable[[str], str | None] = lambda _: None
        self._guard = threading.Lock()
        for uuid in self._slots:
            self._watch(uuid)

    @property
    def driver(self) -> str | None:
        """The version of the driver; None where nobody asks it."""
        return None if self._nvml is None else self._nvml.driver

    def reach_through(self, problem_of: Callable[[str], str | None]) -> None:
        """Leave out devices that the sandbox cannot hand to a program; `problem_of` says why."""
        self._unreachable = problem_of

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
                if not self._passes(slot, 0.0):
                    os.close(lock)
                    continue
                had[uuid] = lock
                undo.callback(os.close, lock)
            if len(had) < count:
                raise GpusUnavailable(f"{count} GPUs are needed, {len(had)} are free and healthy")
            undo.pop_all()
            for uuid in had:
                self._slots[uuid].taken = True
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
                if slot is not None:  # whatever was seen of it so far was the program's
                    slot.taken, slot.trouble = True, None
        return GpuLease(tuple(uuids), (), self)

    def give_back(self, lease: GpuLease) -> None:
        """See `GpuLease.release`."""
        locks = dict(zip(lease.uuids, lease.locks, strict=False))
        deadline = self._clock() + self._settle_seconds
        for uuid in lease.uuids:
            slot = self._slots[uuid]
            with self._guard:
                slot.ending = True
            lock = locks.get(uuid)
            if lock is None:
                lock = self._lock(slot)
            if lock is not None:
                if slot.trouble is None:  # else it is looked at again when that is due
                    self._passes(slot, deadline)
                os.close(lock)
            with self._guard:
                slot.taken = slot.ending = False

    def usable(self) -> int:
        """How many devices are in good health, in use or not; looks at those that are due."""
        for slot in self._slots.values():
            if self._clock() >= slot.next_look:
                self._look_again(slot)
        return sum(slot.trouble is None for slot in self._slots.values())

    def troubles(self) -> dict[str, Trouble]:
        """What is wrong with the devices that are left out, by UUID; see `usable`."""
        found = {uuid: slot.trouble for uuid, slot in self._slots.items()}
        return self._absent | {uuid: each for uuid, each in found.items() if each is not None}

    def trouble(self, uuids: Sequence[str]) -> Trouble | None:
        """What is wrong with a device of a program that has ended, if anything is; the device is
        left out from now on. Nothing of the program lives, so who still computes is a stranger."""
        for uuid in uuids:
            slot = self._slots[uuid]
            problem = self._trouble(uuid) or slot.trouble or self._stranger(uuid)
            if problem is not None:
                self._blame(slot, problem)
                return problem
        return None

    def _stranger(self, uuid: str) -> Trouble | None:
        deadline = self._clock() + self._settle_seconds
        while (found := self._in_use(uuid)) is not None and found.state is DeviceState.IN_USE:
            if self._clock() >= deadline:
                return found
            time.sleep(_LOOK_SECONDS)
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
                self._blame(self._slots[uuid], Trouble.of(error))

    def _lock(self, slot: _Slot) -> int | None:
        """The host-wide lock of a device; None when another worker has it."""
        path = self._locks / f"assay-gpu-{slot.device.uuid.replace('/', '_')}.lock"
        try:
            descriptor = _opened(path)
        except OSError as error:
            detail = f"its lock {path} cannot be opened: {error}"
            self._blame(slot, Trouble(DeviceState.OTHER_WORKER, detail))
            return None
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            time.sleep(_LOOK_SECONDS)
        os.close(descriptor)
        detail = f"another worker of this host uses it ({path})"
        self._blame(slot, Trouble(DeviceState.OTHER_WORKER, detail))
        return None

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
        slot.trouble, slot.pause = None, _FIRST_PAUSE
        slot.next_look = self._clock() + _HEALTHY_PAUSE
        return True

    def _trouble(self, uuid: str) -> Trouble | None:
        problem = self._unreachable(uuid)
        if problem is not None:
            return Trouble(DeviceState.UNREACHABLE, problem)
        try:
            return None if self._nvml is None else self._nvml.trouble(uuid)
        except NvmlError as error:
            return Trouble.of(error)

    def _in_use(self, uuid: str) -> Trouble | None:
        if self._nvml is None:
            return None
        try:
            load = self._nvml.load(uuid)
        except NvmlError as error:
            return Trouble.of(error)
        if load.processes:
            detail = f"{load.processes} processes still use it, none of them this worker's"
            return Trouble(DeviceState.IN_USE, detail)
        if load.used_bytes > _allowed_bytes(load):
            detail = f"{load.used_bytes >> 20} MiB of its memory are still in use"
            return Trouble(DeviceState.MEMORY_IN_USE, detail)
        return None

    def _blame(self, slot: _Slot, problem: Trouble) -> None:
        if slot.trouble != problem:
            _log.error("GPU %s is left out: %s", slot.device.uuid, problem.detail)
        slot.trouble = problem
        slot.next_look = self._clock() + slot.pause
        slot.pause = min(2 * slot.pause, _LONGEST_PAUSE)

    def _look_again(self, slot: _Slot) -> None:
        with self._guard:
            if slot.ending:  # looked at by the thread that gives it back
                return
            if slot.taken:  # whether it is in use is not the question
                problem = slot.trouble or self._trouble(slot.device.uuid)
                slot.next_look = self._clock() + _HEALTHY_PAUSE
                if problem is not None:
                    self._blame(slot, problem)
                return
            was = slot.trouble
            if was is not None:
                self._wake_driver(slot.device.uuid)
            lock = self._lock(slot)
            if lock is None:
                return
            if self._passes(slot, 0.0) and was is not None:
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


def _allowed_bytes(load: Load) -> float:
    """How much of a device's memory may be in use while no program computes on it.

    A desktop's share follows what its programs hold at the moment. What was in use when the worker
    started would not do: desktops grow, and what a killed training left there would count as
    theirs from the next start on.
    """
    free = _FREE_SHARE * load.total_bytes
    if load.display_bytes is None:
        return _UNTOLD_SHARE * load.total_bytes
    return free + load.display_bytes + (_SCREEN_BYTES if load.display_bytes else 0)


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
    environment: Mapping[str, str] = os.environ,
) -> Gpus:
    """Return the GPUs this worker offers: `auto`, `none`, or those with these UUIDs.

    `auto` are those that the process was allocated (see `allocation`), or else all. The driver is
    asked where the file `driver` exists.

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
        if nvml is None:
            return Gpus([], None)
        return _all_of(allocated(nvml.boards(), environment), nvml)
    nvml = open_driver() if driver.exists() else None
    if nvml is None:
        _log.warning("the GPUs are as declared: without a driver nobody looks at their health")
        return Gpus([Device(uuid=uuid) for uuid in wanted], None)
    boards = nvml.boards()
    found = {device.uuid: device for board in boards for device in board.devices}
    missing = [uuid for uuid in wanted if uuid not in found]
    silent = [board.trouble for board in boards if board.trouble is not None]
    if missing and not silent:
        raise InvalidInput(f"ASSAY_WORKER_GPUS: this host has no {', '.join(missing)}")
    absent = dict.fromkeys(missing, silent[0]) if silent else {}
    return Gpus([found[uuid] for uuid in wanted if uuid in found], nvml, absent=absent)


def _all_of(boards: Sequence[Board], nvml: Nvml) -> Gpus:
    devices = [device for board in boards for device in board.devices]
    absent = {board.uuid: board.trouble for board in boards if board.trouble is not None}
    for name, trouble in absent.items():
        _log.error("%s is left out: %s", name, trouble.detail)
    return Gpus(devices, nvml, absent=absent)
