"""Searches and epochs: the server's record of what a search client proposed and submitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from assay.contracts.batch import BatchOptions, BatchRequest, IdeaRequest
from assay.contracts.search import (
    DecisionRequest,
    EpochRequest,
    ExtendRequest,
    PauseRequest,
    SearchRequest,
)
from assay.domain.conditions import Conditions
from assay.domain.errors import Conflict, InvalidInput, NotFound
from assay.domain.ids import new_id
from assay.domain.states import Driver, EpochState, SearchState
from assay.storage import batches, calls, drivers, environments, schema, webhooks
from assay.storage.bases import Base
from assay.storage.batches import Similar
from assay.storage.database import Database
from assay.storage.drivers import PAUSED, RESUMED
from assay.storage.notices import note
from assay.storage.outbox import Topic, post
from assay.storage.rows import among, changed, run

#: Types of a search's events, beside those of its pauses.
EPOCH_DECIDED = "search.epoch_decided"
EPOCH_STORED, EPOCH_SUBMITTED = "search.epoch_stored", "search.epoch_submitted"
EXTENDED = "search.extended"
#: The reason of a pause for an error of the loop.
ERROR = "error"
ENDED = tuple(f"search.{s.value}" for s in (SearchState.FINISHED, SearchState.CANCELLED))


def create(
    db: Database,
    session: Session,
    request: SearchRequest,
    owner: str,
    environment_id: str,
    base: Base | None = None,
    *,
    most_detached: int = 0,
) -> str:
    """Store a search. Returns its id. `base`: what `request.base` stands for, in every epoch.

    Raises:
        Conflict: the service is to drive it, and drives `most_detached` of this owner already.
    """
    if request.driver == "service":
        drivers.check_room(db, session, owner, most_detached)
    if base is not None:
        environments.keep_codebase(db, session, base.codebase, environment_id)
    search = schema.Search(
        id=new_id("srch"),
        owner=owner,
        environment_id=environment_id,
        profile=request.profile,
        strategy=request.strategy,
        seed=request.seed,
        epochs=request.epochs,
        batch_size=request.batch_size,
        ideator=request.ideator,
        executor=request.executor,
        hardware_class=request.hardware_class,
        conditions_id=request.conditions,
        base_id=base and base.codebase,
        base=base and base.name,
        config=request.config,
        labels=dict(request.metadata),
        caps=request.caps.model_dump(mode="json", exclude_none=True),
        state=SearchState.RUNNING.value,
        driver=request.driver,
        created_at=db.now(session),
    )
    session.add(search)
    session.flush()
    if request.driver == "service":
        post(session, Topic.DRIVE, search.id)
    return search.id


def locked(session: Session, search_id: str) -> schema.Search:
    """A search's row, locked: its epochs are stored, submitted and cancelled one by one."""
    row = session.get(schema.Search, search_id, with_for_update={"key_share": True})
    if row is None:
        raise NotFound(f"search {search_id!r} was not found")
    return row


def end(
    db: Database,
    session: Session,
    search_id: str,
    state: SearchState,
    *,
    epochs: int | None = None,
) -> None:
    """Finish or cancel a search; one that has ended stays as it is.

    With `epochs`, it ends only if it still has so many. Cancelling also cancels the batches of
    its epochs.
    """
    search = locked(session, search_id)
    if epochs is not None and search.epochs != epochs:
        return
    holder = search.holder
    ended = changed(
        session,
        update(schema.Search)
        .where(schema.Search.id == search_id, schema.Search.state == SearchState.RUNNING.value)
        .values(state=state.value, finished_at=db.now(session)),
    )
    if ended and holder is not None:
        post(session, Topic.IMPLEMENTER, holder)
    if ended:
        of_ideator = schema.ModelCall.implementation_id.is_(None)
        calls.interrupt(session, and_(schema.ModelCall.search_id == search_id, of_ideator))
        tell(db, session, search_id, f"search.{state.value}", {})
    if state is SearchState.CANCELLED:
        most = batches.CHUNK  # of all its batches together
        for batch_id in session.scalars(
            select(schema.Batch.id).where(
                schema.Batch.search_id == search_id, schema.Batch.finished_at.is_(None)
            )
        ).all():
            most -= batches.cancel(db, session, batch_id, most=most)


def pause_after(
    db: Database, session: Session, search_id: str, epoch: int, request: PauseRequest
) -> None:
    """Store that the loop stopped because an epoch failed; once per epoch, whoever asks.

    Raises:
        Conflict: the search has ended, or the epoch is not finished.
    """
    search = locked(session, search_id)
    known = pauses(session, [search_id])[search_id]
    if any(found.data.get("epoch") == epoch and not found.is_error for found in known):
        return
    _refuse_ended(search)
    if epoch not in _finished_epochs(session, search_id):
        raise Conflict(f"epoch {epoch} of {search_id} is not finished", code="epoch_not_finished")
    tell(db, session, search_id, PAUSED, {"epoch": epoch, **request.model_dump(mode="json")})


def pause(db: Database, session: Session, search_id: str) -> None:
    """Store that a person wants the loop to stop; a search that is paused stays as it is.

    Raises:
        Conflict: the search has ended.
    """
    search = locked(session, search_id)
    _refuse_ended(search)
    found = pauses(session, [search_id])[search_id]
    if any(each.resumed_at is None for each in found):
        return
    message = f"A person paused it. Go on: assay search resume {search_id}"
    tell(db, session, search_id, PAUSED, {"reason": "person", "message": message})


def stop(
    db: Database, session: Session, held: drivers.Held, holder: str, code: str, message: str
) -> None:
    """Store that an error stopped the loop in the service, and give up the lease.

    A search that ended, is paused already or is driven by another by now stays as it is.
    """
    search = locked(session, held.search)
    if search.state != SearchState.RUNNING.value or search.holder != holder:
        return
    if not drivers.is_paused(session, held.search):
        epoch = len(_finished_epochs(session, held.search))
        data = {"epoch": epoch, "reason": ERROR, "code": code, "message": message}
        tell(db, session, held.search, PAUSED, data)
    drivers.release(session, holder, held.search)


def resume(
    db: Database,
    session: Session,
    search_id: str,
    driver: Driver = Driver.CLIENT,
    *,
    most_detached: int = 0,
) -> None:
    """Store that the loop continues, if the search runs and is paused, and who drives it now.

    Raises:
        Conflict: as `drivers.give_to`.
    """
    search = locked(session, search_id)
    if search.state != SearchState.RUNNING.value:
        return
    drivers.give_to(db, session, search, driver, most_detached)
    found = pauses(session, [search_id])[search_id]
    if any(each.resumed_at is None for each in found):
        tell(db, session, search_id, RESUMED, {"epoch": found[-1].data.get("epoch")})


def extend(
    db: Database,
    session: Session,
    search_id: str,
    request: ExtendRequest,
    *,
    most_detached: int = 0,
) -> None:
    """Raise the number of epochs or a cap; a search that is finished runs again.

    Repeating it changes nothing: the numbers are totals.

    Raises:
        Conflict: the search was cancelled, or the service would drive more than `most_detached`
            searches of this owner.
        InvalidInput: nothing is asked for, a number is below the present one, or there is no
            such cap.
    """
    search = locked(session, search_id)
    if search.state == SearchState.CANCELLED.value:
        raise Conflict(
            f"{search_id} was cancelled, and so were its unfinished experiments; start a new "
            "search, and tell it of this one with --warm-start",
            code="search_ended",
        )
    asked = request.model_dump(mode="json", exclude_none=True)
    if not asked:
        raise InvalidInput.field("/epochs", "name what to raise: epochs, or a cap")
    before = (search.epochs, search.caps)
    if request.epochs is not None:
        _check_raised("/epochs", search.epochs, request.epochs)
        search.epochs = request.epochs
    for cap in asked.keys() - {"epochs"}:
        _raise_cap(search, cap, asked[cap])
    if (search.epochs, search.caps) == before:
        return
    if search.state == SearchState.FINISHED.value:
        if search.driver == Driver.SERVICE.value:
            drivers.check_room(db, session, search.owner, most_detached)
        search.state, search.finished_at = SearchState.RUNNING.value, None
        if search.driver == Driver.SERVICE.value:
            post(session, Topic.DRIVE, search_id)
    tell(db, session, search_id, EXTENDED, asked)


def _raise_cap(search: schema.Search, cap: str, most: Any) -> None:
    present = search.caps.get(cap)
    if present is None:
        raise InvalidInput.field(f"/{cap}", "the search has no such cap, so nothing limits it")
    _check_raised(f"/{cap}", Decimal(str(present)), Decimal(str(most)))
    search.caps = {**search.caps, cap: most}


def _check_raised(field: str, present: int | Decimal, asked: int | Decimal) -> None:
    if asked < present:
        raise InvalidInput.field(
            field, f"is {present} and can only be raised; to stop earlier, pause or cancel"
        )


def _refuse_ended(search: schema.Search) -> None:
    if search.state != SearchState.RUNNING.value:
        raise Conflict(f"the search is {search.state}; start a new one", code="search_ended")


def check_driver(session: Session, search_id: str, holder: str | None) -> None:
    """Lock a search for a write of whoever drives it. Raises as `drivers.check`."""
    drivers.check(locked(session, search_id), holder)


@dataclass(frozen=True)
class Pause:
    """A stop of the loop, and what was said about it."""

    data: Mapping[str, Any]
    paused_at: datetime
    resumed_at: datetime | None = None

    @property
    def is_error(self) -> bool:
        """Whether an error stopped the loop, and not what came of an epoch."""
        return self.data.get("reason") == ERROR


_PAUSES = (
    select(
        schema.SearchEvent.search_id,
        schema.SearchEvent.type,
        schema.SearchEvent.data,
        schema.SearchEvent.created_at,
    )
    .where(among(schema.SearchEvent.search_id), schema.SearchEvent.type.in_([PAUSED, RESUMED]))
    .order_by(schema.SearchEvent.id)
)


def pauses(session: Session, search_ids: Sequence[str]) -> Mapping[str, list[Pause]]:
    """For each search, its pauses in order. Resuming ends all that are open."""
    found: dict[str, list[Pause]] = defaultdict(list)
    for search_id, kind, data, at in run(session, _PAUSES, ids=list(search_ids)):
        of = found[search_id]
        if kind == PAUSED:
            of.append(Pause(data, at))
        else:
            of[:] = [each if each.resumed_at else replace(each, resumed_at=at) for each in of]
    return found


def events(
    session: Session, search_id: str, after: int, limit: int
) -> Sequence[schema.SearchEvent]:
    """Events of a search after the id `after`, oldest first."""
    table = schema.SearchEvent
    return session.scalars(
        select(table)
        .where(table.search_id == search_id, table.id > after)
        .order_by(table.id)
        .limit(limit)
    ).all()


def has_told_the_end(session: Session, search_id: str, last: int) -> bool:
    """Whether a reader who has seen the events up to the id `last` has seen the end.

    A search that was extended after its end has not ended there.
    """
    table = schema.SearchEvent
    query = (
        select(table)
        .where(table.search_id == search_id, table.type.in_([*ENDED, EXTENDED]))
        .order_by(table.id.desc())
    )
    newest = session.scalars(query.limit(1)).first()
    return newest is not None and newest.type in ENDED and newest.id <= last


def tell(db: Database, session: Session, search_id: str, kind: str, data: dict[str, Any]) -> None:
    """Write an event, also for webhooks that want it.

    The search's row must be locked, so that ids increase in commit order.
    """
    event = schema.SearchEvent(
        search_id=search_id, type=kind, data=data, created_at=db.now(session)
    )
    session.add(event)
    session.flush()
    search = session.get_one(schema.Search, search_id)
    webhooks.tell_of_search(session, search, event.id, kind, data)
    note(session, search_id)


def put_decision(
    db: Database, session: Session, search_id: str, number: int, request: DecisionRequest
) -> bool:
    """Store what a strategy decided for the next epoch, before the ideator is asked.

    True if it is new, False if the same is there already.

    Raises:
        Conflict: the epoch exists with another decision or without one, an earlier one is
            missing, the search has ended, or it has no such epoch.
        InvalidInput: it asks for more ideas than the search's `batch_size`.
    """
    search = locked(session, search_id)
    stored = session.get(schema.Epoch, (search_id, number))
    if stored is not None:
        if stored.decision is None or DecisionRequest.model_validate(stored.decision) != request:
            raise Conflict(
                f"epoch {number} of {search_id} was decided otherwise; read it instead",
                code="epoch_exists",
            )
        return False
    _check_next(session, search, number)
    field = "/asks" if request.remeasure is None else "/remeasure/experiments"
    _check_size(search, field, request.ideas)
    decision = request.model_dump(mode="json", exclude_none=True)
    _add_epoch(db, session, search_id, number, [], decision)
    told: dict[str, int] = {ask.operator: ask.count for ask in request.asks}
    if request.remeasure is not None:
        told = {"remeasure": len(request.remeasure.experiments)}
    tell(db, session, search_id, EPOCH_DECIDED, {"epoch": number, "asked": told})
    return True


def put_epoch(
    db: Database, session: Session, search_id: str, number: int, request: EpochRequest
) -> bool:
    """Store the ideas of the next epoch, or of one that is decided.

    True if they are new, False if the same are there already.

    Raises:
        Conflict: other ideas are stored for this epoch, an earlier one is missing, the search
            has ended, or it has no such epoch.
        InvalidInput: there are more ideas than the search's `batch_size`.
    """
    search = locked(session, search_id)
    ideas: list[Any] = [idea.model_dump(mode="json") for idea in request.ideas]
    stored = session.get(schema.Epoch, (search_id, number))
    if stored is not None and stored.ideas:
        # Read before they are compared: a field may be newer than what is stored.
        if [IdeaRequest.model_validate(idea) for idea in stored.ideas] != request.ideas:
            raise Conflict(
                f"epoch {number} of {search_id} already has other ideas; read them instead",
                code="epoch_exists",
            )
        return False
    if stored is None:
        _check_next(session, search, number)
    else:
        _refuse_ended(search)
    _check_size(search, "/ideas", len(ideas))
    if stored is None:
        _add_epoch(db, session, search_id, number, ideas)
    else:
        stored.ideas = ideas
    tell(db, session, search_id, EPOCH_STORED, {"epoch": number, "ideas": len(ideas)})
    return True


def _check_next(session: Session, search: schema.Search, number: int) -> None:
    """Refuse any epoch but the next one of a search that runs."""
    _refuse_ended(search)
    known = session.scalars(select(func.count()).where(schema.Epoch.search_id == search.id)).one()
    if number != known or number >= search.epochs:
        raise Conflict(
            f"the next epoch of {search.id} is {known} of {search.epochs}, not {number}",
            code="epoch_out_of_order",
        )


def _check_size(search: schema.Search, field: str, ideas: int) -> None:
    if ideas > search.batch_size:
        raise InvalidInput.field(
            field,
            f"there are {ideas}, and the `batch_size` of {search.id} is {search.batch_size}; "
            "send the rest in the next epoch, or start a search with a larger `batch_size`",
            "epoch_too_large",
        )


def _add_epoch(
    db: Database,
    session: Session,
    search_id: str,
    number: int,
    ideas: list[Any],
    decision: dict[str, Any] | None = None,
) -> None:
    session.add(
        schema.Epoch(
            search_id=search_id,
            number=number,
            ideas=ideas,
            decision=decision,
            created_at=db.now(session),
        )
    )
    session.flush()


def submit_epoch(
    db: Database,
    session: Session,
    search_id: str,
    number: int,
    options: BatchOptions,
    on: Conditions,
    similar: Sequence[Sequence[Similar]],
    based_on: Sequence[Base | None],
) -> tuple[str, bool]:
    """Submit the stored ideas of an epoch, once. Returns the batch's id and whether it is new.

    `similar` and `based_on` are those of `batches.create`.
    """
    search = locked(session, search_id)
    epoch = session.get(schema.Epoch, (search_id, number))
    is_open = epoch is not None and epoch.batch_id is None
    # The bases are found before this transaction begins, and the ideas may have been stored since.
    if epoch is None or not epoch.ideas or (is_open and len(based_on) != len(epoch.ideas)):
        raise Conflict(f"epoch {number} of {search_id} has no ideas yet; PUT them first")
    if epoch.batch_id is not None:
        return epoch.batch_id, False
    _refuse_ended(search)
    request = epoch_request(search, epoch, options)
    epoch.batch_id = batches.create(
        db,
        session,
        request,
        search.owner,
        search.environment_id,
        on,
        similar,
        based_on=based_on,
    )
    told = {"epoch": number, "batch": epoch.batch_id}
    tell(db, session, search_id, EPOCH_SUBMITTED, told)
    return epoch.batch_id, True


def epoch_request(
    search: schema.Search, epoch: schema.Epoch, options: BatchOptions
) -> BatchRequest:
    """The batch that an epoch becomes."""
    return BatchRequest(
        environment=search.environment_id,
        profile=search.profile,
        ideas=[IdeaRequest.model_validate(idea) for idea in epoch.ideas],
        executor=search.executor,
        ideator=search.ideator,
        hardware_class=search.hardware_class,
        options=options,
        search=search.id,
        epoch=epoch.number,
    )


@dataclass(frozen=True)
class EpochRow:
    """An epoch and the state that follows from its batch."""

    row: schema.Epoch
    state: EpochState


def epoch(session: Session, search_id: str, number: int) -> EpochRow:
    """An epoch with its ideas. Raises NotFound."""
    found = _first_epoch(session, search_id, schema.Epoch.number == number)
    if found is None:
        raise NotFound(f"epoch {number} of {search_id!r} was not found")
    return found


def epochs(session: Session, search_id: str, *, after: int = -1) -> Iterator[EpochRow]:
    """The epochs of a search whose number is greater than `after`, in order, with their ideas.

    Each is read when it is asked for, because the ideas of one can take many megabytes.
    """
    while found := _first_epoch(session, search_id, schema.Epoch.number > after):
        yield found
        after = found.row.number


def _first_epoch(
    session: Session, search_id: str, condition: ColumnElement[bool]
) -> EpochRow | None:
    found = session.execute(
        select(schema.Epoch, schema.Batch.finished_at)
        .outerjoin(schema.Batch, schema.Batch.id == schema.Epoch.batch_id)
        .where(schema.Epoch.search_id == search_id, condition)
        .order_by(schema.Epoch.number)
        .limit(1)
    ).one_or_none()
    if found is None:
        return None
    row, finished_at = found
    state = EpochState.PROPOSED if row.ideas else EpochState.DECIDED
    if row.batch_id is not None:
        state = EpochState.FINISHED if finished_at is not None else EpochState.SUBMITTED
    return EpochRow(row, state)


class BatchOfSearch(NamedTuple):
    """A batch that belongs to a search. `epoch`: the number of the one it is the batch of; None
    for a confirmation or a retry."""

    id: str
    environment_id: str
    is_finished: bool
    epoch: int | None


_BATCHES = (
    select(
        schema.Batch.search_id,
        schema.Batch.id,
        schema.Batch.environment_id,
        schema.Batch.finished_at.is_not(None),
        schema.Epoch.number,
    )
    .outerjoin(schema.Epoch, schema.Epoch.batch_id == schema.Batch.id)
    .where(among(schema.Batch.search_id))
    .order_by(schema.Epoch.number)
)


def batches_of(session: Session, search_ids: Sequence[str]) -> Mapping[str, list[BatchOfSearch]]:
    """For each search, its batches, in the order of its epochs."""
    found: dict[str, list[BatchOfSearch]] = defaultdict(list)
    for search_id, *batch in run(session, _BATCHES, ids=list(search_ids)).all():
        found[search_id].append(BatchOfSearch(*batch))
    return found


def _finished_epochs(session: Session, search_id: str) -> list[int]:
    """The numbers of a search's epochs whose batch is finished."""
    found = batches_of(session, [search_id]).get(search_id, [])
    return [each.epoch for each in found if each.is_finished and each.epoch is not None]
