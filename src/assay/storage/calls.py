"""The ledger of model calls: each request is written before it is sent, and completed after it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from sqlalchemy import ColumnElement, and_, bindparam, or_, select, update
from sqlalchemy.orm import Session

from assay.storage import schema
from assay.storage.database import Database
from assay.storage.rows import get, run, table_of
from assay.storage.text import clean_text
from assay.storage.types import clock

#: An ideator's call that has not ended after so long never will.
LONGEST_IDEATOR_CALL = timedelta(hours=2)
#: State of a call whose process is gone.
INTERRUPTED = "interrupted"
_MAX_MESSAGE = 2_000
_INTERRUPT = (
    update(table_of(schema.ModelCall))
    .where(schema.ModelCall.state == "calling")
    .values(
        state=INTERRUPTED,
        code=INTERRUPTED,
        is_estimate=True,
        cost_usd=schema.ModelCall.reserved_usd,
        finished_at=clock(),
    )
)
_INTERRUPT_ALL_OF = _INTERRUPT.where(
    schema.ModelCall.implementation_id == bindparam("implementation")
)
_FINISHED = (
    update(table_of(schema.ModelCall))
    .where(schema.ModelCall.id == bindparam("call"))
    .values(finished_at=clock())
)


@dataclass(frozen=True)
class Payer:
    """Who a call is made for, and so who it is charged to.

    `batch` and `implementation` are None for a call of a search's ideator.
    """

    owner: str
    batch: str | None
    search: str | None
    implementation: str | None


@dataclass(frozen=True)
class CallStart:
    """A request that is about to be sent. `reserved_usd`: what it is expected to cost.

    `sample` and `revision` say which call of an executor it belongs to.
    """

    id: str
    sample: int
    revision: int
    number: int
    model: str
    request_hash: str
    prompt_version: str
    reserved_usd: Decimal | None
    is_replay: bool = False


@dataclass(frozen=True)
class CallEnd:
    """What came of a request: `returned`, `failed` or `cancelled`. Tokens do not overlap."""

    state: str
    code: str | None = None
    message: str | None = None
    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    is_estimate: bool = False
    cost_usd: Decimal | None = None
    seconds: float = 0.0
    request_id: str | None = None


def before(session: Session, payer: Payer, start: CallStart) -> None:
    """Record that a request is about to be sent."""
    session.add(
        schema.ModelCall(
            id=start.id,
            owner=payer.owner,
            search_id=payer.search,
            batch_id=payer.batch,
            implementation_id=payer.implementation,
            sample=start.sample,
            revision=start.revision,
            number=start.number,
            model=start.model,
            request_hash=start.request_hash,
            prompt_version=start.prompt_version,
            state="calling",
            reserved_usd=start.reserved_usd,
            is_replay=start.is_replay,
            started_at=clock(),
        )
    )


def after(session: Session, call_id: str, end: CallEnd) -> None:
    """Record what came of a request. Tells the sample's totals as well."""
    row = get(session, schema.ModelCall, call_id, "call")
    if row.finished_at is not None:
        return  # another process took the idea over, and counted this call as interrupted
    row.state, row.code = end.state, end.code
    row.message = clean_text(end.message[:_MAX_MESSAGE]) if end.message else None
    row.input_tokens, row.output_tokens = end.input_tokens, end.output_tokens
    row.cached_input_tokens = end.cached_input_tokens
    row.cache_write_tokens = end.cache_write_tokens
    row.is_estimate, row.cost_usd = end.is_estimate, end.cost_usd
    row.seconds, row.request_id = end.seconds, end.request_id
    run(session, _FINISHED, call=call_id)


def interrupt(session: Session, which: ColumnElement[bool]) -> int:
    """Close the calls among `which` that a process left open when it died.

    Nobody knows whether they reached the provider: they are charged what they were expected to
    cost. Returns how many there were.
    """
    return run(session, _INTERRUPT.where(which)).rowcount


def interrupt_all_of(session: Session, implementation_id: str) -> int:
    """Close the calls that are open for an implementation; see `interrupt`."""
    return run(session, _INTERRUPT_ALL_OF, implementation=implementation_id).rowcount


def sweep(db: Database, session: Session) -> int:
    """Close calls that were left open by a process that is gone, for ideas that have ended: no
    other process will take those up and do it. So are those of ideators that are older than any
    call lasts: nobody may ever drive their searches again. Returns how many there were."""
    table, work = schema.ModelCall, schema.Implementation
    now = db.now(session)
    of_ideators = and_(
        table.implementation_id.is_(None), table.started_at < now - LONGEST_IDEATOR_CALL
    )
    gone = select(work.id).where(
        work.finished_at.is_not(None),
        or_(work.lease_expires_at.is_(None), work.lease_expires_at < now),
    )
    return interrupt(session, or_(table.implementation_id.in_(gone), of_ideators))


def of_sample(
    session: Session, implementation_id: str, sample: int, revision: int
) -> list[schema.ModelCall]:
    """All requests of one sample and revision, oldest first."""
    table = schema.ModelCall
    return list(
        session.scalars(
            select(table)
            .where(
                table.implementation_id == implementation_id,
                table.sample == sample,
                table.revision == revision,
            )
            .order_by(table.started_at, table.id)
        )
    )
