"""The device nodes of NVIDIA GPUs, by UUID: what a sandbox without a container engine gets.

A GPU is usable by whoever has its node, `/dev/nvidia<minor>`, besides those that all GPUs share. A
program in a sandbox cannot make nodes, so it has the GPUs whose nodes it was given, and no other.
The driver says which UUID has which minor number.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from assay.sandbox.filesystem import is_device
from assay.sandbox.interface import Mount, SandboxError

DRIVER = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")

_SHARED = ("nvidiactl", "nvidia-uvm")
_SHARED_IF_THERE = ("nvidia-uvm-tools",)
_FACT = re.compile(r"^(GPU UUID|Device Minor)\s*:\s*(\S+)\s*$", re.MULTILINE)


def gpu_mounts(
    gpus: Iterable[str], driver: Path = DRIVER, devices: Path = DEVICES
) -> tuple[Mount, ...]:
    """The nodes through which a program reaches exactly these GPUs; none for none.

    Raises:
        SandboxError: a GPU or a node is missing here, or it is a part of a GPU (MIG), whose nodes
            the driver does not tell by UUID.
    """
    wanted = tuple(gpus)
    if not wanted:
        return ()
    minors = _minors(driver)
    names = []
    for gpu in wanted:
        if gpu not in minors:
            raise SandboxError(
                f"the driver knows no GPU {gpu} here"
                + ("; MIG devices need the docker backend" if gpu.startswith("MIG-") else "")
            )
        names.append(f"nvidia{minors[gpu]}")
    optional = [name for name in _SHARED_IF_THERE if (devices / name).exists()]
    return tuple(_node(devices, name) for name in (*names, *_SHARED, *optional))


def _minors(driver: Path) -> dict[str, int]:
    """UUID → minor number of every GPU the driver shows to this process."""
    found = {}
    for information in sorted(driver.glob("*/information")):
        facts = dict(_FACT.findall(information.read_text(errors="replace")))
        minor = facts.get("Device Minor", "")
        if "GPU UUID" in facts and minor.isdigit():
            found[facts["GPU UUID"]] = int(minor)
    return found


def _node(devices: Path, name: str) -> Mount:
    source = devices / name
    if not source.exists() or not is_device(source):
        raise SandboxError(f"{source} is missing; is the NVIDIA driver loaded (nvidia-modprobe)?")
    return Mount(source, f"/dev/{name}")
