"""Server-sent events: changes of a batch or a search, and the growing log of an experiment."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from fastapi import Request, Response
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from assay.contracts.base import Page
from assay.contracts.batch import EventBody
from assay.storage import schema, searches
from services.implementer.context import Context
from services.implementer.dependencies import PageRequest
from services.implementer.open_streams import EventStream
from services.implementer.owned import owned_batch, owned_search
from services.implementer.paging import after, page_of
from services.implementer.telemetry import LogReading
from services.implementer.views.batches import event_body, search_event_body

KEEP_ALIVE_SECONDS, KEEP_ALIVE = 15.0, ": keep-alive\n\n"
#: Events that are read and sent together.
_PAGE = 200
BATCH_FINISHED = "batch.finished"


def wants_stream(request: Request) -> bool:
    """Whether the client asked for a stream."""
    return "text/event-stream" in request.headers.get("accept", "")


def _batch_events(session: Session, batch_id: str, start: int, limit: int) -> list[EventBody]:
    rows = session.execute(
        select(schema.Event, schema.Batch.search_id)
        .join(schema.Batch, schema.Batch.id == schema.Event.batch_id)
        .where(schema.Event.batch_id == batch_id, schema.Event.id > start)
        .order_by(schema.Event.id)
        .limit(limit)
    )
    return [event_body(row, search) for row, search in rows]


@dataclass(frozen=True)
class EventSource:
    """The events of a batch or a search.

    Attributes:
        key: What is noted with every such event, and the id of what they are about.
        filters: What a cursor of a page of them is for.
        check_owner: Raises NotFound unless the owner has it.
        page: Reads so many events after an id, oldest first.
        has_told_the_end: Whether there is nothing after an id.
        last: Types of event that may be the last.
    """

    key: str
    filters: dict[str, str]
    check_owner: Callable[[Session, str], object]
    page: Callable[[Session, int, int], list[EventBody]]
    has_told_the_end: Callable[[Session, int], bool]
    last: tuple[str, ...]


def of_batch(batch_id: str) -> EventSource:
    """The events of a batch; the last says that it has finished."""
    return EventSource(
        batch_id,
        {"batch": batch_id},
        lambda session, owner: owned_batch(session, batch_id, owner),
        lambda session, start, limit: _batch_events(session, batch_id, start, limit),
        lambda session, start: _told_before(session, batch_id, start),
        (BATCH_FINISHED,),
    )


def of_search(search_id: str) -> EventSource:
    """The events of a search; the last says that it is finished or cancelled."""
    return EventSource(
        search_id,
        {"search": search_id},
        lambda session, owner: owned_search(session, search_id, owner),
        lambda session, start, limit: [
            search_event_body(row) for row in searches.events(session, search_id, start, limit)
        ],
        lambda session, start: searches.has_told_the_end(session, search_id, start),
        searches.ENDED,
    )


async def answer_events(
    request: Request,
    context: Context,
    owner: str,
    source: EventSource,
    start: int,
    page: PageRequest,
) -> Page[EventBody] | Response:
    """Return a page of the events after the id `start`, or a stream if the client asks for one.

    Raises:
        NotFound: the owner has no such batch or search.
    """

    def check() -> None:
        with context.db.read() as session:
            source.check_owner(session, owner)

    def read() -> Page[EventBody]:
        last = after(page, source.filters)
        first = max(start, last if isinstance(last, int) else 0)
        with context.db.read() as session:
            source.check_owner(session, owner)
            found = source.page(session, first, page.limit + 1)
        return page_of(found, page, source.filters, lambda event: event.id, lambda event: event)

    if not wants_stream(request):
        return await run_in_threadpool(read)
    await run_in_threadpool(check)
    return await _event_stream(request, context, owner, source, start)


async def _event_stream(
    request: Request, context: Context, owner: str, source: EventSource, start: int
) -> Response:
    """Events as they happen, until the last one or the client goes away.

    A client that has seen the end already is answered 204, which tells it not to come back; one
    that has too many streams open, 429.
    """

    def has_told_the_end(last: int) -> bool:
        with context.db.read() as session:
            return source.has_told_the_end(session, last)

    if await asyncio.to_thread(has_told_the_end, start):
        return Response(status_code=204)

    async def lines() -> AsyncGenerator[str, None]:
        last, sent_at = start, time.monotonic()
        with context.feeds.follow(source.key, source.key) as feed:
            while True:
                version = feed.version
                found = await feed.read(last, lambda last: _read(context, source, last))
                if found.count:
                    last, sent_at = found.last, time.monotonic()
                    yield found.text
                if found.is_end:
                    return
                if found.count < _PAGE:
                    await feed.changed(version, _until_keep_alive(sent_at))
                if not _until_keep_alive(sent_at):
                    sent_at = time.monotonic()
                    yield KEEP_ALIVE

    return EventStream(lines(), context.streams, client_of(request, context, owner))


@dataclass(frozen=True)
class _Frames:
    """A page of events as it is sent, made once for all streams that send it."""

    text: str
    last: int
    count: int
    is_end: bool


def _read(context: Context, source: EventSource, start: int) -> _Frames:
    with context.db.read() as session:
        events = source.page(session, start, _PAGE)
        is_end = False
        for number, event in enumerate(events, 1):
            if event.type in source.last and source.has_told_the_end(session, event.id):
                events, is_end = events[:number], True
                break
    text = "".join(frame(str(e.id), e.type, e.model_dump_json()) for e in events)
    return _Frames(text, events[-1].id if events else start, len(events), is_end)


def _until_keep_alive(sent_at: float) -> float:
    """Seconds until a stream that was silent since then has to send something."""
    return max(0.0, sent_at + KEEP_ALIVE_SECONDS - time.monotonic())


def _told_before(session: Session, batch_id: str, start: int) -> bool:
    """Whether the client has seen the end already: it resumes after the last event."""
    last = session.scalars(
        select(schema.Event)
        .where(schema.Event.batch_id == batch_id, schema.Event.id <= start)
        .order_by(schema.Event.id.desc())
        .limit(1)
    ).one_or_none()
    return last is not None and last.type == BATCH_FINISHED


@dataclass(frozen=True)
class LogSource:
    """What a stream of a log reads, by a byte offset.

    `key`: what is noted when the owner of the log changes; of a growing log, its measurement is.
    """

    name: str
    key: str
    read: Callable[[int], LogReading]


def log_stream(
    request: Request, context: Context, owner: str, source: LogSource, start: int
) -> EventStream:
    """A log from a byte offset on, until its end."""

    async def lines() -> AsyncGenerator[str, None]:
        offset, sent_at = start, time.monotonic()
        with context.feeds.follow(source.name, source.key) as feed:
            while True:
                version = feed.version
                found = await feed.read(offset, source.read)
                if found.measurement is not None and feed.also(found.measurement):
                    continue  # it may have grown before its notices were asked for
                offset = found.next_offset
                if found.data:
                    sent_at = time.monotonic()
                    yield frame(str(offset), "log", json.dumps({"data": _text(found.data)}))
                elif found.ended:
                    yield frame(str(offset), "end", "{}")
                    return
                else:
                    await feed.changed(version, _until_keep_alive(sent_at))
                if not _until_keep_alive(sent_at):
                    sent_at = time.monotonic()
                    yield KEEP_ALIVE

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
