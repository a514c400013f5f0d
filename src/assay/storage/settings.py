"""Settings that all servers share (`ASSAY_SERVER_*`), and what is kept (`ASSAY_RETENTION_*`)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from assay.broker import BrokerAddress
from assay.settings import ServiceSettings
from assay.storage.retention import Retention

PREFIX = "ASSAY_SERVER_"


class RetentionSettings(ServiceSettings):
    """Which large artifacts `python -m assay.storage.garbage` keeps."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_RETENTION_", extra="forbid")

    best: int = Field(10, ge=0, description="So many of each environment, profile and conditions.")
    large_bytes: int = Field(64 << 20, ge=1, description="Smaller ones are kept for ever.")
    days: float = Field(1.0, ge=0, description="After the end of an attempt, all of it is kept.")

    @property
    def rules(self) -> Retention:
        return Retention(self.best, self.large_bytes, timedelta(days=self.days))


class ServerSettings(ServiceSettings):
    """Where database, broker and objects are. AWS credentials come by boto3's usual chain."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid")

    database_url: SecretStr = Field(description="postgresql://user:password@host/name")
    broker_url: SecretStr | None = Field(
        None,
        description="redis://user:password@host:6379/0 of a user who may set users; without it, "
        "everybody looks on a clock.",
    )
    objects_url: str = Field(description="s3://bucket/prefix, or a folder that all servers share.")
    s3_endpoint_url: str | None = Field(None, description="Of an S3 that is not Amazon's.")
    s3_public_endpoint_url: str | None = Field(
        None, description="The same, as workers reach it, if that is another address."
    )
    s3_region: str | None = None

    @field_validator("database_url")
    @classmethod
    def _postgres(cls, value: SecretStr) -> SecretStr:
        try:
            url = make_url(value.get_secret_value())
        except ArgumentError:  # whose text would show the password
            raise ValueError("must look like postgresql://user:password@host/name") from None
        if url.get_backend_name() != "postgresql":
            raise ValueError(
                "servers need PostgreSQL; without this variable, `assay serve` runs everything "
                "in one process on SQLite"
            )
        url = url.set(drivername="postgresql+psycopg")
        return SecretStr(url.render_as_string(hide_password=False))

    @field_validator("broker_url")
    @classmethod
    def _redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            BrokerAddress.parse(value.get_secret_value())
        return value

    @field_validator("objects_url")
    @classmethod
    def _bucket_or_folder(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme == "s3" and parts.netloc:
            return value
        if parts.scheme or not Path(value).is_absolute():
            raise ValueError("must be s3://bucket/prefix, or the absolute path of a folder")
        return value

    @property
    def broker(self) -> BrokerAddress | None:
        """The broker's address, if there is one."""
        return BrokerAddress(self.broker_url.get_secret_value()) if self.broker_url else None
