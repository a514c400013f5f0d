"""Chooses the sandbox backend of a worker, and says why."""

import importlib
import platform
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from assay.sandbox.bubblewrap import BubblewrapSandbox
from assay.sandbox.cgroups import ControlGroups
from assay.sandbox.gpus import gpu_mounts
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

BackendName = Literal["auto", "docker", "bubblewrap", "subprocess"]
ProblemOf = Callable[[SandboxSettings], str | None]
"""Says why a backend cannot be used with these settings, with a remedy; None if it can."""

_NEEDED = frozenset({Guarantee.NO_NETWORK, Guarantee.FILES_CONFINED})
_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


def open_sandbox(settings: SandboxSettings) -> Sandbox:
    """The backend that `settings` name, without trying it.

    Raises `ValueError` for an unknown name, `SandboxUnavailable` for "docker" where its package
    is not installed.
    """
    if settings.name == "docker":
        sandbox: Sandbox = _docker_backend().DockerSandbox(settings)
        return sandbox
    if settings.name == "bubblewrap":
        return BubblewrapSandbox(settings)
    if settings.name == "subprocess":
        return PlainSandbox(settings)
    raise ValueError(f"no sandbox backend is called {settings.name!r}")


def choose_sandbox(
    name: BackendName,
    scratch: Path,
    *,
    docker_host: str | None = None,
    image: str | None = None,
    scope: str = "assay",
    candidates: Mapping[str, ProblemOf] | None = None,
) -> tuple[SandboxSettings, str]:
    """The settings of a backend that works here, and a sentence that says why it was chosen.

    "auto" takes bubblewrap (unless an image is named), or else docker, where a quick probe holds
    NO_NETWORK and FILES_CONFINED, otherwise the subprocess backend, which isolates nothing. Also
    clears away what a killed worker left. `docker_host`, `image` and `scope` are for docker
    (`SandboxSettings`). `candidates` are the isolating backends in the order in which "auto" tries
    them, each with what finds out why it cannot be used (`ISOLATING`).

    Raises `SandboxUnavailable` when "bubblewrap" or "docker" was asked for and does not work here.
    """
    ControlGroups().sweep()
    sweep_staging()
    plain = SandboxSettings("subprocess", scratch=scratch)
    if name == "subprocess":
        return plain, "subprocess was asked for: nothing is isolated"
    settings = replace(plain, docker_host=docker_host, image=image, scope=scope)
    problems = []
    for candidate, problem_of in (candidates or ISOLATING).items():
        if name not in ("auto", candidate):
            continue
        if image is not None and candidate != "docker":
            problems.append(f"{candidate} has no images")
            continue
        chosen = replace(settings, name=candidate)
        problem = problem_of(chosen)
        if problem is None:
            why = f"{candidate} works here: no network, files confined (both were tried)"
            return _pinned(chosen), why
        problems.append(problem)
    if name != "auto":
        raise SandboxUnavailable(problems[0])
    return plain, f"nothing is isolated: {'; '.join(problems)}"


def _pinned(settings: SandboxSettings) -> SandboxSettings:
    """With the image named by its digest: a tag may mean another one tomorrow."""
    if settings.name != "docker" or settings.image is None:
        return settings
    return replace(settings, image=open_sandbox(settings).facts["image"])


def sweep_containers(settings: SandboxSettings) -> int:
    """Remove containers that no worker owns any more, or that have outlived their time.

    For a worker to call every now and then; does nothing for other backends. Returns how many.

    Raises `SandboxError` when the engine does not answer.
    """
    if settings.name != "docker":
        return 0
    return int(_docker_backend().DockerSandbox(settings).reap())


def remove_kept_containers(settings: SandboxSettings, wanted: Collection[str]) -> int:
    """Remove containers that wait to be adopted, but for programs with the names `wanted`.

    For a worker to call when it starts; does nothing for other backends. Returns how many.

    Raises `SandboxError` when the engine does not answer.
    """
    if settings.name != "docker":
        return 0
    return int(_docker_backend().DockerSandbox(settings).remove_kept(wanted))


def discard_kept_container(settings: SandboxSettings, name: str) -> None:
    """Remove the container of the kept program `name`, if there is one.

    Raises `SandboxError` when the engine does not answer.
    """
    if settings.name == "docker":
        _docker_backend().DockerSandbox(settings).discard(name)


def gpu_problem(settings: SandboxSettings, gpu: str) -> str | None:
    """Why the sandbox cannot hand the GPU with this UUID to a program, with a remedy, or None.

    Only bubblewrap needs device nodes of it; engines and plain programs find it themselves.
    """
    if settings.name != "bubblewrap":
        return None
    try:
        gpu_mounts((gpu,))
    except (SandboxError, OSError) as error:
        return str(error)
    return None


def _docker_backend() -> Any:
    """The Docker backend, by name: whoever only imports this module needs no `docker`."""
    try:
        return importlib.import_module("assay.sandbox.docker.backend")
    except ModuleNotFoundError as error:
        raise SandboxUnavailable(
            f"the docker backend needs the package {error.name}; "
            "remedy: pip install 'assay[worker]'"
        ) from error


def _docker_problem(settings: SandboxSettings) -> str | None:
    """Why docker cannot be used, with a remedy, or None."""
    try:
        sandbox = _docker_backend().DockerSandbox(settings)
        sandbox.reap()
        held = sandbox.probe(quick=True)
    except SandboxUnavailable as error:
        return str(error)
    except (SandboxError, ValueError, OSError) as error:
        return f"docker does not work here: {error}"
    return _not_held("docker", held)


def _not_held(name: str, held: dict[Guarantee, bool]) -> str | None:
    missing = sorted(guarantee for guarantee in _NEEDED if not held[guarantee])
    return f"{name} does not hold here: {', '.join(missing)}" if missing else None


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
    return _not_held("bubblewrap", held)


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


#: The isolating backends, in the order in which "auto" tries them.
ISOLATING: Mapping[str, ProblemOf] = {
    "bubblewrap": _bubblewrap_problem,
    "docker": _docker_problem,
}
