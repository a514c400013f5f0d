"""Runs code that is not trusted: started, limited, measured and killed as a whole tree."""

from assay.sandbox.choose import (
    choose_sandbox,
    discard_kept_container,
    gpu_problem,
    open_sandbox,
    remove_kept_containers,
    sweep_containers,
)
from assay.sandbox.cuda import CudaTrial
from assay.sandbox.filesystem import interpreter_mounts
from assay.sandbox.interface import (
    DEVNULL,
    ISOLATION_GUARANTEES,
    QUICK_GUARANTEES,
    Exit,
    Guarantee,
    Handle,
    Keep,
    Limits,
    Mount,
    Sandbox,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
    SandboxUnavailable,
)
from assay.sandbox.volume import VolumeKeeper, adopted_volume, open_volume, sweep_volumes

__all__ = [
    "DEVNULL",
    "ISOLATION_GUARANTEES",
    "QUICK_GUARANTEES",
    "CudaTrial",
    "Exit",
    "Guarantee",
    "Handle",
    "Keep",
    "Limits",
    "Mount",
    "Sandbox",
    "SandboxError",
    "SandboxSettings",
    "SandboxSpec",
    "SandboxUnavailable",
    "VolumeKeeper",
    "adopted_volume",
    "choose_sandbox",
    "discard_kept_container",
    "gpu_problem",
    "interpreter_mounts",
    "open_sandbox",
    "open_volume",
    "remove_kept_containers",
    "sweep_containers",
    "sweep_volumes",
]
