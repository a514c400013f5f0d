"""Runs code that is not trusted: started, limited, measured and killed as a whole tree."""

from assay.sandbox.choose import choose_sandbox, open_sandbox
from assay.sandbox.filesystem import interpreter_mounts
from assay.sandbox.interface import (
    DEVNULL,
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

__all__ = [
    "DEVNULL",
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
    "choose_sandbox",
    "interpreter_mounts",
    "open_sandbox",
]
