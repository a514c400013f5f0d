"""Webhooks and their deliveries.

A delivery is stored in the transaction that makes its event, like a message of the outbox, and
sent later by `services/implementer/webhooks.py`. Whatever happens to a receiver, nothing here
waits for it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.orm import Session

from assay.contracts.webhook import WebhookRequest
from assay.domain.errors import Conflict, NotFound
from assay.domain.ids import new_id
from assay.domain.states import MeasurementKind
from assay.domain.webhooks import TEST, DeliveryState, WebhookEvent, new_secret
from assay.storage import schema
from assay.storage.calls import Payer
from assay.storage.caps import Reached
from assay.storage.database import Database
from assay.storage.outbox import Topic, post
from assay.storage.rows import changed, insert_missing
from assay.storage.text import clean_json, clean_text

ACTIVE, DISABLED = "active", "disabled"
#: An owner's webhooks. Each event is stored once per webhook, in the transaction that makes it.
MOST_WEBHOOKS = 20
_MAX_TEXT = 2_000
_PENDING = DeliveryState.PENDING.value
#: Key of a message about no webhook in particular; implement workers know the topic by its prefix.
_UNJUDGED = "whk_unjudged"


def create(db: Database, session: Session, owner: str, request: WebhookRequest) -> schema.Webhook:
    """Store a webhook with a new secret.

    Raises:
        Conflict: the owner has `MOST_WEBHOOKS` already.
    """
    table = schema.Webhook
    count = select(func.count()).where(table.owner == owner)
    if session.scalars(count).one() >= MOST_WEBHOOKS:
        raise Conflict(
            f"{owner!r} has {MOST_WEBHOOKS} webhooks, which is the most; delete one first",
            code="too_many_webhooks",
        )
    row = table(
        id=new_id("whk"),
        owner=owner,
        url=request.url,
        events=sorted(set(request.events)),
        description=request.description,
        secret=new_secret(),
        state=ACTIVE,
        created_at=db.now(session),
    )
    session.add(row)
    session.flush()
    return row


def owned(session: Session, webhook_id: str, owner: str) -> schema.Webhook:
    """Return a webhook of that owner. Raises NotFound, also for another owner's."""
    row = session.get(schema.Webhook, webhook_id)
    if row is None or row.owner != owner:
        raise NotFound(f"webhook {webhook_id!r} was not found")
    return row


def remove(session: Session, webhook_id: str) -> None:
    """Delete a webhook with its deliveries, so that none of them is sent any more."""
    session.execute(delete(schema.Webhook).where(schema.Webhook.id == webhook_id))


def tell(
    session: Session,
    owner: str,
    event: WebhookEvent,
    cause: str,
    text: str,
    data: Mapping[str, Any],
) -> None:
    """Store an event for every webhook of the owner that wants it, in the current transaction.

    `cause` names the event itself: one that is told twice is delivered once.
    """
    for webhook_id in _wanting(session, owner, event):
        _add(session, webhook_id, event.value, cause, text, data)


def test(session: Session, row: schema.Webhook) -> str:
    """Store a delivery that says nothing but that the webhook works. Returns its id.

    Raises:
        Conflict: the webhook is disabled.
    """
    _refuse_disabled(row)
    cause = new_id("test")
    return _add(session, row.id, TEST, cause, "This is a test of a webhook.", {"webhook": row.id})


def _wanting(session: Session, owner: str, event: WebhookEvent) -> list[str]:
    """The webhooks of an owner that are to be told of an event.

    Locked against deletion: without the lock, a webhook that is deleted now would fail the
    transaction that makes the event, when its delivery refers to nothing.
    """
    table = schema.Webhook
    rows = session.execute(
        select(table.id, table.events)
        .where(table.owner == owner, table.state == ACTIVE)
        .order_by(table.id)
        .with_for_update(read=True, key_share=True)
    )
    return [row.id for row in rows if event.value in row.events]


def _add(
    session: Session, webhook_id: str, kind: str, cause: str, text: str, data: Mapping[str, Any]
) -> str:
    row = {
        "id": new_id("msg"),
        "webhook_id": webhook_id,
        "type": kind,
        "cause": hashlib.sha256(cause.encode()).hexdigest(),
        "text": (clean_text(text) or "")[:_MAX_TEXT],
        "data": clean_json(dict(data)),
        "state": _PENDING,
        "attempts": 0,
        "attempts_before": 0,
    }
    if insert_missing(session, schema.Delivery, [row], at=("next_at", "created_at")):
        post(session, Topic.WEBHOOK, webhook_id)
    return str(row["id"])


# -- what is told --------------------------------------------------------------------------------


def tell_of_search(
    session: Session, search: schema.Search, event_id: int, kind: str, said: Mapping[str, Any]
) -> None:
    """Tell of an event of a search, if it is one that webhooks can be told of."""
    if kind not in _OF_SEARCHES:
        return
    event = WebhookEvent(kind)
    how = event.value.partition(".")[2]
    text = f"The search {search.id} ({search.strategy}, {search.environment_id}) is {how}"
    if event is WebhookEvent.SEARCH_PAUSED and said.get("message"):
        text += f": {said['message']}"
    data = {
        "search": search.id,
        "environment": search.environment_id,
        "profile": search.profile,
        "strategy": search.strategy,
        "epochs": search.epochs,
        "metadata": search.labels,
        **said,
        "page": f"/searches/{search.id}",
    }
    tell(session, search.owner, event, f"search event {event_id}", text, data)


_OF_SEARCHES = {
    event.value
    for event in (
        WebhookEvent.SEARCH_FINISHED,
        WebhookEvent.SEARCH_CANCELLED,
        WebhookEvent.SEARCH_PAUSED,
    )
}


def tell_of_batch(session: Session, batch_id: str) -> None:
    """Tell that a batch is finished, unless it is an epoch: then its search tells.

    Of a batch of confirmations, tell later which results are confirmed.
    """
    # Columns, because an object that the session holds may have an earlier state.
    table = schema.Batch
    batch = session.execute(
        select(
            table.owner,
            table.kind,
            table.epoch,
            table.state,
            table.environment_id,
            table.profile,
            table.search_id,
            table.labels,
        ).where(table.id == batch_id)
    ).one()
    confirms = batch.kind == MeasurementKind.CONFIRM.value
    if confirms and _wanting(session, batch.owner, WebhookEvent.EXPERIMENT_CONFIRMED):
        row = {"batch_id": batch_id, "looks": 0}
        insert_missing(session, schema.Unjudged, [row], at=("next_at",))
        post(session, Topic.WEBHOOK, _UNJUDGED)
    if batch.epoch is not None or not _wanting(session, batch.owner, WebhookEvent.BATCH_FINISHED):
        return
    tested = schema.Experiment
    found = (
        select(tested.state, func.count())
        .where(tested.batch_id == batch_id)
        .group_by(tested.state)
        .order_by(tested.state)
    )
    counts = {row[0]: row[1] for row in session.execute(found)}
    told = ", ".join(f"{number} {state}" for state, number in counts.items())
    data = {
        "batch": batch_id,
        "environment": batch.environment_id,
        "profile": batch.profile,
        "search": batch.search_id,
        "state": batch.state,
        "counts": counts,
        "metadata": batch.labels,
        "page": f"/batches/{batch_id}",
    }
    text = f"The batch {batch_id} ({batch.environment_id}) is {batch.state}: {told}"
    tell(session, batch.owner, WebhookEvent.BATCH_FINISHED, f"batch {batch_id}", text, data)


def tell_of_cap(db: Database, session: Session, payer: Payer, reached: Reached) -> None:
    """Tell that a cap stopped something: once for each cap and its amount, of a day once a day."""
    limit = reached.limit
    day = db.now(session).date().isoformat() if limit.scope == "day" else None
    whose = payer.batch if limit.scope == "batch" else payer.search
    whose = payer.owner if limit.scope in ("owner", "day") else whose
    data = {
        "scope": limit.scope,
        "kind": limit.kind,
        "limit": f"{limit.most:f}" if limit.kind == "cost_usd" else f"{limit.most:g}",
        "used": f"{reached.used:.6g}",
        "owner": payer.owner,
        "batch": payer.batch,
        "search": payer.search,
        "page": f"/searches/{payer.search}" if payer.search else f"/batches/{payer.batch}",
    }
    cause = f"cap {limit.scope} {whose} {limit.kind} {data['limit']} {day}"
    text = f"A cap is reached: {reached}"
    tell(session, payer.owner, WebhookEvent.CAP_REACHED, cause, text, data)


# -- confirmations that are yet to be judged -----------------------------------------------------

#: Pauses between two looks at whether a confirmation is decided, and how many looks there are:
#: about two days, long after the last seed of a baseline.
_FIRST_LOOK, _LONGEST_LOOK, _MOST_LOOKS = 1.0, 300.0, 600


def take_unjudged(db: Database, session: Session, limit: int) -> list[str]:
    """Take batches of confirmations to look at now. What is not judged is taken again later."""
    table = schema.Unjudged
    now = db.now(session)
    rows = session.scalars(
        select(table)
        .where(table.next_at <= now)
        .order_by(table.next_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    for row in rows:
        pause = min(_FIRST_LOOK * 1.5 ** min(row.looks, 20), _LONGEST_LOOK)
        row.looks, row.next_at = row.looks + 1, now + timedelta(seconds=pause)
    return [row.batch_id for row in rows]


def end_unjudged(session: Session, batch_id: str, *, is_judged: bool) -> bool:
    """Look no more at a batch that is judged, or was looked at for long enough.

    False if it is not there any more: another process has told of it.
    """
    table = schema.Unjudged
    done = delete(table).where(table.batch_id == batch_id)
    if not is_judged:
        done = done.where(table.looks >= _MOST_LOOKS)
    return changed(session, done) > 0


# -- deliveries ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claimed:
    """A delivery that this process is to send now.

    `attempt` counts all tries and is the token of this one; `tries` those since it was last asked
    for, this one included.
    """

    id: str
    webhook: str
    owner: str
    url: str
    secret: str
    type: str
    text: str
    data: Mapping[str, Any]
    created_at: datetime
    attempt: int
    tries: int


def claim(
    db: Database,
    session: Session,
    lease: timedelta,
    *,
    limit: int,
    busy: Mapping[str, str] | None = None,
) -> list[Claimed]:
    """Claim due deliveries, the oldest of each webhook; at most `limit`, none of `busy` webhooks.

    `busy` holds the owners of the webhooks that are being called. The owner with the fewest comes
    first, so that one whose receivers hang does not make another wait for longer than a try.
    A process that dies with a delivery leaves it to the next, once `lease` has passed.
    """
    table, webhook = schema.Delivery, schema.Webhook
    now = db.now(session)
    busy = busy or {}
    order = func.row_number().over(
        partition_by=table.webhook_id, order_by=(table.next_at, table.id)
    )
    due = (
        select(table.id, table.next_at, webhook.owner, order.label("place"))
        .join(webhook, webhook.id == table.webhook_id)
        .where(
            table.state == _PENDING,
            table.next_at <= now,
            webhook.state == ACTIVE,
            webhook.id.not_in(list(busy)),
        )
        .subquery()
    )
    called = Counter(busy.values())
    turn = func.row_number().over(partition_by=due.c.owner, order_by=(due.c.next_at, due.c.id))
    has = case(called, value=due.c.owner, else_=0) if called else 0
    in_turn = (turn + has, due.c.next_at, due.c.id)
    first = select(due.c.id).where(due.c.place == 1).order_by(*in_turn).limit(limit)
    # Another process may have been first: then `next_at` lies ahead when this one gets the lock.
    taken = session.scalars(
        update(table)
        .where(table.id.in_(first), table.next_at <= now)
        .where(table.state == _PENDING)
        .values(attempts=table.attempts + 1, next_at=now + lease)
        .returning(table.id),
        execution_options={"synchronize_session": False},
    ).all()
    rows = session.execute(
        select(table, webhook.owner, webhook.url, webhook.secret)
        .join(webhook, webhook.id == table.webhook_id)
        .where(table.id.in_(taken))
        .order_by(table.id)
        .execution_options(populate_existing=True)
    )
    return [
        Claimed(
            row.id,
            row.webhook_id,
            owner,
            url,
            secret,
            row.type,
            row.text,
            row.data,
            row.created_at,
            row.attempts,
            row.attempts - row.attempts_before,
        )
        for row, owner, url, secret in rows
    ]


@dataclass(frozen=True)
class Answer:
    """What came of a try. `error` is None if the receiver accepted the delivery."""

    status: int | None
    error: str | None = None
    is_gone: bool = False


def settle(
    db: Database, session: Session, claimed: Claimed, answer: Answer, pause: timedelta | None
) -> bool:
    """Store what came of a try. `pause`: until the next one; None gives the delivery up.

    False if the try was taken for lost, or the webhook was deleted meanwhile.
    """
    table = schema.Delivery
    now = db.now(session)
    if answer.is_gone:
        _disable(session, claimed.webhook, now)
    values: dict[str, Any] = {"status": answer.status, "error": answer.error}
    if answer.error is None:
        values |= {"state": DeliveryState.DELIVERED.value, "finished_at": now}
    elif pause is None:
        values |= {"state": DeliveryState.FAILED.value, "finished_at": now}
    else:
        values["next_at"] = now + pause
    mine = update(table).where(
        table.id == claimed.id, table.attempts == claimed.attempt, table.state == _PENDING
    )
    return changed(session, mine.values(**values)) > 0


def _disable(session: Session, webhook_id: str, now: datetime) -> None:
    """Send a webhook nothing more. Its row comes first, as when it is deleted: two transactions
    that lock it and its deliveries in different orders could wait for each other."""
    table, webhook = schema.Delivery, schema.Webhook
    changed(session, update(webhook).where(webhook.id == webhook_id).values(state=DISABLED))
    changed(
        session,
        update(table)
        .where(table.webhook_id == webhook_id, table.state == _PENDING)
        .values(
            state=DeliveryState.FAILED.value,
            error="the receiver answered 410 Gone",
            finished_at=now,
        ),
    )


def seconds_to_next(db: Database, session: Session, busy: Collection[str] = ()) -> float | None:
    """Return the seconds until something is due, 0 if it is; None if nothing waits.

    What waits for a `busy` webhook is not counted.
    """
    table, webhook, unjudged = schema.Delivery, schema.Webhook, schema.Unjudged
    soonest = session.scalars(
        select(func.min(table.next_at))
        .join(webhook, webhook.id == table.webhook_id)
        .where(table.state == _PENDING, webhook.state == ACTIVE, webhook.id.not_in(busy))
    ).one()
    look = session.scalars(select(func.min(unjudged.next_at))).one()
    known = [moment for moment in (soonest, look) if moment is not None]
    if not known:
        return None
    return max(0.0, (min(known) - db.now(session)).total_seconds())


def deliveries(
    session: Session, webhook_id: str, before: str | None, limit: int
) -> Sequence[schema.Delivery]:
    """Deliveries of a webhook, newest first; with `before`, those older than that one."""
    table = schema.Delivery
    query = select(table).where(table.webhook_id == webhook_id)
    if before is not None:
        query = query.where(table.id < before)
    return session.scalars(query.order_by(table.id.desc()).limit(limit)).all()


def delivery(session: Session, webhook_id: str, delivery_id: str) -> schema.Delivery:
    """Return a delivery of a webhook. Raises NotFound."""
    row = session.get(schema.Delivery, delivery_id)
    if row is None or row.webhook_id != webhook_id:
        raise NotFound(f"delivery {delivery_id!r} of {webhook_id} was not found")
    return row


def send_again(db: Database, session: Session, row: schema.Webhook, delivery_id: str) -> None:
    """Send a delivery now, with all tries that a new one has. Its id stays the same.

    Raises:
        NotFound: the webhook has no such delivery.
        Conflict: the webhook is disabled.
    """
    _refuse_disabled(row)
    delivery(session, row.id, delivery_id)
    table = schema.Delivery
    changed(
        session,
        update(table)
        .where(table.id == delivery_id)
        # Not of one that is being sent for the first time.
        .where((table.state != _PENDING) | table.error.is_not(None))
        .values(
            state=_PENDING,
            attempts_before=table.attempts,
            next_at=db.now(session),
            finished_at=None,
        ),
    )
    post(session, Topic.WEBHOOK, row.id)


def forget(db: Database, session: Session, age: timedelta) -> int:
    """Delete deliveries that ended so long ago. Returns how many there were."""
    table = schema.Delivery
    return changed(session, delete(table).where(table.finished_at < db.now(session) - age))


def _refuse_disabled(row: schema.Webhook) -> None:
    if row.state != ACTIVE:
        raise Conflict(
            f"{row.id} is {row.state}, because its receiver answered 410 Gone; delete it and "
            "create another",
            code="webhook_disabled",
        )
