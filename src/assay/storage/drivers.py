"""Who drives a search: its client, or a process of the service that holds a lease of it.

A lease keeps two processes from asking for the same ideas. What one that lost its lease still
sends is refused (`check`), so that exactly one loop writes to a search.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, or_, select, text, update
from sqlalchemy.orm import Session

from assay.domain.errors import Conflict, Fenced
from assay.domain.states import Driver, SearchState
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.outbox import Topic, post
from assay.storage.rows import changed

#: Types of events that begin and end a pause.
PAUSED, RESUMED = "search.paused", "search.resumed"


@dataclass(frozen=True)
class Held:
    """A search that a process drives, and for whom."""

    search: str
    owner: str


def take(
    db: Database,
    session: Session,
    holder: str,
    ttl: timedelta,
    *,
    limit: int,
    known: Collection[str] = (),
) -> list[Held]:
    """Lease searches that wait for the service, oldest first; at most `limit`.

    One that is held by another, or paused, is not taken. The `known` ones are left out.
    """
    table = schema.Search
    now = db.now(session)
    found = session.execute(
        select(table.id, table.owner)
        .where(_driven(), ~_paused(), _free(holder, now), table.id.not_in(known))
        .order_by(table.id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    ).all()
    taken = [Held(row.id, row.owner) for row in found]
    changed(
        session,
        update(table)
        .where(table.id.in_([each.search for each in taken]))
        .values(holder=holder, lease_expires_at=now + ttl),
    )
    return taken


def renew(db: Database, session: Session, holder: str, ttl: timedelta) -> set[str]:
    """Renew the leases of a holder. Returns the searches that it should continue to drive: one
    that ended, or that another drives by now, is not among them."""
    table = schema.Search
    held = (
        select(table.id)
        .where(table.holder == holder, _driven())
        .order_by(table.id)
        .with_for_update(key_share=True)
    )
    return set(
        session.execute(
            update(table)
            .where(table.id.in_(held))
            .values(lease_expires_at=db.now(session) + ttl)
            .returning(table.id),
            execution_options={"synchronize_session": False},
        ).scalars()
    )


def release(session: Session, holder: str, search_id: str | None = None) -> int:
    """Give up the leases of a holder, or the one of a search, so that nobody waits for them."""
    table = schema.Search
    mine = update(table).where(table.holder == holder)
    if search_id is not None:
        mine = mine.where(table.id == search_id)
    return changed(session, mine.values(holder=None, lease_expires_at=None))


def check(search: schema.Search, holder: str | None) -> None:
    """Make sure that a write comes from whoever drives the search. Its row is locked.

    `holder`: the process of the service that writes; None for a client.

    Raises:
        Conflict: it comes from a client, and the service drives.
        Fenced: it comes from a process that does not hold the search any more.
    """
    if holder is None:
        if search.driver == Driver.SERVICE.value:
            raise _driven_by_service(search.id)
    elif search.driver != Driver.SERVICE.value or search.holder != holder:
        raise Fenced(f"{search.id} is driven by another process or a client by now")


def give_to(
    db: Database, session: Session, search: schema.Search, driver: Driver, most: int
) -> None:
    """Say who drives a search from now on. Its row is locked.

    A client gets it if it has it, or if no process of the service drives it: it is paused, or
    nobody holds it. The service gets it at once; a client that drives it is refused from then on.

    Raises:
        Conflict: a process of the service drives it, or the owner has `most` such searches.
    """
    if driver is Driver.CLIENT:
        is_held = search.holder is not None and _after(search.lease_expires_at, db.now(session))
        if search.driver == Driver.SERVICE.value and is_held and not is_paused(session, search.id):
            raise _driven_by_service(search.id)
    elif search.driver != Driver.SERVICE.value or is_paused(session, search.id):
        check_room(db, session, search.owner, most)
        post(session, Topic.DRIVE, search.id)
    else:
        return
    search.driver, search.holder, search.lease_expires_at = driver.value, None, None
    session.flush()


def check_room(db: Database, session: Session, owner: str, most: int) -> None:
    """Refuse a search for the service if it drives `most` of this owner's already.

    Raises:
        Conflict: it does.
    """
    if not db.is_sqlite:  # where one transaction writes at a time
        lock = text("SELECT pg_advisory_xact_lock(hashtext(:key))")
        session.execute(lock, {"key": f"detached searches of {owner}"})
    table = schema.Search
    count = select(func.count()).where(table.owner == owner, _driven(), ~_paused())
    if session.scalars(count).one() >= most:
        raise Conflict(
            f"the service drives {most} searches of {owner!r} already "
            "(ASSAY_IMPLEMENTER_DETACHED_SEARCHES); wait for one, pause or cancel one, or drive "
            "this one without --detach",
            code="too_many_detached",
        )


def is_paused(session: Session, search_id: str) -> bool:
    """Whether the loop of a search has stopped and was not told to continue."""
    paused = select(schema.Search.id).where(schema.Search.id == search_id, _paused())
    return session.scalars(paused).first() is not None


def finished(session: Session, batch_ids: Sequence[str]) -> set[str]:
    """Those of the batches that are finished."""
    table = schema.Batch
    query = select(table.id).where(table.id.in_(batch_ids), table.finished_at.is_not(None))
    return set(session.scalars(query))


def versions(session: Session, batch_ids: Sequence[str]) -> dict[str, int]:
    """The versions of the batches, which rise with every change of an experiment."""
    table = schema.Batch
    rows = session.execute(select(table.id, table.version).where(table.id.in_(batch_ids)))
    return {row.id: row.version for row in rows}


def _driven() -> ColumnElement[bool]:
    """It runs, and the service drives it."""
    table = schema.Search
    running = table.state == SearchState.RUNNING.value
    return (table.driver == Driver.SERVICE.value) & running


def _paused() -> ColumnElement[bool]:
    """The last that was told of pauses is one."""
    table = schema.SearchEvent
    last = (
        select(table.type)
        .where(table.search_id == schema.Search.id, table.type.in_([PAUSED, RESUMED]))
        .order_by(table.id.desc())
        .limit(1)
        .correlate(schema.Search)
        .scalar_subquery()
    )
    return func.coalesce(last, RESUMED) == PAUSED


def _free(holder: str, now: datetime) -> ColumnElement[bool]:
    """Nobody else holds it. A holder that was restarted under its own name continues at once."""
    table = schema.Search
    return or_(table.holder.is_(None), table.holder == holder, table.lease_expires_at <= now)


def _after(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment > now


def _driven_by_service(search_id: str) -> Conflict:
    return Conflict(
        f"the service drives {search_id}; watch it: assay search watch {search_id}. To drive it "
        "here, pause it first",
        code="driven_by_service",
    )
