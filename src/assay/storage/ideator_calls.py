"""Calls of a search's ideator: in the ledger before they are made, with their answers after.

An answer that has arrived is never paid for again: a search that is resumed asks for the same
places in the same epoch, and takes the answers that are here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.caps import OwnerSpending
from assay.contracts.search import IdeatorCallEndRequest, IdeatorCallRequest
from assay.domain.errors import Conflict, NotFound
from assay.domain.states import SearchState
from assay.storage import calls, caps, schema, searches
from assay.storage.calls import CallEnd, CallStart, Payer
from assay.storage.database import Database
from assay.storage.rows import get


class CapReached(Conflict):
    """No call of an ideator may start: a cap is reached."""

    def __init__(self, reached: caps.Reached, payer: Payer) -> None:
        super().__init__(str(reached), code=reached.code.value)
        self.reached = reached
        self.payer = payer


#: Type of a search's event.
ANSWER_UNREAD = "search.answer_unread"


def interrupt_others(session: Session, search_id: str, loop: str) -> None:
    """Close the calls that other loops of a search left open, and charge what they were expected
    to cost: whoever drives the search now makes them again. One that ends after all is corrected.

    In a transaction of its own before `begin`, so that a refusal does not open them again.
    """
    table = schema.IdeatorCall
    others = select(table.call_id).where(table.search_id == search_id, table.loop != loop)
    calls.interrupt(session, schema.ModelCall.id.in_(others))


def begin(
    db: Database,
    session: Session,
    search_id: str,
    call_id: str,
    request: IdeatorCallRequest,
    *,
    reserved_usd: Decimal | None,
    owners: Mapping[str, OwnerSpending],
) -> bool:
    """Record that a request is about to be sent. True if it is new, False if it is there already.

    `owners`: what they may spend, by name.

    Raises:
        CapReached: a cap allows no call (`spend_cap`).
        Conflict: the search has ended (`search_ended`), a cap allows no call before those under
            way have ended (`calls_under_way`), or another call has this id.
    """
    search = searches.locked(session, search_id)
    stored = session.get(schema.ModelCall, call_id)
    if stored is not None:
        if stored.search_id != search_id or stored.request_hash != request.request_hash:
            raise Conflict(
                f"another call has the id {call_id}; take a new one", code="call_exists"
            )
        return False
    if search.state != SearchState.RUNNING.value:
        raise Conflict(f"the search is {search.state}; start a new one", code="search_ended")
    payer = Payer(search.owner, None, search_id, None)
    if not request.is_replay:
        _check_caps(db, session, search, payer, owners)
    start = CallStart(
        id=call_id,
        sample=0,
        revision=0,
        number=request.number,
        model=search.ideator,
        request_hash=request.request_hash,
        prompt_version=request.prompt_version,
        reserved_usd=reserved_usd,
        is_replay=request.is_replay,
    )
    calls.before(session, payer, start)
    session.add(
        schema.IdeatorCall(
            call_id=call_id,
            search_id=search_id,
            epoch=request.epoch,
            place=request.place,
            loop=request.loop,
            operator=request.operator,
            asked=request.asked,
        )
    )
    session.flush()
    return True


def _check_caps(
    db: Database,
    session: Session,
    search: schema.Search,
    payer: Payer,
    owners: Mapping[str, OwnerSpending],
) -> None:
    allowed, dollars = caps.of_ideator(search, owners), caps.KINDS[:1]
    reached = caps.reached(db, session, payer, allowed, kinds=dollars)
    if reached is None:
        return
    settled = caps.reached(db, session, payer, allowed, under_way=False, kinds=dollars)
    if settled is None:
        raise Conflict(f"{reached}, with the calls under way", code="calls_under_way")
    raise CapReached(settled, payer)


def end(
    db: Database,
    session: Session,
    search_id: str,
    call_id: str,
    request: IdeatorCallEndRequest,
    *,
    cost_usd: Decimal | None,
) -> None:
    """Record what came of a request, also of a search that has ended: it was paid for.

    Repeating it changes nothing. What was taken for interrupted and ends after all is corrected.

    Raises:
        NotFound: the search has no such call.
        Conflict: another loop made it.
    """
    searches.locked(session, search_id)
    row = get(session, schema.ModelCall, call_id, "call")
    asked = session.get(schema.IdeatorCall, call_id)
    if asked is None or asked.search_id != search_id:
        raise NotFound(f"call {call_id!r} of {search_id} was not found")
    if asked.loop != request.loop:
        told = f"another loop made the call {call_id}, and only that one ends it"
        raise Conflict(told, code="call_of_another_loop")
    if row.finished_at is not None and row.state != calls.INTERRUPTED:
        return
    row.finished_at = None
    session.flush()
    known = request.model_dump(exclude={"answer", "loop"})
    calls.after(session, call_id, CallEnd(cost_usd=cost_usd, **known))
    answer = request.answer
    if answer is None:
        return
    for name, value in answer.model_dump().items():
        setattr(asked, name, value)
    session.flush()
    if answer.unread:
        known = {"call": call_id, "epoch": asked.epoch, "asked": asked.asked}
        found = {"ideas": answer.ideas, "unread": answer.unread}
        searches.tell(db, session, search_id, ANSWER_UNREAD, known | found)


def of_search(
    session: Session,
    search_id: str,
    *,
    after: str = "",
    epoch: int | None = None,
    answered: bool = False,
    unread: bool = False,
) -> Iterator[tuple[schema.ModelCall, schema.IdeatorCall]]:
    """The calls of a search's ideator whose id is greater than `after`, in order.

    `answered`: those alone that have an answer; `unread`: those alone whose answer holds passages
    that could not be read. Each is read when it is asked for: an answer can take a megabyte.
    """
    table = schema.IdeatorCall
    query = (
        select(schema.ModelCall, table)
        .join(table, table.call_id == schema.ModelCall.id)
        .where(table.search_id == search_id)
        .order_by(table.call_id)
        .limit(1)
    )
    if epoch is not None:
        query = query.where(table.epoch == epoch)
    if answered:
        query = query.where(table.text.is_not(None))
    if unread:
        query = query.where(table.unread > 0)
    while (found := session.execute(query.where(table.call_id > after)).one_or_none()) is not None:
        yield found[0], found[1]
        after = found[1].call_id
