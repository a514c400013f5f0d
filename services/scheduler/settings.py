"""Settings of the scheduler, from `ASSAY_SCHEDULER_*` environment variables."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from assay.settings import ServiceSettings


class SchedulerSettings(ServiceSettings):
    """How often the clock ticks and how long leases live."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_SCHEDULER_", extra="forbid")

    tick_seconds: float = Field(1, gt=0, description="The clock; news makes it tick earlier.")
    lease_seconds: float = Field(60, gt=0, description="Lease of an attempt, before it is lost.")
    leader_seconds: float = Field(15, gt=0, description="Lease of the leader.")
    queue_window: int = Field(2_000, ge=1, description="Queued measurements looked at per tick.")

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)

    @property
    def leader_lease(self) -> timedelta:
        return timedelta(seconds=self.leader_seconds)
