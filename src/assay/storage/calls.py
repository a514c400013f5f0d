"""The ledger of model calls: each request is written before it is sent, and completed after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, insert, or_, select, update
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
_CALL = table_of(schema.ModelCall)
_INTERRUPT = (
    update(_CALL)
    .where(_CALL.c.state == "calling")
    .values(
        state=INTERRUPTED,
        code=INTERRUPTED,
        is_estimate=True,
        cost_usd=_CALL.c.reserved_usd,
        finished_at=clock(),
    )
)
_INTERRUPT_ALL_OF = _INTERRUPT.where(_CALL.c.implementation_id == bindparam("implementation"))
_NEW = insert(_CALL).values(started_at=clock())
_OF_SAMPLE = select(
    _CALL.c.state,
    _CALL.c.finished_at,
    _CALL.c.input_tokens,
    _CALL.c.cached_input_tokens,
    _CALL.c.cache_write_tokens,
    _CALL.c.output_tokens,
    _CALL.c.cost_usd,
).where(
    _CALL.c.implementation_id == bindparam("implementation"),
    _CALL.c.sample == bindparam("sample"),
    _CALL.c.revision == bindparam("revision"),
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


_END = (
    update(_CALL)
    .where(_CALL.c.id == bindparam("call"), _CALL.c.finished_at.is_(None))
    .values(
        {part.name: bindparam(part.name) for part in fields(CallEnd)} | {"finished_at": clock()}
    )
)


def before(session: Session, payer: Payer, start: CallStart) -> None:
    """Record that a request is about to be sent."""
    run(
        session,
        _NEW,
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
    )


def after(session: Session, call_id: str, end: CallEnd) -> None:
    """Record what came of a request, unless it is over: another process took the idea over, and
    counted the request as interrupted.

    Raises:
        NotFound: there is no such request.
    """
    message = clean_text(end.message[:_MAX_MESSAGE]) if end.message else None
    if not run(session, _END, call=call_id, **asdict(end) | {"message": message}).rowcount:
        get(session, schema.ModelCall, call_id, "call")


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
) -> Sequence[Row[*tuple[Any, ...]]]:
    """What all requests of one sample and revision came to."""
    key = {"implementation": implementation_id, "sample": sample, "revision": revision}
    return run(session, _OF_SAMPLE, **key).all()
