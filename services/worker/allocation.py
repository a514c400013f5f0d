"""Which GPUs of a host a process was allocated, by Slurm or by whoever set its environment.

NVML shows every GPU, whatever `CUDA_VISIBLE_DEVICES` says. A worker inside a job of a cluster must
not offer those of its neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from assay.domain.errors import InvalidInput
from services.worker.nvml import Board

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_REMEDY = "name the UUIDs in ASSAY_WORKER_GPUS, which wins"
_NONE = ("", "-1", "NoDevFiles", "none", "void")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def allocated(boards: Sequence[Board], environment: Mapping[str, str]) -> list[Board]:
    """Return the boards that this process may use, with those of their devices that it may use.

    `CUDA_VISIBLE_DEVICES` decides, as for programs: numbers in the driver's order, or UUIDs or
    their beginnings. Without it the GPUs of a Slurm step or job do, which are numbers of nodes.

    Raises:
        InvalidInput: one of them says something that fits no GPU here, or several.
    """
    visible = environment.get(VISIBLE)
    if visible is not None:
        return _visible(boards, visible, environment.get(ORDER, ""))
    for name in SLURM:
        if environment.get(name):
            return _of_nodes(boards, name, environment[name])
    return list(boards)


def _visible(boards: Sequence[Board], text: str, order: str) -> list[Board]:
    found: list[Board] = []
    for word in (each.strip() for each in text.split(",")):
        if word in _NONE:  # CUDA reads no further, either
            break
        found.append(_by_number(boards, word, order) if word.isdigit() else _by_uuid(boards, word))
    devices = [device.uuid for board in found for device in board.devices]
    if len(set(devices)) != len(devices):
        raise InvalidInput(f"{VISIBLE}={text!r} names a GPU twice; {_REMEDY}")
    return found


def _by_number(boards: Sequence[Board], word: str, order: str) -> Board:
    kinds = {device.name for board in boards for device in board.devices}
    if len(kinds) > 1 and order != "PCI_BUS_ID":
        raise InvalidInput(
            f"{VISIBLE} counts GPUs of several kinds, the fastest first unless {ORDER} is "
            f"PCI_BUS_ID; set that, or {_REMEDY}"
        )
    if int(word) >= len(boards):
        raise InvalidInput(f"{VISIBLE}: there is no GPU {word} of {len(boards)} here; {_REMEDY}")
    return boards[int(word)]


def _by_uuid(boards: Sequence[Board], word: str) -> Board:
    found = [board for board in boards if board.uuid.startswith(word)]
    for board in boards:
        parts = tuple(device for device in board.devices if device.uuid.startswith(word))
        if parts and board not in found:
            found.append(replace(board, devices=parts))
    if len(found) != 1 or not word.startswith(("GPU-", "MIG-")):
        raise InvalidInput(
            f"{VISIBLE}: {word!r} is the UUID of {len(found)} GPUs here; unset it, or {_REMEDY}"
        )
    return found[0]


def _of_nodes(boards: Sequence[Board], name: str, text: str) -> list[Board]:
    minors: set[int] = set()
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise InvalidInput(f"{name}={text!r} is not a list of numbers; unset it, or {_REMEDY}")
        minors.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    # The number of one that cannot be asked is unknown: as the driver counts is the best guess.
    found = [b for b in boards if (b.index if b.minor is None else b.minor) in minors]
    if not found:
        raise InvalidInput(f"{name}={text!r} fits no GPU that the driver shows; {_REMEDY}")
    return found
