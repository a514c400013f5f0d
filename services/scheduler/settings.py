"""Settings of the scheduler, from `ASSAY_SCHEDULER_*` environment variables."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from assay.domain.placement import Policy
from assay.settings import ServiceSettings, Weights
from assay.storage.placing import Rules


class SchedulerSettings(ServiceSettings):
    """How often the clock ticks and how long leases live."""

    model_config = SettingsConfigDict(env_prefix="ASSAY_SCHEDULER_", extra="forbid")

    tick_seconds: float = Field(1, gt=0, description="The clock; news makes it tick earlier.")
    lease_seconds: float = Field(180, gt=0, description="Lease of an attempt, before it is lost.")
    suspect_seconds: float = Field(
        60, gt=0, description="A worker silent for so long is given no new work."
    )
    leader_seconds: float = Field(15, gt=0, description="Lease of the leader.")
    ring_seconds: list[float] = Field(
        [5, 15, 30], description="A worker is told again of an attempt it has not taken by then."
    )
    unclaimed_seconds: float = Field(
        60, gt=0, description="An attempt that was not taken by then goes to another worker."
    )
    starting_per_worker: int = Field(4, ge=1, description="Attempts starting at once on a worker.")
    shares: Weights = Field(
        {}, description="Owner → weight of its share in measuring (JSON); 1 for all others."
    )
    placements: int = Field(128, ge=1, description="Assignments of one transaction.")
    cordon_failures: int = Field(3, ge=1, description="Failures for which a worker is cordoned.")
    cordon_window_seconds: float = Field(1800, gt=0, description="They count for so long.")
    cordon_seconds: float = Field(600, gt=0, description="The first cordon; doubles every time.")
    longest_cordon_seconds: float = Field(6 * 3600, gt=0, description="It grows no further.")

    metrics_host: str = Field("127.0.0.1", description="Where metrics are shown.")
    metrics_port: int | None = Field(None, ge=0, le=65535, description="Port for metrics.")

    @property
    def policy(self) -> Policy:
        return Policy(
            starting_per_worker=self.starting_per_worker,
            placements=self.placements,
            shares=self.shares,
        )

    @property
    def rules(self) -> Rules:
        return Rules(self.policy, self.silence.total_seconds(), self.cordon_window_seconds)

    @property
    def silence(self) -> timedelta:
        """How long a worker may be silent and be given work."""
        return timedelta(seconds=min(self.suspect_seconds, self.lease_seconds))

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)

    @property
    def leader_lease(self) -> timedelta:
        return timedelta(seconds=self.leader_seconds)
