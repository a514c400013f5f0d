"""Chooses the sandbox backend of a worker, and says why."""

import platform
import shutil
from pathlib import Path
from typing import Literal

from assay.sandbox.bubblewrap import BubblewrapSandbox
from assay.sandbox.cgroups import ControlGroups
from assay.sandbox.interface import (
    Guarantee,
    Sandbox,
    SandboxError,
    SandboxSettings,
    SandboxUnavailable,
)
from assay.sandbox.launcher import TRUSTED_PATH
from assay.sandbox.plain import PlainSandbox
from assay.sandbox.staging import sweep_staging

BackendName = Literal["auto", "bubblewrap", "subprocess"]

_NEEDED = frozenset({Guarantee.NO_NETWORK, Guarantee.FILES_CONFINED})
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """The backend that `settings` name, without trying it.

    Raises `ValueError` for an unknown name.
    """
    if settings.name == "bubblewrap":
        return BubblewrapSandbox(settings)
    if settings.name == "subprocess":
        return PlainSandbox(settings)
    raise ValueError(f"no sandbox backend is called {settings.name!r}")


def choose_sandbox(name: BackendName, scratch: Path) -> tuple[SandboxSettings, str]:
    """The settings of a backend that works here, and a sentence that says why it was chosen.

    "auto" takes bubblewrap where its quick probe holds NO_NETWORK and FILES_CONFINED, otherwise
    the subprocess backend, which isolates nothing. Also clears away what a killed worker left.

    Raises `SandboxUnavailable` when "bubblewrap" was asked for and does not work here.
    """
    ControlGroups().sweep()
    sweep_staging()
    if name == "subprocess":
        settings = SandboxSettings("subprocess", scratch=scratch)
        return settings, "subprocess was asked for: nothing is isolated"
    settings = SandboxSettings("bubblewrap", scratch=scratch)
    problem = _bubblewrap_problem(settings)
    if problem is None:
        return settings, "bubblewrap works here: no network, files confined (both were tried)"
    if name == "bubblewrap":
        raise SandboxUnavailable(problem)
    fallback = SandboxSettings("subprocess", scratch=scratch)
    return fallback, f"nothing is isolated: {problem}"


def _bubblewrap_problem(settings: SandboxSettings) -> str | None:
    """Why bubblewrap cannot be used, with a remedy, or None."""
    if platform.system() != "Linux":
        return "bubblewrap is not available on this system; it needs Linux"
    if shutil.which("bwrap", path=TRUSTED_PATH) is None:
        return "bubblewrap is not installed; remedy: apt-get install bubblewrap"
    try:
        held = BubblewrapSandbox(settings).probe(quick=True)
    except (SandboxError, ValueError, OSError) as error:
        return f"bubblewrap does not work here: {error}{_apparmor_remedy()}"
    missing = sorted(guarantee for guarantee in _NEEDED if not held[guarantee])
    if missing:
        return f"bubblewrap does not hold here: {', '.join(missing)}"
    return None


def _apparmor_remedy() -> str:
    try:
        restricted = _APPARMOR.read_text().strip() == "1"
    except OSError:
        restricted = False
    if not restricted:
        return ""
    return (
        "; AppArmor restricts user namespaces, remedy: an AppArmor profile for bwrap, or "
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    )
