"""What the service itself remembers: events, messages, leaders, requests carried out."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from assay.storage.schema.base import Base, Id
from assay.storage.types import BigId


class Event(Base):
    """A change somebody may wait for. Ids increase in commit order within a batch."""

    __tablename__ = "event"
    __table_args__ = (
        Index("ix_event_batch", "batch_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"))
    experiment_id: Mapped[str | None] = mapped_column(Id)
    type: Mapped[str] = mapped_column(Id)
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class SearchEvent(Base):
    """A change of a search. Ids increase in commit order: writers lock the search's row first."""

    __tablename__ = "search_event"
    __table_args__ = (
        Index("ix_search_event", "search_id", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    search_id: Mapped[str] = mapped_column(ForeignKey("search.id"))
    type: Mapped[str] = mapped_column(Id)
    data: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class Outbox(Base):
    """Messages that commit together with the change that causes them."""

    __tablename__ = "outbox"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    topic: Mapped[str] = mapped_column(Id)
    key: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime]


class Leader(Base):
    """Who may schedule, and until when. Every takeover raises the epoch."""

    __tablename__ = "leader"

    name: Mapped[str] = mapped_column(Id, primary_key=True)
    holder: Mapped[str] = mapped_column(Id)
    epoch: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]
    #: What it decides by; see `storage/placing.py: Rules`.
    rules: Mapped[dict[str, Any] | None]


class IdempotencyKey(Base):
    """A POST that was carried out, and what it answered."""

    __tablename__ = "idempotency_key"

    owner: Mapped[str] = mapped_column(Id, primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[str] = mapped_column(Id)
    status: Mapped[int]
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]
