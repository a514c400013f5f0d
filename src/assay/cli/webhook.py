"""`assay webhook …`."""

from __future__ import annotations

import time
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import completion
from assay.cli.command import AsJson, Yes, command, confirm, full_id, root
from assay.domain.errors import AssayError
from assay.domain.webhooks import DeliveryState, WebhookEvent

if TYPE_CHECKING:
    from assay.client import Client
    from assay.contracts.webhook import DeliveryBody, WebhookBody

#: For so long a test is waited for: longer than a receiver has.
_TEST_SECONDS = 90.0

app = typer.Typer(
    name="webhook", no_args_is_help=True, help="Addresses that are told when something ends."
)
Webhook = Annotated[
    str, typer.Argument(help="A webhook's id.", autocompletion=completion.webhooks)
]


class TestFailed(AssayError):
    """The receiver did not accept the test."""

    code = "test_failed"


@app.command()
@command
def create(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="Where events are sent, as POST requests.")],
    event: Annotated[
        list[WebhookEvent] | None,
        typer.Option(help="Send this one; repeat it for more. By default all."),
    ] = None,
    description: Annotated[
        str | None, typer.Option(help="For people: what is behind the address.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have events sent to an address.  Example: assay webhook create https://example.org/hook"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        events = [each.value for each in event] if event else None
        body = client.webhooks.create(url, events=events, description=description)
    out.changed(
        body.id,
        f"created {body.id}\nIts secret, which is not shown again: {body.secret}",
        detail=body,
    )
    out.say(f"Try it: assay webhook test {body.id}")


@app.command("list")
@command
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List webhooks.  Example: assay webhook list"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import clean

    out = root(context).output(as_json)
    with root(context).client() as client:
        found = list(client.webhooks.list())
    made = table("url", "events", "state", "description", "id")
    for one in found:
        row = (one.url, _events(one), one.state, one.description or "", one.id)
        made.add_row(*(cell(clean(each)) for each in row))
    out.data(found, made)
    if not found:
        out.say("No webhooks. To be told of events: assay webhook create URL")


def _events(body: WebhookBody) -> str:
    return "all" if set(body.events) == {e.value for e in WebhookEvent} else ", ".join(body.events)


@app.command()
@command
def deliveries(
    context: typer.Context,
    webhook: Webhook,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what was sent and what waits, newest first.  Example: assay webhook deliveries whk_…"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import clean

    out = root(context).output(as_json)
    with root(context).client() as client:
        found = list(islice(client.webhooks.deliveries(_whole(client, webhook)), limit + 1))
    shown = found[:limit]
    made = table("at", "event", "state", "tries", "last answer", "next try", "id", right=["tries"])
    for one in shown:
        row = (
            _time(one.created_at), one.type, one.state, str(one.attempts), _outcome(one),
            _time(one.next_at), one.id,
        )  # fmt: skip
        made.add_row(*(cell(clean(each)) for each in row))
    out.data(shown, made, truncated=len(found) > limit)
    if not found:
        out.say(f"Nothing was sent yet. To try it: assay webhook test {webhook}")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%SZ")


def _outcome(delivery: DeliveryBody) -> str:
    return delivery.error or ("" if delivery.status is None else str(delivery.status))


@app.command("test")
@command
def send_test(context: typer.Context, webhook: Webhook, as_json: AsJson = False) -> None:
    """Send a test and wait for the answer.  Example: assay webhook test whk_…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = _whole(client, webhook)
        sent = client.webhooks.test(id_)
        deadline = time.monotonic() + _TEST_SECONDS
        while sent.state == DeliveryState.PENDING.value and time.monotonic() < deadline:
            client.sleep(0.2)
            sent = client.webhooks.delivery(id_, sent.id)
    if sent.state == DeliveryState.PENDING.value:
        raise TestFailed("it was not sent yet; does an implement worker run?")
    if sent.state == DeliveryState.FAILED.value:
        raise TestFailed(f"the receiver did not accept the test: {sent.error}")
    out.changed(id_, f"delivered: the receiver answered {sent.status}", detail=sent)


@app.command()
@command
def retry(
    context: typer.Context,
    webhook: Webhook,
    delivery: Annotated[str, typer.Argument(help="A delivery's id.")],
    as_json: AsJson = False,
) -> None:
    """Send a delivery again, under the same id.  Example: assay webhook retry whk_… msg_…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = _whole(client, webhook)
        chosen = full_id(delivery, client.webhooks.deliveries(id_))
        body = client.webhooks.retry(id_, chosen)
    out.changed(body.id, f"{body.id} is sent again", detail=body)


@app.command()
@command
def delete(
    context: typer.Context, webhook: Webhook, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a webhook; nothing more is sent to it.  Example: assay webhook delete whk_…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.webhooks.get(_whole(client, webhook))
        confirm(out, f"Delete {body.id} ({body.url})? What waits is not sent.", yes)
        client.webhooks.delete(body.id)
    out.changed(body.id, f"deleted {body.id}", detail=body)


def _whole(client: Client, given: str) -> str:
    return full_id(given, client.webhooks.list())
