"""Runs code that is not trusted: started, limited, measured and killed as a whole tree."""

from assay.sandbox.choose import choose_sandbox, open_sandbox, sweep_containers
from assay.sandbox.filesystem import interpreter_mounts
from assay.sandbox.interface import (
    DEVNULL,
    ISOLATION_GUARANTEES,
    QUICK_GUARANTEES,
    Exit,
    Guarantee,
    Handle,
    Limits,
    Mount,
    Sandbox,
    SandboxError,
    SandboxSettings,
    SandboxSpec,
    SandboxUnavailable,
)
from assay.sandbox.volume import VolumeKeeper, open_volume, sweep_volumes

__all__ = [
    "DEVNULL",
    "ISOLATION_GUARANTEES",
    "QUICK_GUARANTEES",
    "Exit",
    "Guarantee",
    "Handle",
    "Limits",
    "Mount",
    "Sandbox",
    "SandboxError",
    "SandboxSettings",
    "SandboxSpec",
    "SandboxUnavailable",
    "VolumeKeeper",
    "choose_sandbox",
    "interpreter_mounts",
    "open_sandbox",
    "open_volume",
    "sweep_containers",
    "sweep_volumes",
]
