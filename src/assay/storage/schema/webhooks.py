"""Webhooks, their deliveries, and confirmations of which they are yet to be told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from assay.domain.webhooks import DeliveryState
from assay.storage.schema.base import Base, Id, State

PENDING_SQL = f"state = '{DeliveryState.PENDING.value}'"


class Webhook(Base):
    """Where events of an owner are sent to. The secret is kept as it is: signing needs it."""

    __tablename__ = "webhook"

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    owner: Mapped[str] = mapped_column(Id, index=True)
    url: Mapped[str] = mapped_column(Text)
    events: Mapped[list[Any]]
    description: Mapped[str | None] = mapped_column(String(200))
    secret: Mapped[str] = mapped_column(Id)
    state: Mapped[str] = mapped_column(State)
    created_at: Mapped[datetime]


class Delivery(Base):
    """One event for one webhook, stored in the transaction that made the event.

    `cause` makes it unique: an event that is told twice is delivered once. `attempts` counts the
    tries that began, and is the token of the one under way; `attempts_before` were made before
    somebody asked to send it again. While a try is under way, `next_at` is when another process
    may take it for lost.
    """

    __tablename__ = "delivery"
    __table_args__ = (
        UniqueConstraint("webhook_id", "cause"),
        Index(
            "ix_delivery_due",
            "next_at",
            sqlite_where=text(PENDING_SQL),
            postgresql_where=text(PENDING_SQL),
        ),
        Index("ix_delivery_webhook", "webhook_id", "id"),
        Index("ix_delivery_finished", "finished_at"),
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhook.id", ondelete="CASCADE"))
    type: Mapped[str] = mapped_column(Id)
    cause: Mapped[str] = mapped_column(Id)
    text: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(State)
    attempts: Mapped[int]
    attempts_before: Mapped[int]
    next_at: Mapped[datetime]
    status: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Unjudged(Base):
    """A finished batch of confirmations whose claims are told as soon as they are decided.

    Verdicts are made when they are read, and may wait for the baseline after the batch has
    finished: no transaction makes that event, so a process looks until there is one.
    """

    __tablename__ = "unjudged"

    batch_id: Mapped[str] = mapped_column(ForeignKey("batch.id"), primary_key=True)
    looks: Mapped[int]
    next_at: Mapped[datetime] = mapped_column(index=True)
