"""Searches and epochs: the record that lets a search client resume anywhere."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Body, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.annotation import AnnotationRequest
from assay.contracts.base import MAX_INTEGER, Page
from assay.contracts.batch import BatchBody, BatchOptions, EventBody
from assay.contracts.search import (
    MAX_EPOCH_BYTES,
    DecisionRequest,
    EpochBody,
    EpochRequest,
    ExtendRequest,
    FinishRequest,
    IdeatorCallBody,
    IdeatorCallEndRequest,
    IdeatorCallRequest,
    PauseRequest,
    ResumeRequest,
    SearchBody,
    SearchRequest,
    bytes_of,
)
from assay.domain.states import Driver, SearchState
from assay.environments.catalog import Environment
from assay.llm import ModelName, Usage, price
from assay.storage import conditions, ideator_calls, idempotency, schema, searches, webhooks
from assay.storage.annotations import change_annotation, tagged
from assay.storage.bases import Base, base_of, needs_sandbox
from assay.storage.batches import Similar
from assay.storage.ideator_calls import CapReached
from assay.storage.rows import get
from services.implementer import bases, ideators, novelty, remeasuring, submission
from services.implementer.context import Context
from services.implementer.dependencies import (
    ContextDep,
    EpochPageDep,
    HolderDep,
    IdPath,
    KeyDep,
    OwnerDep,
    PageDep,
    TagQuery,
)
from services.implementer.owned import owned_search
from services.implementer.paging import after, page_of, page_within, position_of
from services.implementer.streams import answer_events, of_search
from services.implementer.views.batches import batch_body
from services.implementer.views.calls import ideator_call_body
from services.implementer.views.measurements import (
    epoch_body,
    search_bodies,
    search_body,
)

router = APIRouter(tags=["searches"])
Number = Annotated[int, Path(ge=0, le=10_000)]


@router.post("/searches", status_code=201, response_model=SearchBody)
def create(
    request: SearchRequest, context: ContextDep, owner: OwnerDep, key: KeyDep = None
) -> Response:
    """Record a search. Its driver, a client or the service, then proposes its epochs."""
    environment = submission.known_environment(context, request.environment)
    environment.profile(request.profile)
    submission.check_models(context, request.executor)
    if request.driver == "service":
        ideators.check(context, request.strategy, request.ideator, request.config)
    submission.check_search_caps(context, request, owner)
    if request.conditions is not None:
        with context.db.read() as session:
            conditions.class_of(session, request.conditions, request.hardware_class)
    base = bases.resolve(context, environment, request.base, owner)
    environment_id = submission.register(context, environment)

    def action(session: Session) -> tuple[int, dict[str, Any]]:
        search_id = searches.create(
            context.db,
            session,
            request,
            owner,
            environment_id,
            base,
            most_detached=context.settings.detached_searches,
        )
        row = get(session, schema.Search, search_id, "search")
        return 201, search_body(context, session, row).wire()

    fingerprint = idempotency.fingerprint("POST /v1/searches", request.model_dump_json())
    done = idempotency.once(context.db, owner, key, fingerprint, action)
    context.on_commit()
    headers = {"Location": f"/v1/searches/{done.body['id']}"}
    if done.replayed:
        headers["Idempotent-Replayed"] = "true"
    return JSONResponse(done.body, done.status, headers)


@router.get("/searches")
def list_(
    context: ContextDep, owner: OwnerDep, page: PageDep, tag: TagQuery = None
) -> Page[SearchBody]:
    """Searches, newest first."""
    filters = {} if tag is None else {"tag": tag}
    query = select(schema.Search).where(schema.Search.owner == owner)
    if tag is not None:
        query = tagged(query, schema.Search.id, owner, tag)
    last = after(page, filters)
    if last is not None:
        query = query.where(schema.Search.id < str(last))
    with context.db.read() as session:
        rows = session.scalars(query.order_by(schema.Search.id.desc()).limit(page.limit + 1)).all()
        shown = search_bodies(context, session, rows[: page.limit])
        bodies = {body.id: body for body in shown}
        return page_of(rows, page, filters, lambda r: r.id, lambda r: bodies[r.id])


@router.get("/searches/{search_id}")
def read(search_id: IdPath, context: ContextDep, owner: OwnerDep) -> SearchBody:
    """A search, with the best so far per finished epoch."""
    with context.db.read() as session:
        return search_body(context, session, owned_search(session, search_id, owner))


@router.patch("/searches/{search_id}")
def annotate(
    search_id: IdPath, request: AnnotationRequest, context: ContextDep, owner: OwnerDep
) -> SearchBody:
    """Change the tags and the note of a search, and nothing else. Repeating it changes nothing."""
    with context.write() as session:
        owned_search(session, search_id, owner)
        change_annotation(session, owner, search_id, request.tags, request.note)
    return read(search_id, context, owner)


@router.post("/searches/{search_id}/cancel")
def cancel(search_id: IdPath, context: ContextDep, owner: OwnerDep) -> SearchBody:
    """Cancel a search and the batches of its epochs. Repeating it changes nothing."""
    with context.write() as session:
        owned_search(session, search_id, owner)
        searches.end(context.db, session, search_id, SearchState.CANCELLED)
    return read(search_id, context, owner)


@router.post("/searches/{search_id}/finish")
def finish(
    search_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    holder: HolderDep,
    request: Annotated[FinishRequest | None, Body()] = None,
) -> SearchBody:
    """Say that no further epoch will come. Repeating it changes nothing."""
    epochs = None if request is None else request.epochs
    with context.write() as session:
        if owned_search(session, search_id, owner).state == SearchState.RUNNING.value:
            searches.check_driver(session, search_id, holder)
        searches.end(context.db, session, search_id, SearchState.FINISHED, epochs=epochs)
    return read(search_id, context, owner)


@router.post("/searches/{search_id}/extend")
def extend(
    search_id: IdPath, request: ExtendRequest, context: ContextDep, owner: OwnerDep
) -> SearchBody:
    """Raise the number of epochs or a cap. A finished search runs again. Repeating it changes
    nothing."""
    with context.write() as session:
        owned_search(session, search_id, owner)
        most = context.settings.detached_searches
        searches.extend(context.db, session, search_id, request, most_detached=most)
    return read(search_id, context, owner)


@router.post("/searches/{search_id}/pause")
def pause(search_id: IdPath, context: ContextDep, owner: OwnerDep) -> SearchBody:
    """Have its loop stop before it asks for more; what runs goes on. Repeating it changes
    nothing."""
    with context.write() as session:
        owned_search(session, search_id, owner)
        searches.pause(context.db, session, search_id)
    return read(search_id, context, owner)


@router.post("/searches/{search_id}/epochs/{number}/pause")
def pause_after(
    search_id: IdPath,
    number: Number,
    request: PauseRequest,
    context: ContextDep,
    owner: OwnerDep,
    holder: HolderDep,
) -> SearchBody:
    """Say that the loop stops because this epoch failed. Repeating it changes nothing."""
    with context.write() as session:
        owned_search(session, search_id, owner)
        searches.check_driver(session, search_id, holder)
        searches.pause_after(context.db, session, search_id, number, request)
    return read(search_id, context, owner)


@router.post("/searches/{search_id}/resume")
def resume(
    search_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    request: Annotated[ResumeRequest | None, Body()] = None,
) -> SearchBody:
    """Say that the loop continues after a pause, and who runs it: a client, if nothing is said.

    Repeating it changes nothing. A client that ran it is refused once the service does; the
    service gives a search back when it is paused.
    """
    driver = Driver((request or ResumeRequest()).driver)
    with context.db.read() as session:
        search = owned_search(session, search_id, owner)
    if driver is Driver.SERVICE and search.state == SearchState.RUNNING.value:
        submission.check_models(context, search.executor)
        ideators.check(context, search.strategy, search.ideator, search.config)
    most = context.settings.detached_searches
    with context.write() as session:
        searches.resume(context.db, session, search_id, driver, most_detached=most)
    return read(search_id, context, owner)


@router.get(
    "/searches/{search_id}/events",
    response_model=Page[EventBody],
    responses={
        200: {"content": {"text/event-stream": {}}},
        204: {"description": "A stream that was followed to its end: do not come back."},
    },
)
async def events(
    search_id: IdPath,
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    page: PageDep,
    after_id: Annotated[int, Query(alias="after", ge=0, le=MAX_INTEGER)] = 0,
    last_event_id: Annotated[int | None, Header(ge=0, le=MAX_INTEGER)] = None,
) -> Any:
    """Epochs, pauses, extensions, answers that could not be read, and the end of a search.

    A page of JSON, or a stream, as of a batch's events. What changes in an epoch is among the
    events of its batch.
    """
    start = max(after_id, last_event_id or 0)
    return await answer_events(request, context, owner, of_search(search_id), start, page)


@router.get("/searches/{search_id}/epochs")
def list_epochs(
    search_id: IdPath, context: ContextDep, owner: OwnerDep, page: EpochPageDep
) -> Page[EpochBody]:
    """The epochs of a search, with their ideas, in order.

    A page also ends before its ideas exceed what a single epoch may hold.
    """
    filters = {"search": search_id}
    last = after(page, filters)
    start = -1 if last is None else position_of(last)
    with context.db.read() as session:
        owned_search(session, search_id, owner)
        rows = searches.epochs(session, search_id, after=start)
        return page_within(
            (epoch_body(row) for row in rows),
            page,
            filters,
            lambda epoch: epoch.number,
            lambda epoch: bytes_of(epoch.ideas),
            MAX_EPOCH_BYTES,
        )


@router.put(
    "/searches/{search_id}/calls/{call_id}",
    status_code=201,
    response_model=IdeatorCallBody,
    responses={200: {"description": "It was recorded before.", "model": IdeatorCallBody}},
)
def begin_call(
    search_id: IdPath,
    call_id: IdPath,
    request: IdeatorCallRequest,
    context: ContextDep,
    owner: OwnerDep,
    holder: HolderDep,
) -> Response:
    """Record that a request to the ideator's model is about to be sent, under a new id.

    It is refused where a cap allows no further call: then it must not be sent.
    """
    with context.write() as session:
        owned_search(session, search_id, owner)
        searches.check_driver(session, search_id, holder)
        ideator_calls.interrupt_others(session, search_id, request.loop)
    try:
        with context.write() as session:
            search = owned_search(session, search_id, owner)
            searches.check_driver(session, search_id, holder)
            expected = Usage(request.input_tokens, request.output_tokens)
            is_new = ideator_calls.begin(
                context.db,
                session,
                search_id,
                call_id,
                request,
                reserved_usd=_cost(search, expected, is_replay=request.is_replay),
                owners=context.settings.caps,
            )
            body = _call(session, call_id).wire()
    except CapReached as stopped:  # which rolled its transaction back
        with context.write() as session:
            webhooks.tell_of_cap(context.db, session, stopped.payer, stopped.reached)
        raise
    return JSONResponse(body, 201 if is_new else 200)


@router.put("/searches/{search_id}/calls/{call_id}/end")
def end_call(
    search_id: IdPath,
    call_id: IdPath,
    request: IdeatorCallEndRequest,
    context: ContextDep,
    owner: OwnerDep,
) -> IdeatorCallBody:
    """Record what came of a request, with its answer. Repeating it changes nothing."""
    used = Usage(
        request.input_tokens,
        request.output_tokens,
        request.cached_input_tokens,
        request.cache_write_tokens,
    )
    with context.write() as session:
        search = owned_search(session, search_id, owner)
        row = get(session, schema.ModelCall, call_id, "call")
        cost = _cost(search, used, is_replay=row.is_replay)
        ideator_calls.end(context.db, session, search_id, call_id, request, cost_usd=cost)
        session.expire_all()
        return _call(session, call_id)


@router.get("/searches/{search_id}/calls")
def list_calls(
    search_id: IdPath,
    context: ContextDep,
    owner: OwnerDep,
    page: EpochPageDep,
    epoch: Annotated[
        int | None, Query(ge=0, le=10_000, description="Of this epoch alone.")
    ] = None,
    answered: Annotated[bool, Query(description="Those alone that have an answer.")] = False,
    unread: Annotated[
        bool, Query(description="Those alone whose answer could not be read in whole.")
    ] = False,
) -> Page[IdeatorCallBody]:
    """The ledger of a search's ideator: every request to its model, oldest first.

    Those of its executor are in the ledgers of its batches.
    """
    filters = {"search": search_id, "epoch": epoch, "answered": answered, "unread": unread}
    last = after(page, filters)
    with context.db.read() as session:
        owned_search(session, search_id, owner)
        rows = ideator_calls.of_search(
            session,
            search_id,
            after="" if last is None else str(last),
            epoch=epoch,
            answered=answered,
            unread=unread,
        )
        return page_within(
            (ideator_call_body(*row) for row in rows),
            page,
            filters,
            lambda call: call.id,
            lambda call: len(call.model_dump_json()),
            MAX_EPOCH_BYTES,
        )


def _call(session: Session, call_id: str) -> IdeatorCallBody:
    row = session.get_one(schema.ModelCall, call_id)
    return ideator_call_body(row, session.get_one(schema.IdeatorCall, call_id))


def _cost(search: schema.Search, usage: Usage, *, is_replay: bool) -> Decimal | None:
    return Decimal(0) if is_replay else price(ModelName.parse(search.ideator), usage)


@router.put(
    "/searches/{search_id}/epochs/{number}/decision",
    status_code=201,
    response_model=EpochBody,
    responses={200: {"description": "The same was stored before.", "model": EpochBody}},
)
def put_decision(
    search_id: IdPath,
    number: Number,
    request: DecisionRequest,
    context: ContextDep,
    owner: OwnerDep,
    holder: HolderDep,
) -> Response:
    """Store what an asynchronous strategy decided for the next epoch, before its ideas."""
    with context.write() as session:
        owned_search(session, search_id, owner)
        searches.check_driver(session, search_id, holder)
        is_new = searches.put_decision(context.db, session, search_id, number, request)
        body = epoch_body(searches.epoch(session, search_id, number)).wire()
    return JSONResponse(body, 201 if is_new else 200)


@router.put(
    "/searches/{search_id}/epochs/{number}",
    status_code=201,
    response_model=EpochBody,
    responses={200: {"description": "The same ideas were stored before.", "model": EpochBody}},
)
def put_epoch(
    search_id: IdPath,
    number: Number,
    request: EpochRequest,
    context: ContextDep,
    owner: OwnerDep,
    holder: HolderDep,
) -> Response:
    """Store the ideas of the next epoch, or of one that is decided, before they are submitted."""
    submission.check_epoch(request)
    _check_codebases(context, search_id, number, request, owner)
    with context.write() as session:
        owned_search(session, search_id, owner)
        searches.check_driver(session, search_id, holder)
        is_new = searches.put_epoch(context.db, session, search_id, number, request)
        body = epoch_body(searches.epoch(session, search_id, number)).wire()
    return JSONResponse(body, 201 if is_new else 200)


def _check_codebases(
    context: Context, search_id: str, number: int, request: EpochRequest, owner: str
) -> None:
    """Refuse ideas with a base that cannot be changed, or a codebase that is not to be measured,
    before an epoch holds them."""
    with context.db.read() as session:
        search = owned_search(session, search_id, owner)
        remeasuring.check(session, search, number, request.ideas)
    if any(idea.base is not None for idea in request.ideas):
        environment = submission.known_environment(context, search.environment_id)
        bases.resolve_all(context, environment, request.ideas, owner, base_of(search))


@router.post(
    "/searches/{search_id}/epochs/{number}/batch",
    status_code=202,
    response_model=BatchBody,
    responses={200: {"description": "It was submitted before.", "model": BatchBody}},
)
def submit_epoch(
    search_id: IdPath,
    number: Number,
    context: ContextDep,
    owner: OwnerDep,
    holder: HolderDep,
    options: Annotated[BatchOptions | None, Body()] = None,
) -> Response:
    """Submit the stored ideas of an epoch as a batch, exactly once."""
    with context.db.read() as session:
        search = owned_search(session, search_id, owner)
        environment = submission.known_environment(context, search.environment_id)
    submission.check_models(context, search.executor)
    chosen = options or BatchOptions()
    submission.check_cap(context, search.executor, owner, chosen)
    context.check_store()
    similar, based_on = _prepare(context, search, number, chosen, environment)
    with context.write() as session:
        searches.check_driver(session, search_id, holder)
        # What a search learns from is compared with what it finds later.
        on = conditions.of_search(session, search_id) or conditions.choose(
            session,
            environment.id,
            environment.manifest,
            search.profile,
            search.hardware_class,
            search.conditions_id,
            isolated=needs_sandbox(
                session,
                search.executor,
                search.ideator,
                based_on,
                allow_unisolated=chosen.allow_unisolated,
            ),
        )
        batch_id, is_new = searches.submit_epoch(
            context.db, session, search_id, number, chosen, on, similar, based_on
        )
        row = get(session, schema.Batch, batch_id, "batch")
        body = batch_body(context, session, row, is_new=is_new)
    headers = {"Location": body.links.self}
    return JSONResponse(body.wire(), 202 if is_new else 200, headers)


class _Prepared(NamedTuple):
    """For each idea of an epoch, the earlier ones in nearly its words, and its base."""

    similar: list[list[Similar]]
    based_on: list[Base | None]


def _prepare(
    context: Context,
    search: schema.Search,
    number: int,
    options: BatchOptions,
    environment: Environment,
) -> _Prepared:
    """Check what is about to be submitted."""
    with context.db.read() as session:
        epoch = session.get(schema.Epoch, (search.id, number))
    if epoch is None or epoch.batch_id is not None or not epoch.ideas:
        return _Prepared([], [])  # which is refused, or done
    request = searches.epoch_request(search, epoch, options)
    based_on = bases.resolve_all(
        context, environment, request.ideas, search.owner, base_of(search)
    )
    submission.check_smoke(context, environment, search, options, based_on)
    similar = novelty.find(context, request, environment.name, search.owner, based_on)
    return _Prepared(similar, based_on)
