"""Server-sent events: changes of a batch or a search, and the growing log of an experiment."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fastapi import Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import EventBody
from assay.storage import schema, searches
from services.implementer.context import Context
from services.implementer.open_streams import EventStream
from services.implementer.views.batches import event_body, search_event_body

POLL_SECONDS = 0.2
KEEP_ALIVE_SECONDS = 15.0
BATCH_FINISHED = "batch.finished"


def wants_stream(request: Request) -> bool:
    """Whether the client asked for a stream."""
    return "text/event-stream" in request.headers.get("accept", "")


def event_page(session: Session, batch_id: str, start: int, limit: int) -> list[EventBody]:
    """Events of a batch after the id `start`, oldest first."""
    rows = session.scalars(
        select(schema.Event)
        .where(schema.Event.batch_id == batch_id, schema.Event.id > start)
        .order_by(schema.Event.id)
        .limit(limit)
    ).all()
    search = session.scalars(
        select(schema.Batch.search_id).where(schema.Batch.id == batch_id)
    ).one_or_none()
    return [event_body(row, search) for row in rows]


@dataclass(frozen=True)
class EventSource:
    """What a stream of events reads, by the id after which it reads, and the types that end it."""

    page: Callable[[Session, int, int], list[EventBody]]
    has_told_the_end: Callable[[Session, int], bool]
    last: tuple[str, ...]


def of_batch(batch_id: str) -> EventSource:
    """The events of a batch; the last says that it has finished."""
    return EventSource(
        lambda session, start, limit: event_page(session, batch_id, start, limit),
        lambda session, start: _told_before(session, batch_id, start),
        (BATCH_FINISHED,),
    )


def of_search(search_id: str) -> EventSource:
    """The events of a search; the last says that it is finished or cancelled."""
    return EventSource(
        lambda session, start, limit: search_event_page(session, search_id, start, limit),
        lambda session, start: searches.has_told_the_end(session, search_id, start),
        searches.ENDED,
    )


def search_event_page(session: Session, search_id: str, start: int, limit: int) -> list[EventBody]:
    """Events of a search after the id `start`, oldest first."""
    return [search_event_body(row) for row in searches.events(session, search_id, start, limit)]


async def event_stream(
    request: Request, context: Context, owner: str, source: EventSource, start: int
) -> Response:
    """Events as they happen, until the last one or the client goes away.

    A client that has seen the end already is answered 204, which tells it not to come back; one
    that has too many streams open, 429.
    """

    def read(last: int) -> list[EventBody]:
        with context.db.read() as session:
            return source.page(session, last, 200)

    def has_told_the_end(last: int) -> bool:
        with context.db.read() as session:
            return source.has_told_the_end(session, last)

    if await asyncio.to_thread(has_told_the_end, start):
        return Response(status_code=204)

    async def lines() -> AsyncIterator[str]:
        last, idle = start, 0.0
        while not await request.is_disconnected():
            events = await asyncio.to_thread(read, last)
            for event in events:
                last, idle = event.id, 0.0
                yield frame(str(event.id), event.type, event.model_dump_json())
                if event.type in source.last and await asyncio.to_thread(has_told_the_end, last):
                    return
            if not events:
                await asyncio.sleep(POLL_SECONDS)
                idle += POLL_SECONDS
                if idle >= KEEP_ALIVE_SECONDS:
                    idle = 0.0
                    yield ": keep-alive\n\n"

    return EventStream(lines(), context.streams, client_of(request, context, owner))


def _told_before(session: Session, batch_id: str, start: int) -> bool:
    """Whether the client has seen the end already: it resumes after the last event."""
    last = session.scalars(
        select(schema.Event)
        .where(schema.Event.batch_id == batch_id, schema.Event.id <= start)
        .order_by(schema.Event.id.desc())
        .limit(1)
    ).one_or_none()
    return last is not None and last.type == BATCH_FINISHED


def log_stream(
    request: Request,
    context: Context,
    owner: str,
    read: Callable[[int], tuple[bytes, int, bool]],
    start: int,
) -> EventStream:
    """A log from a byte offset on, until its end; `read(offset)` gives bytes, next and ended."""

    async def lines() -> AsyncIterator[str]:
        offset, idle = start, 0.0
        while not await request.is_disconnected():
            data, offset, ended = await asyncio.to_thread(read, offset)
            if data:
                idle = 0.0
                yield frame(str(offset), "log", json.dumps({"data": _text(data)}))
            elif ended:
                yield frame(str(offset), "end", "{}")
                return
            else:
                await asyncio.sleep(POLL_SECONDS)
                idle += POLL_SECONDS
                if idle >= KEEP_ALIVE_SECONDS:
                    idle = 0.0
                    yield ": keep-alive\n\n"

    return EventStream(lines(), context.streams, client_of(request, context, owner))


def client_of(request: Request, context: Context, owner: str) -> str:
    """Whose streams count together: those of an API key, or of an address where there are none."""
    if context.settings.api_keys:
        return f"owner {owner}"
    return f"address {request.client.host if request.client else 'unknown'}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def frame(identity: str, kind: str, data: str) -> str:
    """One server-sent event. `data` is one line of JSON."""
    return f"id: {identity}\nevent: {kind}\ndata: {data}\n\n"


def decode_piece(data: str) -> bytes:
    """Return bytes as a worker sends them; the wire model has checked that they are base64."""
    return base64.b64decode(data, validate=True)
