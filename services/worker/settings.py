"""Settings of a worker, from `ASSAY_WORKER_*` environment variables."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from assay.broker import BrokerAddress
from assay.sandbox.choose import BackendName
from assay.settings import ServiceSettings
from services.worker.hardware import available_cpus, available_memory

PREFIX = "ASSAY_WORKER_"
_GPU = re.compile(r"(GPU|MIG)(-[0-9A-Za-z]+)+(/\d+){0,2}")
MIB = 1 << 20


def _cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "assay"


class WorkerSettings(ServiceSettings):
    """What a worker offers and where it keeps things. Sizes in bytes, times in seconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    api_url: str = Field("http://127.0.0.1:8000", description="Base of the implementer API.")
    token: SecretStr = Field(description="The worker's own credential; the only one it holds.")
    broker_url: str | None = Field(
        None,
        description="redis://host:6379/0 without credentials; tells the worker of news at once.",
    )
    name: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200)

    cpus: int = Field(default_factory=available_cpus, ge=1, description="Slots offered.")
    memory_bytes: int = Field(default_factory=available_memory, ge=1)
    hardware_class: str | None = Field(None, description="Found by itself when not given.")
    gpus: Literal["auto", "none"] | list[str] = Field(
        "auto", description="All that the driver shows, none, or those with these UUIDs (JSON)."
    )

    cache: Path = Field(default_factory=_cache_home, description="Bundles and prepared data.")
    scratch: Path | None = Field(
        None, description="Workspaces of attempts; one folder per worker. In the cache by default."
    )

    held_out_key: SecretStr = Field(
        SecretStr(""),
        description="Mixed into held-out data that an environment generates; the same on every "
        "worker whose results are compared. Empty: the public data.",
    )
    sandbox: BackendName = "auto"
    docker_host: str | None = Field(None, description="The engine's socket; else $DOCKER_HOST.")
    docker_image: str | None = Field(
        None, description="What code runs in; without it, this host's system, read-only."
    )
    probe: Literal["quick", "full"] = Field(
        "full", description="Which guarantees are tried at the start; `full` takes seconds."
    )
    adopt: bool = Field(
        True, description="Under docker, trainings outlive a killed worker; the next one goes on."
    )
    grace_seconds: float = Field(10, ge=0, description="Between SIGTERM and the kill.")
    processes: int | None = Field(
        None,
        ge=1,
        description="Processes and threads of one attempt at most, whatever its profile asks for.",
    )
    open_files: int = Field(1024, ge=16)
    disk_files: int = Field(20_000, ge=100, description="Files and folders of one attempt.")
    log_bytes: int = Field(
        256 * MIB, ge=1 << 16, description="Of an output that is longer, its end is kept besides."
    )
    artifact_bytes: int = Field(
        4 << 30,
        ge=1,
        description="Larger artifacts are not stored, whatever their profile allows.",
    )
    artifact_files: int = Field(1000, ge=1)

    sync_seconds: float = Field(10, gt=0, le=60, description="Longest time without a sync.")
    poll_seconds: float = Field(
        5, ge=0, le=30, description="How long a sync waits at the API; 0: `ring()` ends the wait."
    )
    progress_seconds: float = Field(1, gt=0, description="Between two reports of an attempt.")
    api_seconds: float = Field(60, gt=0, description="An API gone for longer fails a fetch.")
    finish_seconds: float = Field(900, gt=0, description="How long a result is offered.")
    sample_seconds: float = Field(10, gt=0, description="Between two looks at what is used.")
    drain_seconds: float | None = Field(
        None,
        ge=0,
        description="After SIGTERM, before attempts are ended. Without it 30, and on a host with "
        "GPUs until they have ended: each has a budget.",
    )

    @property
    def scratch_folder(self) -> Path:
        """`scratch`, or a folder of this worker's own in the cache."""
        return self.scratch or self.cache / "scratch" / self.name.replace("/", "_")

    @field_validator("gpus")
    @classmethod
    def _uuids(cls, gpus: str | list[str]) -> str | list[str]:
        if isinstance(gpus, list):
            wrong = [gpu for gpu in gpus if not _GPU.fullmatch(gpu)]
            if wrong or len(set(gpus)) != len(gpus):
                raise ValueError("must be different UUIDs of GPUs (GPU-… or MIG-…)")
        return gpus

    @field_validator("api_url")
    @classmethod
    def _http(cls, url: str) -> str:
        if not url.startswith(("http://", "https://")):
            raise ValueError("must start with http:// or https://")
        return url.rstrip("/")

    @field_validator("broker_url")
    @classmethod
    def _redis(cls, url: str | None) -> str | None:
        if url is not None:
            BrokerAddress.parse(url, credentials=False)
        return url

    @field_validator("token")
    @classmethod
    def _header_value(cls, token: SecretStr) -> SecretStr:
        text = token.get_secret_value()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("must be non-empty, printable ASCII without spaces")
        return token

    @field_validator("cache", "scratch")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()
