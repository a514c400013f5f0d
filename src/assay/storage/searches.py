"""Searches and epochs: the server's record of what a search client proposed and submitted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from assay.contracts.batch import BatchOptions, BatchRequest, IdeaRequest
from assay.contracts.search import EpochRequest, PauseRequest, SearchRequest
from assay.domain.conditions import Conditions
from assay.domain.errors import Conflict, InvalidInput, NotFound
from assay.domain.ids import new_id
from assay.domain.states import EpochState, SearchState
from assay.storage import batches, calls, environments, schema
from assay.storage.bases import Base, base_of
from assay.storage.batches import Similar
from assay.storage.database import Database
from assay.storage.rows import changed

#: Types of a search's events.
PAUSED, RESUMED = "search.paused", "search.resumed"
ENDED = tuple(f"search.{s.value}" for s in (SearchState.FINISHED, SearchState.CANCELLED))


def create(
    db: Database,
    session: Session,
    request: SearchRequest,
    owner: str,
    environment_id: str,
    base: Base | None = None,
) -> str:
    """Store a search. Returns its id. `base`: what `request.base` stands for, in every epoch."""
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
        base_id=base and base.codebase,
        base=base and base.name,
        config=request.config,
        labels=dict(request.metadata),
        caps=request.caps.model_dump(mode="json", exclude_none=True),
        state=SearchState.RUNNING.value,
        created_at=db.now(session),
    )
    session.add(search)
    session.flush()
    return search.id


def locked(session: Session, search_id: str) -> schema.Search:
    """A search's row, locked: its epochs are stored, submitted and cancelled one by one."""
    row = session.get(schema.Search, search_id, with_for_update={"key_share": True})
    if row is None:
        raise NotFound(f"search {search_id!r} was not found")
    return row


def end(db: Database, session: Session, search_id: str, state: SearchState) -> None:
    """Finish or cancel a search; one that has ended stays as it is.

    Cancelling also cancels the batches of its epochs.
    """
    locked(session, search_id)
    ended = changed(
        session,
        update(schema.Search)
        .where(schema.Search.id == search_id, schema.Search.state == SearchState.RUNNING.value)
        .values(state=state.value, finished_at=db.now(session)),
    )
    if ended:
        of_ideator = schema.ModelCall.implementation_id.is_(None)
        calls.interrupt(session, and_(schema.ModelCall.search_id == search_id, of_ideator))
        tell(db, session, search_id, f"search.{state.value}", {})
    if state is SearchState.CANCELLED:
        for batch_id in session.scalars(
            select(schema.Batch.id).where(
                schema.Batch.search_id == search_id, schema.Batch.finished_at.is_(None)
            )
        ).all():
            batches.cancel(db, session, batch_id)


def pause(
    db: Database, session: Session, search_id: str, epoch: int, request: PauseRequest
) -> None:
    """Store that the loop stopped after an epoch; once per epoch, whoever asks.

    Raises:
        Conflict: the search has ended, or the epoch is not finished.
    """
    search = locked(session, search_id)
    if any(found.epoch == epoch for found in pauses(session, [search_id])[search_id]):
        return
    if search.state != SearchState.RUNNING.value:
        raise Conflict(f"the search is {search.state}; start a new one", code="search_ended")
    numbers = {finished.number for finished in finished_epochs(session, [search_id])[search_id]}
    if epoch not in numbers:
        raise Conflict(f"epoch {epoch} of {search_id} is not finished", code="epoch_not_finished")
    tell(db, session, search_id, PAUSED, {"epoch": epoch, **request.model_dump(mode="json")})


def resume(db: Database, session: Session, search_id: str) -> None:
    """Store that the loop goes on, if the search runs and is paused."""
    search = locked(session, search_id)
    found = pauses(session, [search_id])[search_id]
    is_running = search.state == SearchState.RUNNING.value
    if is_running and found and found[-1].resumed_at is None:
        tell(db, session, search_id, RESUMED, {"epoch": found[-1].epoch})


@dataclass(frozen=True)
class Pause:
    """A stop of the loop after an epoch, and what the loop said about it."""

    epoch: int
    data: Mapping[str, Any]
    paused_at: datetime
    resumed_at: datetime | None = None


def pauses(session: Session, search_ids: Sequence[str]) -> Mapping[str, list[Pause]]:
    """For each search, its pauses in order."""
    table = schema.SearchEvent
    rows = session.scalars(
        select(table)
        .where(table.search_id.in_(search_ids), table.type.in_([PAUSED, RESUMED]))
        .order_by(table.id)
    )
    found: dict[str, list[Pause]] = defaultdict(list)
    for row in rows:
        of = found[row.search_id]
        if row.type == PAUSED:
            of.append(Pause(row.data["epoch"], row.data, row.created_at))
        else:
            of[-1] = replace(of[-1], resumed_at=row.created_at)
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
    """Whether a reader who has seen the events up to the id `last` has seen the end."""
    table = schema.SearchEvent
    query = select(table.id).where(
        table.search_id == search_id, table.id <= last, table.type.in_(ENDED)
    )
    return session.scalars(query.limit(1)).first() is not None


def tell(db: Database, session: Session, search_id: str, kind: str, data: dict[str, Any]) -> None:
    """Write an event. The search's row must be locked, so that ids increase in commit order."""
    session.add(
        schema.SearchEvent(search_id=search_id, type=kind, data=data, created_at=db.now(session))
    )
    session.flush()


def put_epoch(
    db: Database, session: Session, search_id: str, number: int, request: EpochRequest
) -> bool:
    """Store the ideas of an epoch. True if they are new, False if the same are there already.

    Raises:
        Conflict: other ideas are stored for this epoch, an earlier one is missing, the search
            has ended, or it has no such epoch.
        InvalidInput: there are more ideas than the search's `batch_size`.
    """
    search = locked(session, search_id)
    ideas: list[Any] = [idea.model_dump(mode="json") for idea in request.ideas]
    stored = session.get(schema.Epoch, (search_id, number))
    if stored is not None:
        if stored.ideas != ideas:
            raise Conflict(
                f"epoch {number} of {search_id} already has other ideas; read them instead",
                code="epoch_exists",
            )
        return False
    if search.state != SearchState.RUNNING.value:
        raise Conflict(f"the search is {search.state}; start a new one", code="search_ended")
    known = session.scalars(select(func.count()).where(schema.Epoch.search_id == search_id)).one()
    if number != known or number >= search.epochs:
        raise Conflict(
            f"the next epoch of {search_id} is {known} of {search.epochs}, not {number}",
            code="epoch_out_of_order",
        )
    if len(ideas) > search.batch_size:
        raise InvalidInput.field(
            "/ideas",
            f"there are {len(ideas)}, and the `batch_size` of {search_id} is {search.batch_size}; "
            "send the rest in the next epoch, or start a search with a larger `batch_size`",
            "epoch_too_large",
        )
    session.add(
        schema.Epoch(search_id=search_id, number=number, ideas=ideas, created_at=db.now(session))
    )
    session.flush()
    return True


def submit_epoch(
    db: Database,
    session: Session,
    search_id: str,
    number: int,
    options: BatchOptions,
    on: Conditions,
    similar: Sequence[Sequence[Similar]] = (),
) -> tuple[str, bool]:
    """Submit the stored ideas of an epoch, once. Returns the batch's id and whether it is new."""
    search = locked(session, search_id)
    epoch = session.get(schema.Epoch, (search_id, number))
    if epoch is None:
        raise Conflict(f"epoch {number} of {search_id} has no ideas yet; PUT them first")
    if epoch.batch_id is not None:
        return epoch.batch_id, False
    if search.state != SearchState.RUNNING.value:
        raise Conflict(f"the search is {search.state}; start a new one", code="search_ended")
    request = epoch_request(search, epoch, options)
    epoch.batch_id = batches.create(
        db,
        session,
        request,
        search.owner,
        search.environment_id,
        on,
        similar,
        base=base_of(search),
    )
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
    state = EpochState.PROPOSED
    if row.batch_id is not None:
        state = EpochState.FINISHED if finished_at is not None else EpochState.SUBMITTED
    return EpochRow(row, state)


@dataclass(frozen=True)
class FinishedEpoch:
    """The number of an epoch whose batch is finished, and the batch's id."""

    number: int
    batch_id: str


def finished_epochs(
    session: Session, search_ids: Sequence[str]
) -> Mapping[str, list[FinishedEpoch]]:
    """For each search, its finished epochs in order, without their ideas."""
    rows = session.execute(
        select(schema.Epoch.search_id, schema.Epoch.number, schema.Batch.id)
        .join(schema.Batch, schema.Batch.id == schema.Epoch.batch_id)
        .where(schema.Epoch.search_id.in_(search_ids), schema.Batch.finished_at.is_not(None))
        .order_by(schema.Epoch.number)
    ).all()
    found: dict[str, list[FinishedEpoch]] = defaultdict(list)
    for search_id, number, batch_id in rows:
        found[search_id].append(FinishedEpoch(number, batch_id))
    return found
