"""What Docker is asked for: the whole body of a create call, from a specification alone.

Written in the engine's own words (Engine API, `/containers/create`), so that what is not said here
is not asked for. Nothing of the program but its limits, mounts and GPUs is in it: command and
environment reach it through the link (`init`, `link`).
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.sandbox.docker import init
from assay.sandbox.docker.image import Image
from assay.sandbox.docker.link import PASSWD, SOCKET
from assay.sandbox.filesystem import HIDDEN_PROC, OWN_FILES, SYSTEM_LINKS, tmpfs_bytes
from assay.sandbox.interface import Limits, SandboxSpec

_PERIOD = 100_000  # microseconds over which a share of processors is counted
_INIT_PROCESSES = 1
_GPU = re.compile(r"(GPU|MIG)(-[0-9A-Za-z]+)+(/\d+){0,2}")

# What engines hide by themselves, which a list of ours replaces, and what tells about the host.
_MASKED = (
    *HIDDEN_PROC,
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/latency_stats", "/proc/scsi"),
    *("/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware"),
    *("/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/fs/cgroup"),
)


@dataclass(frozen=True)
class Container:
    """What a container is made from, besides the specification of its program."""

    image: Image
    user: int
    group: int
    door: Path
    labels: Mapping[str, str]
    profile: str | None
    devices: tuple[tuple[str, str], ...]
    folders: tuple[tuple[str, str, bool], ...]


def check_gpus(gpus: tuple[str, ...]) -> None:
    """Raise `ValueError` unless each is the UUID of a GPU or of a MIG device.

    Numbers and "all" mean other GPUs tomorrow, or somebody else's.
    """
    for gpu in gpus:
        if not _GPU.fullmatch(gpu):
            raise ValueError(f"{gpu!r} is not the UUID of a GPU (GPU-… or MIG-…)")


def reserved(target: str) -> bool:
    """Whether a mount at `target` would get into the way of what every container has."""
    below = any(target == link or target.startswith(f"{link}/") for link in SYSTEM_LINKS)
    return below or target in ("/tmp", init.LINK)


def container_config(spec: SandboxSpec, container: Container) -> dict[str, Any]:
    """The body of the create call; pure."""
    check_gpus(spec.gpus)
    source = Path(init.__file__).read_text()
    return {
        "Image": container.image.id,
        "Entrypoint": [container.image.python, "-I", "-S", "-c", source],
        "Cmd": [],
        "User": f"{container.user}:{container.group}",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": _environment(spec, container.image),
        "Labels": dict(container.labels),
        "Healthcheck": {"Test": ["NONE"]},
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "Tty": False,
        "NetworkDisabled": True,
        "HostConfig": _host_config(spec, container),
    }


def _environment(spec: SandboxSpec, image: Image) -> list[str]:
    """What the first process and the engine's hooks see; a bare name removes the image's own.

    Hooks of GPU runtimes read variables such as NVIDIA_VISIBLE_DEVICES and LD_PRELOAD from here,
    so neither an image nor a program may have a say.
    """
    ours = {
        "PATH": image.path,
        "HOME": "/tmp",
        "NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus) or "void",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility" if spec.gpus else "",
    }
    others = sorted(image.variables - set(ours))
    return [*(f"{name}={value}" for name, value in ours.items()), *others]


def _host_config(spec: SandboxSpec, container: Container) -> dict[str, Any]:
    limits = spec.limits
    tmpfs = tmpfs_bytes(limits)
    security = ["no-new-privileges"]
    if container.profile is not None:
        security.append(f"seccomp={container.profile}")
    return {
        "NetworkMode": "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": security,
        "MaskedPaths": _masked(spec),
        "Privileged": False,
        "Init": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none", "Config": {}},
        # Or the engine would copy the host's resolver settings.
        "Dns": ["127.0.0.1"],
        "DnsSearch": ["."],
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "OomScoreAdj": 500,
        "PidsLimit": limits.processes + _INIT_PROCESSES,
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        **_processors(limits),
        "ShmSize": tmpfs,
        "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={tmpfs}"},
        "Mounts": _mounts(container),
        "Devices": [
            {"PathOnHost": source, "PathInContainer": target, "CgroupPermissions": "rw"}
            for source, target in container.devices
        ],
        "DeviceRequests": _device_requests(spec.gpus),
    }


def _masked(spec: SandboxSpec) -> list[str]:
    if spec.gpus:  # libraries look at the topology of the machine
        return [*_MASKED]
    # A shared mapping of /dev/zero has an inode number that counts for the whole host.
    return [*_MASKED, "/sys", *(["/dev/zero"] if spec.sees_held_out else [])]


def _processors(limits: Limits) -> dict[str, int]:
    if limits.cpus is None:
        return {}
    quota = max(1000, math.floor(limits.cpus * _PERIOD))  # the kernel takes no less
    return {"CpuPeriod": _PERIOD, "CpuQuota": quota}


def _device_requests(gpus: tuple[str, ...]) -> list[dict[str, Any]]:
    if not gpus:
        return []
    return [{"Driver": "nvidia", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]


def _mounts(container: Container) -> list[dict[str, Any]]:
    door = container.door
    files = {path: str(door / os.path.basename(path)) for path in (PASSWD, *OWN_FILES)}
    own = [*((source, path) for path, source in files.items()), (str(door / SOCKET), init.LINK)]
    return [
        *(_bind(source, target, False) for source, target in container.image.system),
        *(_bind(source, target, False) for source, target in own),
        *(_bind(source, target, writable) for source, target, writable in container.folders),
    ]


def _bind(source: str, target: str, writable: bool) -> dict[str, Any]:
    # Engines before 25 make only the top of a recursive read-only mount read-only.
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": not writable,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": not writable},
    }
