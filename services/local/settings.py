"""Settings of the embedded service, from `ASSAY_LOCAL_*` environment variables and flags."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from assay.sandbox.choose import BackendName
from assay.settings import ServiceSettings
from services.implementer.binding import is_loopback


class LocalSettings(ServiceSettings):
    """Where the embedded service keeps things and where it listens."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_LOCAL_", extra="forbid")

    data_dir: Path = Field(Path(".assay"), description="Database, objects, cache and scratch.")
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535, description="0: any free port.")
    sandbox: BackendName = "auto"
    cpus: int | None = Field(None, ge=1, description="Slots of the worker; all cores if not set.")

    @property
    def url(self) -> str:
        """The database's URL: SQLite, since one process per folder is what the lock ensures."""
        return f"sqlite:///{self.database_path}"

    @property
    def database_path(self) -> Path:
        return self.data_dir.resolve() / "assay.db"

    @property
    def objects_path(self) -> Path:
        return self.data_dir.resolve() / "objects"

    @property
    def listens_here_only(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)
