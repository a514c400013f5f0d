"""Webhooks: create, list, delete, try; what became of their deliveries."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import Page
from assay.contracts.webhook import (
    CreatedWebhookBody,
    DeliveryBody,
    WebhookBody,
    WebhookRequest,
)
from assay.storage import idempotency, schema, webhooks
from services.implementer.dependencies import ContextDep, IdPath, KeyDep, OwnerDep, PageDep
from services.implementer.paging import after, page_of
from services.implementer.receivers import Policy
from services.implementer.views.webhooks import delivery_body, webhook_body

router = APIRouter(tags=["webhooks"])


@router.post("/webhooks", status_code=201, response_model=CreatedWebhookBody)
def create(
    request: WebhookRequest, context: ContextDep, owner: OwnerDep, key: KeyDep = None
) -> Response:
    """Have events of one's own searches, batches and experiments sent to an address.

    The answer holds the secret that deliveries are signed with. It is not shown again.
    """
    Policy.of(context.settings).check_url(request.url)

    def action(session: Session) -> tuple[int, dict[str, Any]]:
        row = webhooks.create(context.db, session, owner, request)
        return 201, webhook_body(row).wire()

    fingerprint = idempotency.fingerprint("POST /v1/webhooks", request.model_dump_json())
    done = idempotency.once(context.db, owner, key, fingerprint, action)
    headers = {"Location": f"/v1/webhooks/{done.body['id']}"}
    if done.replayed:
        headers["Idempotent-Replayed"] = "true"
    # The record of the request does not hold the secret, so that it is gone with the webhook.
    with context.db.read() as session:
        secret = webhooks.owned(session, done.body["id"], owner).secret
    return JSONResponse({**done.body, "secret": secret}, done.status, headers)


@router.get("/webhooks")
def list_(context: ContextDep, owner: OwnerDep, page: PageDep) -> Page[WebhookBody]:
    """Webhooks, newest first, without their secrets."""
    table = schema.Webhook
    query = select(table).where(table.owner == owner)
    last = after(page, {})
    if last is not None:
        query = query.where(table.id < str(last))
    with context.db.read() as session:
        rows = session.scalars(query.order_by(table.id.desc()).limit(page.limit + 1)).all()
        return page_of(rows, page, {}, lambda row: row.id, webhook_body)


@router.get("/webhooks/{webhook_id}")
def read(webhook_id: IdPath, context: ContextDep, owner: OwnerDep) -> WebhookBody:
    """A webhook, without its secret."""
    with context.db.read() as session:
        return webhook_body(webhooks.owned(session, webhook_id, owner))


@router.delete("/webhooks/{webhook_id}", status_code=204, response_class=Response)
def delete(webhook_id: IdPath, context: ContextDep, owner: OwnerDep) -> None:
    """Delete a webhook with its deliveries. What has not been sent is not sent any more."""
    with context.write() as session:
        webhooks.owned(session, webhook_id, owner)
        webhooks.remove(session, webhook_id)


@router.post("/webhooks/{webhook_id}/test", status_code=202)
def test(webhook_id: IdPath, context: ContextDep, owner: OwnerDep) -> DeliveryBody:
    """Send a test, once. Read the delivery to see what came of it."""
    with context.write() as session:
        delivery_id = webhooks.test(session, webhooks.owned(session, webhook_id, owner))
        return delivery_body(webhooks.delivery(session, webhook_id, delivery_id))


@router.get("/webhooks/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: IdPath, context: ContextDep, owner: OwnerDep, page: PageDep
) -> Page[DeliveryBody]:
    """What was sent and what waits, newest first. Deliveries are kept for 30 days."""
    filters = {"webhook": webhook_id}
    last = after(page, filters)
    before = None if last is None else str(last)
    with context.db.read() as session:
        webhooks.owned(session, webhook_id, owner)
        rows = webhooks.deliveries(session, webhook_id, before, page.limit + 1)
        return page_of(rows, page, filters, lambda row: row.id, delivery_body)


@router.get("/webhooks/{webhook_id}/deliveries/{delivery_id}")
def read_delivery(
    webhook_id: IdPath, delivery_id: IdPath, context: ContextDep, owner: OwnerDep
) -> DeliveryBody:
    """A delivery."""
    with context.db.read() as session:
        webhooks.owned(session, webhook_id, owner)
        return delivery_body(webhooks.delivery(session, webhook_id, delivery_id))


@router.post("/webhooks/{webhook_id}/deliveries/{delivery_id}/retry", status_code=202)
def retry(
    webhook_id: IdPath, delivery_id: IdPath, context: ContextDep, owner: OwnerDep
) -> DeliveryBody:
    """Send a delivery again, now and under the same id."""
    with context.write() as session:
        row = webhooks.owned(session, webhook_id, owner)
        webhooks.send_again(context.db, session, row, delivery_id)
        session.expire_all()
        return delivery_body(webhooks.delivery(session, webhook_id, delivery_id))
