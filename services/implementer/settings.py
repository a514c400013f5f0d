"""Settings of the Implementer API, from `ASSAY_*` environment variables."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from assay.settings import ServiceSettings


class ImplementerSettings(ServiceSettings):
    """How the API answers and how many ideas are implemented at once."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_IMPLEMENTER_", extra="forbid")

    api_keys: dict[str, SecretStr] = Field(
        {}, description="Owner → key (JSON). Without keys everybody is the owner `local`."
    )
    model_urls: list[str] = Field(
        [], description="Addresses of models that callers with an API key may name (JSON)."
    )
    concurrent_ideas: int = Field(16, ge=1, description="Ideas implemented at once.")
    lease_seconds: float = Field(60, gt=0, description="Time to live of a worker's lease.")
    max_body_bytes: int = Field(64 << 20, ge=1 << 10)
    max_artifact_bytes: int = Field(512 << 20, ge=1 << 10)
    rescan_seconds: float = Field(
        10, gt=0, description="How often work that no message announced is looked for."
    )

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)
