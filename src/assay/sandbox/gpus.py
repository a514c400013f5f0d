"""The device nodes of NVIDIA GPUs, by UUID: what a sandbox without a container engine gets.

A GPU is usable by whoever has its node, `/dev/nvidia<minor>`, besides those that all GPUs share. A
program in a sandbox cannot make nodes, so it has the GPUs whose nodes it was given, and no other.
The driver says which UUID has which minor number.

A program also needs the driver's libraries. The loader finds them in its cache, unless the host or
its image relies on `LD_LIBRARY_PATH`, which a sandbox does not inherit.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.sandbox.filesystem import always_visible, check_prefix, is_device
from assay.sandbox.interface import Mount, SandboxError

DRIVER = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")

_SHARED = ("nvidiactl", "nvidia-uvm")
_SHARED_IF_THERE = ("nvidia-uvm-tools",)
LIBRARY = "libcuda.so.1"
LOADER_CACHE = Path("/etc/ld.so.cache")
LIBRARY_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/usr/local/nvidia/lib64",  # images of NVIDIA, Kubernetes of Google
        "/usr/local/nvidia/lib",
        "/usr/lib/wsl/lib",  # Windows Subsystem for Linux
        "/run/opengl-driver/lib",  # NixOS
    )
)

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
        if gpu.startswith("MIG-"):
            raise SandboxError(
                f"bubblewrap cannot hand out {gpu}, a part of a GPU (MIG); remedy: start the "
                "worker with ASSAY_WORKER_SANDBOX=docker"
            )
        if gpu not in minors:
            raise SandboxError(f"the driver knows no GPU {gpu} here")
        names.append(f"nvidia{minors[gpu]}")
    optional = [name for name in _SHARED_IF_THERE if (devices / name).exists()]
    return tuple(_node(devices, name) for name in (*names, *_SHARED, *optional))


@dataclass(frozen=True)
class DriverLibraries:
    """What lets programs find the driver's libraries: variables, and folders to be mounted."""

    variables: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()


def driver_libraries(
    gpus: Iterable[str],
    environment: Mapping[str, str] = os.environ,
    cache: Path = LOADER_CACHE,
    folders: Iterable[Path] = LIBRARY_FOLDERS,
) -> DriverLibraries:
    """What programs with these GPUs need besides the nodes; nothing without GPUs.

    The folder with `LIBRARY` is the first of `LD_LIBRARY_PATH` in `environment` that has it. If
    none has, and the loader's cache does not name it, it is the first of the known `folders`.

    Raises:
        SandboxError: the folder is one that holds too much to be shown to a program.
    """
    if not tuple(gpus):
        return DriverLibraries({})
    own = [Path(each) for each in environment.get("LD_LIBRARY_PATH", "").split(":") if each]
    known = [] if _is_cached(cache) else list(folders)
    for folder in (*own, *known):
        if folder.is_absolute() and (folder / LIBRARY).is_file():
            places = dict.fromkeys((folder, (folder / LIBRARY).resolve().parent))
            mounts = tuple(_shown(each) for each in places if not always_visible(each))
            return DriverLibraries({"LD_LIBRARY_PATH": str(folder)}, mounts)
    return DriverLibraries({})


def _is_cached(cache: Path) -> bool:
    return cache.is_file() and LIBRARY.encode() in cache.read_bytes()


def _shown(folder: Path) -> Mount:
    try:
        check_prefix(str(folder))
    except ValueError as error:
        raise SandboxError(f"{LIBRARY} cannot be used: {error}") from error
    return Mount(folder, str(folder))


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
