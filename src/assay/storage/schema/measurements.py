"""Measurements: what was asked for, who ran it, what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from assay.domain.conditions import UNRECORDED
from assay.storage.schema.base import Base, Id, State
from assay.storage.types import BigId

LIVE_MEASUREMENT_SQL = "state IN ('queued', 'running')"
LIVE_ATTEMPT_SQL = "state IN ('assigned', 'starting', 'running', 'finalizing')"


class ConditionSet(Base):
    """Facts about workers, under the id that follows from them; see `domain/conditions.py`."""

    __tablename__ = "condition_set"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    hardware_class: Mapped[str] = mapped_column(Id)
    facts: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Equivalence(Base):
    """Whether conditions are taken for equal to others, for an environment and profile.

    Rows of hosts (`conditions_id` has their recorded facts) are made by the scheduler: the `first`
    host defines what the others are compared with, those that are `pending` measure controls, and
    the controls decide between `equal` and `different`. An operator declares sets `equal`.
    """

    __tablename__ = "equivalence"

    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"), primary_key=True)
    profile: Mapped[str] = mapped_column(Id, primary_key=True)
    conditions_id: Mapped[str] = mapped_column(ForeignKey("condition_set.id"), primary_key=True)
    equals_id: Mapped[str] = mapped_column(ForeignKey("condition_set.id"), index=True)
    state: Mapped[str] = mapped_column(State)
    #: What was compared: see `storage/equivalences.py`.
    evidence: Mapped[dict[str, Any]] = mapped_column(default=dict)
    declared_by: Mapped[str | None] = mapped_column(Id)
    created_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]


class Shape(Base):
    """What measurements need of a worker, and for how long: few rows, so that a scheduler can look
    at the head of the queue of each instead of at the queue."""

    __tablename__ = "shape"
    __table_args__ = (
        UniqueConstraint(
            "hardware_class",
            "cpus",
            "gpus",
            "memory_bytes",
            "needs_isolation",
            "budget_seconds",
            "bound_seconds",
            "environment_id",
            "profile",
            "conditions_id",
            name="uq_shape",
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    hardware_class: Mapped[str] = mapped_column(Id)
    cpus: Mapped[int]
    gpus: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    needs_isolation: Mapped[bool]
    budget_seconds: Mapped[float]
    bound_seconds: Mapped[float]
    #: Which workers' results may be compared is decided for each environment and profile.
    environment_id: Mapped[str] = mapped_column(Id, default="")
    profile: Mapped[str] = mapped_column(Id, default="")
    conditions_id: Mapped[str] = mapped_column(Id, default=UNRECORDED)


class Measurement(Base):
    """One scored execution of a codebase."""

    __tablename__ = "measurement"
    __table_args__ = (
        UniqueConstraint(
            "codebase_id",
            "environment_id",
            "profile",
            "seed",
            "hardware_class",
            "replicate",
            "kind",
            "conditions_id",
            name="uq_measurement_identity",
        ),
        Index(
            "ix_measurement_queue",
            "shape_id",
            text("priority DESC"),
            "batch_at",
            "queued_at",
            "id",
            sqlite_where=text("state = 'queued'"),
            postgresql_where=text("state = 'queued'"),
        ),
        Index(
            "ix_measurement_live",
            "state",
            sqlite_where=text(LIVE_MEASUREMENT_SQL),
            postgresql_where=text(LIVE_MEASUREMENT_SQL),
        ),
        Index(
            "ix_measurement_failed",
            "finished_at",
            sqlite_where=text("state = 'failed'"),
            postgresql_where=text("state = 'failed'"),
        ),
        # Holds all that a sum of the bits reads, since environments are looked at often.
        Index("ix_measurement_bits", "environment_id", "search_bits", "sealed_bits"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    kind: Mapped[str] = mapped_column(State)
    codebase_id: Mapped[str] = mapped_column(ForeignKey("codebase.id"))
    environment_id: Mapped[str] = mapped_column(ForeignKey("environment.id"))
    profile: Mapped[str] = mapped_column(Id)
    seed: Mapped[int]
    hardware_class: Mapped[str] = mapped_column(Id)
    conditions_id: Mapped[str] = mapped_column(Id, default=UNRECORDED)
    replicate: Mapped[int]
    owner: Mapped[str] = mapped_column(Id)
    state: Mapped[str] = mapped_column(State)
    failure: Mapped[dict[str, Any] | None]
    priority: Mapped[int]
    needs_isolation: Mapped[bool]
    cpus: Mapped[int]
    gpus: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    budget_seconds: Mapped[float]
    shape_id: Mapped[str | None] = mapped_column(Id)
    batch_at: Mapped[datetime | None]
    not_before: Mapped[datetime | None]
    infrastructure_failures: Mapped[int] = mapped_column(default=0)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    #: Bits about each held-out split that its results and failures show; see `domain/rounding.py`.
    search_bits: Mapped[int] = mapped_column(default=0)
    sealed_bits: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class ExperimentMeasurement(Base):
    """Which measurements decide an experiment; several experiments may share one."""

    __tablename__ = "experiment_measurement"

    experiment_id: Mapped[str] = mapped_column(ForeignKey("experiment.id"), primary_key=True)
    measurement_id: Mapped[str] = mapped_column(
        ForeignKey("measurement.id"), primary_key=True, index=True
    )
    #: `score` decides the experiment; `smoke` was preflight; `replaced` failed and was repaired.
    role: Mapped[str] = mapped_column(State, default="score")


class Worker(Base):
    """A host process that runs measurements. Its token is stored as a hash."""

    __tablename__ = "worker"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    token_hash: Mapped[str] = mapped_column(Id, unique=True)
    incarnation: Mapped[str] = mapped_column(String(200))
    state: Mapped[str] = mapped_column(State)
    cpus: Mapped[int]
    gpus: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    hardware_class: Mapped[str] = mapped_column(Id)
    sandbox: Mapped[str] = mapped_column(Id)
    isolated: Mapped[bool]
    guarantees: Mapped[dict[str, Any]]
    info: Mapped[dict[str, Any]]
    draining: Mapped[bool] = mapped_column(default=False)
    usable_gpus: Mapped[int] = mapped_column(default=0)
    #: Null: all.
    usable_cpus: Mapped[int | None]
    devices: Mapped[list[Any]] = mapped_column(default=list)
    #: GPUs that are left out, and why.
    troubles: Mapped[list[Any]] = mapped_column(default=list)
    version: Mapped[str] = mapped_column(Id, default="")
    cordoned_until: Mapped[datetime | None]
    cordon_reason: Mapped[str | None] = mapped_column(Text)
    cordons: Mapped[int] = mapped_column(default=0)
    last_seen_at: Mapped[datetime]
    #: Of its incarnation, so that one that was delayed is known to be old.
    last_sync: Mapped[int] = mapped_column(BigInteger, default=0)


class Attempt(Base):
    """One lease of a measurement on one worker.

    `released_at` is set when the host says that nothing of the attempt runs any more: only then
    are its resources free. An expired lease permits a replacement elsewhere and frees nothing.
    """

    __tablename__ = "attempt"
    __table_args__ = (
        UniqueConstraint("measurement_id", "number"),
        Index(
            "uq_attempt_live",
            "measurement_id",
            unique=True,
            sqlite_where=text(LIVE_ATTEMPT_SQL),
            postgresql_where=text(LIVE_ATTEMPT_SQL),
        ),
        Index(
            "ix_attempt_held",
            "worker_id",
            sqlite_where=text("released_at IS NULL"),
            postgresql_where=text("released_at IS NULL"),
        ),
        Index(
            "ix_attempt_live",
            "lease_expires_at",
            sqlite_where=text(LIVE_ATTEMPT_SQL),
            postgresql_where=text(LIVE_ATTEMPT_SQL),
        ),
        Index(
            "ix_attempt_infrastructure",
            "worker_id",
            "finished_at",
            sqlite_where=text("infrastructure"),
            postgresql_where=text("infrastructure"),
        ),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    measurement_id: Mapped[str] = mapped_column(ForeignKey("measurement.id"))
    number: Mapped[int]
    worker_id: Mapped[str] = mapped_column(ForeignKey("worker.id"))
    lease_token: Mapped[int] = mapped_column(BigInteger)
    lease_expires_at: Mapped[datetime]
    state: Mapped[str] = mapped_column(State)
    failure: Mapped[dict[str, Any] | None]
    cpus: Mapped[int]
    gpus: Mapped[int]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    bound_seconds: Mapped[float] = mapped_column(default=0.0)
    devices: Mapped[list[Any]] = mapped_column(default=list)
    #: The worker's software and sandbox when it was assigned; see `storage/software.py`. Processes
    #: of the version before may still write the column by its old name.
    software: Mapped[dict[str, Any] | None] = mapped_column("conditions")
    infrastructure: Mapped[bool] = mapped_column(default=False)
    rings: Mapped[int] = mapped_column(default=0)
    rung_at: Mapped[datetime | None]
    deadline_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    released_at: Mapped[datetime | None]


class Lease(Base):
    """Source of lease tokens: one row per token, so that tokens only ever increase."""

    __tablename__ = "lease"
    __table_args__ = {"sqlite_autoincrement": True}

    token: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    attempt_id: Mapped[str] = mapped_column(Id)


class Result(Base):
    """The sealed result of a measurement. The primary key makes a second one impossible.

    `metric`, `metrics`, `provenance` and `seconds` are exact. `shown_metric` is the metric rounded
    as the API shows it: averages that are shown are made of it. It is null in results that a
    process of an older version stored. A smoke has no metric.
    """

    __tablename__ = "result"

    measurement_id: Mapped[str] = mapped_column(ForeignKey("measurement.id"), primary_key=True)
    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), unique=True)
    metric: Mapped[float | None]
    shown_metric: Mapped[float | None]
    metrics: Mapped[dict[str, Any]]
    provenance: Mapped[dict[str, Any]]
    seconds: Mapped[float]
    created_at: Mapped[datetime]


class Rescore(Base):
    """What the second evaluation of a result's artifact gave; exact. The first one counts."""

    __tablename__ = "rescore"

    measurement_id: Mapped[str] = mapped_column(
        ForeignKey("result.measurement_id"), primary_key=True
    )
    metric: Mapped[float]
    metrics: Mapped[dict[str, Any]]
    seconds: Mapped[float]
    created_at: Mapped[datetime]


class Artifacts(Base):
    """The manifest of an attempt, as written last into the object store."""

    __tablename__ = "artifacts"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    prefix: Mapped[str] = mapped_column(String(256))
    files: Mapped[list[Any]]


class CurvePoint(Base):
    """A line of the codebase's metrics file."""

    __tablename__ = "curve_point"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[float | None]
    values: Mapped[dict[str, Any]]


class SystemPoint(Base):
    """What a worker saw an attempt use: processor, memory, GPUs."""

    __tablename__ = "system_point"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    values: Mapped[dict[str, Any]]


class LogChunk(Base):
    """Log bytes at an offset of a stream: in the row, or in the object store under `key`."""

    __tablename__ = "log_chunk"

    attempt_id: Mapped[str] = mapped_column(ForeignKey("attempt.id"), primary_key=True)
    stream: Mapped[str] = mapped_column(State, primary_key=True)
    byte_offset: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    size: Mapped[int] = mapped_column(default=0)
    data: Mapped[bytes | None] = mapped_column(LargeBinary)
    key: Mapped[str | None] = mapped_column(String(256))
