"""Webhooks: where events are sent to, and what became of each delivery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from assay.contracts.base import Items, Name, Request, Resource, Storable

MAX_URL = 2_000
#: What a webhook can be told of: the values of `assay.domain.webhooks.WebhookEvent`.
Event = Literal[
    "search.finished",
    "search.cancelled",
    "search.paused",
    "batch.finished",
    "cap.reached",
    "experiment.confirmed",
]


def _address(url: str) -> str:
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("must be printable ASCII without spaces; encode other characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must begin with https:// or http:// and a host")
    if port == 0:
        raise ValueError("has the port 0; name the port on which the receiver listens")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user name or password; deliveries are signed instead")
    if "#" in url:
        raise ValueError("must not hold a fragment (#…), which is never sent")
    return url


Address = Annotated[
    str, Field(min_length=1, max_length=MAX_URL), Storable(), AfterValidator(_address)
]


class WebhookRequest(Request):
    """An address that events of this owner are sent to."""

    url: Address = Field(description="Where deliveries are sent, as POST requests.")
    events: Items[Event] = Field(
        default_factory=lambda: list(get_args(Event)),
        min_length=1,
        max_length=20,
        description="Which events; by default all.",
    )
    description: Name | None = Field(None, description="For people: what is behind the address.")


class WebhookBody(Resource):
    """A webhook. Its secret is shown once, when it is created."""

    object: Literal["webhook"] = "webhook"
    id: str
    url: str
    events: list[str]
    description: str | None
    state: str = Field(description="active, or disabled: its receiver answered 410 Gone.")
    created_at: datetime


class CreatedWebhookBody(WebhookBody):
    """A new webhook with the secret that its deliveries are signed with."""

    secret: str = Field(description="Keep it: it is not shown again.")


class DeliveryBody(Resource):
    """One event for one webhook, and whether its receiver has accepted it."""

    object: Literal["delivery"] = "delivery"
    id: str = Field(description="The same in every try: receivers know repetitions by it.")
    webhook: str
    type: str = Field(description="One of the webhook's events, or webhook.test.")
    text: str = Field(description="What happened, in a sentence.")
    data: dict[str, Any] = Field(description="What the delivery says, without its envelope.")
    state: str = Field(description="pending, delivered or failed: given up.")
    attempts: int = Field(description="How often it was sent.")
    status: int | None = Field(description="HTTP status of the last answer, if there was one.")
    error: str | None = Field(description="Why the last try failed.")
    next_at: datetime | None = Field(description="When it is sent (again); null if it ended.")
    created_at: datetime
    finished_at: datetime | None
