"""Webhooks and deliveries as the API shows them. A secret is never among what is shown."""

from __future__ import annotations

from assay.contracts.webhook import DeliveryBody, WebhookBody
from assay.domain.webhooks import DeliveryState
from assay.storage import schema


def webhook_body(row: schema.Webhook) -> WebhookBody:
    """Return a webhook, without its secret."""
    return WebhookBody(
        id=row.id,
        url=row.url,
        events=row.events,
        description=row.description,
        state=row.state,
        created_at=row.created_at,
    )


def delivery_body(row: schema.Delivery) -> DeliveryBody:
    """Return a delivery and what became of it."""
    return DeliveryBody(
        id=row.id,
        webhook=row.webhook_id,
        type=row.type,
        text=row.text,
        data=row.data,
        state=row.state,
        attempts=row.attempts,
        status=row.status,
        error=row.error,
        next_at=row.next_at if row.state == DeliveryState.PENDING.value else None,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )
