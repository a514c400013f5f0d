"""Settings of the Implementer API, from `ASSAY_*` environment variables."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from assay.contracts.caps import OwnerSpending
from assay.domain.conditions import OWN_OWNER
from assay.settings import ServiceSettings, Weights
from services.implementer.limits import ModelLimits

MAX_NAME = 200
MIN_TOKEN = 16


class ImplementerSettings(ServiceSettings):
    """How the API answers and how many ideas are implemented at once."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_IMPLEMENTER_", extra="forbid")

    api_keys: dict[str, SecretStr] = Field(
        {}, description="Owner → key (JSON). Without keys everybody is the owner `local`."
    )
    admins: list[str] = Field(
        [], description="Owners who may change workers; without it, the only one there is."
    )
    metrics_token: SecretStr | None = Field(
        None, description="Opens `/metrics` and nothing else; API keys open it too."
    )
    metrics_host: str = Field("127.0.0.1", description="Where implement workers show metrics.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port for it; the API shows its own at `/metrics`."
    )
    model_urls: list[str] = Field(
        [], description="Addresses of models that callers with an API key may name (JSON)."
    )
    host: str = Field("127.0.0.1", description="Where `assay serve` listens in server mode.")
    port: int = Field(8000, ge=0, le=65535, description="The same; 0 takes any free port.")
    workers: dict[str, SecretStr] = Field(
        {}, description="Workers to admit when the API starts: name → token (JSON)."
    )
    concurrent_ideas: int = Field(
        512,
        ge=1,
        description="Ideas implemented at once, of one batch three quarters of them; most wait "
        "for a call.",
    )
    ideas_ahead: int = Field(
        256,
        ge=1,
        description="While so many ideas of a batch are under way or implemented and wait to be "
        "measured (or as many as it has running, if that is more), a process begins no further "
        "one of it.",
    )
    shares: Weights = Field(
        {},
        description="Owner → weight of its share in implementing (JSON); 1 for all others.",
    )
    detached_searches: int = Field(
        16, ge=0, description="Searches of an owner that the service drives at once (--detach)."
    )
    concurrent_searches: int = Field(
        128, ge=0, description="Searches that a process drives at once, each in a thread."
    )
    models: dict[str, ModelLimits] = Field(
        {},
        description="Limits by model, `provider:model` or provider (JSON): `concurrent_calls` "
        "(64), `requests_per_minute`, `tokens_per_minute`; of each process.",
    )
    max_answer_tokens: int = Field(
        16_000, ge=100, description="Of an executor's answer, thinking included."
    )
    call_seconds: float = Field(600, gt=0, description="After so long a model has not answered.")
    patience_seconds: float = Field(
        6 * 3600, ge=0, description="For so long a provider that fails is asked again."
    )
    caps: dict[str, OwnerSpending] = Field(
        {},
        description="Owner, or `*` for the others → `max_cost_usd`, `max_gpu_hours` and the same "
        "with `_per_day` (JSON).",
    )
    webhook_networks: list[IPv4Network | IPv6Network] = Field(
        [],
        description="Networks that webhooks may call beside the public internet, such as "
        "`10.1.0.0/16` (JSON). Without API keys also loopback and private networks.",
    )
    webhook_seconds: float = Field(
        10, gt=0, le=60, description="After so long a webhook's receiver has not answered."
    )
    record: Path | None = Field(None, description="Folder in which models' answers are kept.")
    replay: Path | None = Field(
        None, description="Folder of kept answers; no model is asked anything."
    )
    lease_seconds: float = Field(180, gt=0, description="Time to live of a worker's lease.")
    retry_seconds: float = Field(
        10, ge=0, description="Pause before what did not start is tried again; doubles."
    )
    max_body_bytes: int = Field(64 << 20, ge=1 << 10)
    max_artifact_bytes: int = Field(
        5 << 30, ge=1 << 10, description="S3 takes no more than the default in one request."
    )
    max_log_bytes: int = Field(
        512 << 20, ge=1 << 20, description="Of a log stream, so many bytes are kept."
    )
    streams_per_client: int = Field(
        64, ge=1, description="Open streams of an API key, or of an address where there are none."
    )
    streams: int = Field(256, ge=1, description="Open streams of all clients of this process.")
    connections: int = Field(
        4096, ge=8, description="Open connections; one more closes the one idle for longest."
    )
    rescan_seconds: float = Field(
        10, gt=0, description="How often work that no message announced is looked for."
    )

    idea_lease_seconds: float = Field(
        30,
        gt=0,
        description="After so long without a sign of it, another takes ideas and searches over.",
    )

    @field_validator("api_keys")
    @classmethod
    def _leaves_own_name(cls, keys: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if OWN_OWNER in keys:
            raise ValueError(
                f"{OWN_OWNER!r} is the owner of Assay's own measurements; choose another"
            )
        return keys

    @field_validator("workers")
    @classmethod
    def _tokens(cls, workers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, token in workers.items():
            if not 1 <= len(name) <= MAX_NAME:
                raise ValueError(f"the name of a worker has 1 to {MAX_NAME} characters")
            if len(token.get_secret_value()) < MIN_TOKEN:
                raise ValueError(f"the token of {name!r} needs at least {MIN_TOKEN} characters")
        return workers

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.record is not None and self.replay is not None:
            raise ValueError("record and replay exclude each other; leave one of them out")
        if self.replay is not None and not self.replay.is_dir():
            raise ValueError(f"replay: {self.replay} is not a folder")
        return self

    @property
    def idea_lease(self) -> timedelta:
        return timedelta(seconds=self.idea_lease_seconds)

    @property
    def retry_after(self) -> timedelta:
        return timedelta(seconds=self.retry_seconds)

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)
