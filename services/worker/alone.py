"""Measure without a service: attempts that report to the process that started them."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.contracts.environment import Profile
from assay.contracts.worker import (
    AttemptSpec,
    FinishRequest,
    FinishResponse,
    ManifestEntry,
    ProgressRequest,
)
from assay.domain.errors import NotFound
from assay.environments import pack_tree
from services.worker.assignment import Assignment
from services.worker.attempt import run_attempt
from services.worker.cache import BundleCache, CachedBundle
from services.worker.folders import Scratch
from services.worker.gpus import open_gpus
from services.worker.host import Host, open_host
from services.worker.settings import WorkerSettings
from services.worker.telemetry import Bulk


class OwnEnd:
    """Takes the place of the API for an attempt: keeps its `end`, and stores no artifact."""

    def __init__(self) -> None:
        self.end: FinishRequest | None = None

    # How long a call may wait, and when to give up, says nothing to a process of its own.

    def claim(self, attempt: str, lease_token: int, **_: Any) -> None:
        """The attempt is this process's own."""

    def progress(self, attempt: str, body: ProgressRequest, **_: Any) -> None:
        """Nobody follows it."""

    def put_log(self, attempt: str, lease_token: int, bulk: Bulk, **_: Any) -> None:
        """Nobody follows it."""

    def upload(self, attempt: str, lease_token: int, path: Path, **_: Any) -> ManifestEntry:
        """Name the file; it is removed with the attempt."""
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return ManifestEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256)

    def finish(self, attempt: str, body: FinishRequest, **_: Any) -> FinishResponse:
        """Keep the end."""
        self.end = body
        return FinishResponse(state=body.state)

    def codebase(self, sha256: str, **_: Any) -> bytes:
        """Refuse: codebases come along with their attempt."""
        raise NotFound(f"codebase {sha256[:12]} did not come along")


@contextmanager
def opened_host(settings: WorkerSettings, bundles: Callable[[str], bytes]) -> Iterator[Host]:
    """This host, ready to run attempts, with workspaces that are removed at the end.

    `bundles` gives the zip of an environment by its hash. What the baseline uses here is not
    measured first, so that caps which are multiples of it do not hold; they change no result.

    Raises:
        SandboxUnavailable: the sandbox that was asked for does not work here.
        InvalidInput: the GPUs that were asked for are not there, or of several kinds.
    """
    with tempfile.TemporaryDirectory(prefix="assay-alone-") as name:
        scratch = Scratch(Path(name) / "scratch")
        try:
            gpus = open_gpus(settings.gpus)
            key = settings.held_out_key.get_secret_value()
            cache = BundleCache(settings.cache, bundles, held_out_key=key)
            host = open_host(settings, scratch, OwnEnd(), cache, gpus, threading.Event())
            yield dataclasses.replace(host, holds_relative_caps=False)
        finally:
            scratch.close()


def measure(
    host: Host,
    bundle: CachedBundle,
    codebase: str,
    files: Mapping[str, bytes],
    profile: str,
    seed: int,
    *,
    kind: str,
    needs_isolation: bool = True,
) -> FinishRequest:
    """Train and score a codebase on one seed, as a worker does for a service; how it ended.

    `codebase`: the hash of its `files`. Code that `needs_isolation` is not started where it would
    not have it.
    """
    wanted: Profile = bundle.environment.profile(profile)
    api = OwnEnd()
    spec = AttemptSpec(
        attempt=f"att_seed-{seed}",
        lease_token=0,
        measurement=f"seed {seed}",
        kind=kind,
        codebase=codebase,
        environment=bundle.environment.id,
        bundle=bundle.sha256,
        profile=profile,
        seed=seed,
        hardware_class=host.hardware_class,
        cpus=wanted.cpus,
        gpus=wanted.gpus,
        memory_bytes=wanted.memory_bytes,
        needs_isolation=needs_isolation,
        archive=base64.b64encode(pack_tree(files)).decode(),
    )
    run_attempt(dataclasses.replace(host, api=api), Assignment(spec))
    assert api.end is not None, "nobody else could take it"
    return api.end
