"""What every attempt on this worker shares."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import platform
import socket
import sys
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from assay.contracts.worker import AttemptSpec
from assay.domain.conditions import EVALUATION, normalised
from assay.domain.failure_codes import FailureCode
from assay.evaluation import start_evaluation_server
from assay.sandbox import (
    ISOLATION_GUARANTEES,
    CudaTrial,
    Guarantee,
    Sandbox,
    SandboxSettings,
    choose_sandbox,
    open_sandbox,
    remove_kept_containers,
)
from services.worker.api import AttemptApi
from services.worker.cache import BundleCache
from services.worker.failures import infrastructure
from services.worker.folders import Scratch
from services.worker.gpus import Gpus
from services.worker.hardware import Cpu, gpu_class, hardware_class, read_cpu
from services.worker.pressure import Pressure
from services.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Host:
    """A worker that is ready to run attempts."""

    settings: WorkerSettings
    api: AttemptApi
    bundles: BundleCache
    scratch: Scratch
    sandbox: Sandbox
    sandbox_settings: SandboxSettings
    sandbox_facts: dict[str, str]
    guarantees: dict[str, bool]
    hardware_class: str
    cpu: Cpu
    gpus: Gpus
    info: dict[str, Any]
    pressure: Pressure
    leaving: threading.Event
    """Set when this worker was told to drain or to stop."""
    holds_relative_caps: bool = True
    """Whether attempts are held to caps that are multiples of what the baseline uses here."""

    @property
    def adopts(self) -> bool:
        """Whether what runs outlives this process, for another one to go on with."""
        return self.settings.adopt and self.sandbox.adopts

    @property
    def why_not(self) -> str:
        """Why code that nobody trusts is not run here; empty where it is."""
        if not self.sandbox.isolated:
            return f"the {self.sandbox.name} sandbox isolates nothing"
        tried = {guarantee: self.guarantees.get(guarantee.value) for guarantee in Guarantee}
        broken = sorted(g.value for g in ISOLATION_GUARANTEES if tried[g] is False)
        return (
            f"the {self.sandbox.name} sandbox did not hold {', '.join(broken)}" if broken else ""
        )

    def check(self, spec: AttemptSpec) -> None:
        """Raise `AttemptFailed` for an attempt that is not for this host."""
        if spec.needs_isolation and not self.isolated:
            raise infrastructure(
                FailureCode.NOT_ISOLATED, f"this code is not run here: {self.why_not}"
            )
        if spec.hardware_class != self.hardware_class:
            raise infrastructure(
                FailureCode.WRONG_HARDWARE,
                f"{spec.hardware_class} was asked for; this is {self.hardware_class}",
            )

    @property
    def isolated(self) -> bool:
        """Whether code that nobody trusts may run here: no guarantee that was tried failed."""
        return not self.why_not


def open_host(
    settings: WorkerSettings,
    scratch: Scratch,
    api: AttemptApi,
    bundles: BundleCache,
    gpus: Gpus,
    leaving: threading.Event,
) -> Host:
    """Choose and try the sandbox, and find out what this host is.

    Raises:
        SandboxUnavailable: the sandbox that was asked for does not work here.
    """
    probes = scratch.attempts / "probes"  # among the attempts, so that leftovers are removed
    probes.mkdir(mode=0o700)
    chosen, why = choose_sandbox(
        settings.sandbox,
        probes,
        docker_host=settings.docker_host,
        image=settings.docker_image,
        scope=f"worker-{hashlib.sha256(os.fsencode(scratch.folder)).hexdigest()[:16]}",
    )
    sandbox_settings = dataclasses.replace(chosen, grace_seconds=settings.grace_seconds)
    sandbox = open_sandbox(sandbox_settings)
    gpus.reach_through(CudaTrial(sandbox_settings).problem)
    wanted = {journal.notes.spec.attempt for journal in scratch.journals if settings.adopt}
    remove_kept_containers(sandbox_settings, wanted)
    guarantees = sandbox.probe(quick=settings.probe == "quick")
    _log.log(logging.INFO if sandbox.isolated else logging.WARNING, "sandbox: %s", why)
    start_evaluation_server()
    cpu = read_cpu()
    return Host(
        settings=settings,
        api=api,
        bundles=bundles,
        scratch=scratch,
        sandbox=sandbox,
        sandbox_settings=sandbox_settings,
        sandbox_facts=sandbox.facts,
        guarantees={guarantee.value: held for guarantee, held in guarantees.items()},
        hardware_class=settings.hardware_class or _class_of(cpu, gpus),
        cpu=cpu,
        gpus=gpus,
        pressure=Pressure(settings.cpus),
        leaving=leaving,
        info=_info(cpu, why, gpus.driver)
        | {"held_out_key": held_out_fingerprint(settings), "image": sandbox.facts.get("image")},
    )


def held_out_fingerprint(settings: WorkerSettings) -> str:
    """What tells held-out keys apart without giving one away; empty without a key."""
    key = settings.held_out_key.get_secret_value()
    return hashlib.sha256(f"held-out key {key}".encode()).hexdigest()[:8] if key else ""


def _class_of(cpu: Cpu, gpus: Gpus) -> str:
    return gpu_class(gpus.devices) if gpus.devices else hardware_class(cpu)


def _info(cpu: Cpu, why: str, driver: str | None) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "system": platform.system(),
        "kernel": platform.release(),
        "cpu_model": cpu.model,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "sandbox": why,
        "assay": _version("assay"),
        "driver": driver,
        "evaluation": EVALUATION,
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    """The version of every installed distribution: an environment says which of them decide. Of
    one that is installed twice it is the first, which is the one that is imported."""
    found: dict[str, str] = {}
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found.setdefault(normalised(name), each.version)
    return found


def _version(distribution: str) -> str | None:
    """The installed version, read from its metadata: importing torch takes seconds."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
