"""Check a batch or a search before anything is stored: what is wrong is said at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import BatchOptions, BatchRequest, IdeaRequest
from assay.contracts.caps import Spending
from assay.contracts.search import MAX_EPOCH_BYTES, EpochRequest, SearchRequest, bytes_of
from assay.domain.errors import FieldError, InvalidInput, NotFound, Unavailable
from assay.domain.isolation import NO_MODEL
from assay.domain.states import ExperimentState, MeasurementKind, WorkerState
from assay.environments.catalog import Environment
from assay.llm import MissingKey, ModelError, ModelName, Usage, price
from assay.storage import caps, conditions, environments, schema
from assay.storage.bases import Base, needs_sandbox
from assay.storage.rows import get
from services.implementer import bases, codebases
from services.implementer.confirming import fresh_seeds_for
from services.implementer.context import Context
from services.implementer.executors import executor_of
from services.implementer.smoke import fitting_class


class Checked(NamedTuple):
    """What a request names: the environment, and for each idea its base if it has one."""

    environment: Environment
    based_on: Sequence[Base | None]


def known_environment(context: Context, name: str) -> Environment:
    """The environment of that name. Raises InvalidInput that names the field."""
    try:
        return context.environments.get(name)
    except NotFound as error:
        raise InvalidInput(
            str(error),
            code="unknown_environment",
            fields=(FieldError("/environment", str(error), "unknown_environment"),),
        ) from None


def check_models(context: Context, executor: str) -> None:
    """Refuse an executor that is misnamed or whose key is missing."""
    try:
        name = ModelName.parse(executor)
        check_address(context, name, "/executor")
        if context.settings.replay is None:  # which needs no key, and no package
            executor_of(context, executor)
    except MissingKey as error:
        raise InvalidInput.field("/executor", str(error), "missing_key") from None
    except ModelError as error:
        raise InvalidInput.field("/executor", str(error), "model_unavailable") from None
    except ValueError as error:
        raise InvalidInput.field("/executor", str(error), "unknown_model") from None


def check_address(context: Context, name: ModelName, field: str) -> None:
    """An address of the caller's choice would be sent this server's key.

    Raises InvalidInput about the field.
    """
    settings = context.settings
    if name.base_url is None or not settings.api_keys:
        return
    if name.base_url not in settings.model_urls:
        allowed = ", ".join(settings.model_urls) or "none"
        raise InvalidInput.field(
            field,
            f"{name.base_url} is not an address this server sends its key to "
            f"(ASSAY_IMPLEMENTER_MODEL_URLS: {allowed})",
            "model_url_not_allowed",
        )


def check_cap(
    context: Context, executor: str, owner: str, spending: Spending | BatchOptions
) -> None:
    """Refuse a spend cap that cannot be kept, since nobody knows what the calls cost.

    `spending` is what the submitter set; the owner's own caps are looked at as well.
    """
    caps_set = {"/options/max_cost_usd": spending.max_cost_usd}
    _check_priced(context, "/executor", executor, owner, caps_set)


def check_search_caps(context: Context, request: SearchRequest, owner: str) -> None:
    """Refuse caps of a search that cannot be kept (see `check_cap`), and unreadable models."""
    spending = request.caps
    whole = {"/caps/max_cost_usd": spending.max_cost_usd}
    executors = whole | {"/caps/max_executor_cost_usd": spending.max_executor_cost_usd}
    ideators = whole | {"/caps/max_ideator_cost_usd": spending.max_ideator_cost_usd}
    _check_priced(context, "/executor", request.executor, owner, executors)
    _check_priced(context, "/ideator", request.ideator, owner, ideators)


def _check_priced(
    context: Context,
    field: str,
    model: str,
    owner: str,
    caps_set: Mapping[str, Decimal | None],
) -> None:
    try:
        known = price(ModelName.parse(model), Usage()) is not None
    except ValueError as error:
        raise InvalidInput.field(field, str(error), "unknown_model") from None
    is_replay = field == "/executor" and context.settings.replay is not None
    if known or is_replay:
        return
    for name, cap in caps_set.items():
        if cap is not None:
            raise InvalidInput.field(
                name,
                f"no price is known for {model}, so this cap could not be kept; leave it out",
                "price_unknown",
            )
    own = caps.of_owner(context.settings.caps, owner)
    if own.max_cost_usd is not None or own.max_cost_usd_per_day is not None:
        raise InvalidInput.field(
            field,
            f"no price is known for {model}, and what {owner!r} may spend is capped "
            "(ASSAY_IMPLEMENTER_CAPS); choose a model with a price",
            "price_unknown",
        )


def check_smoke(
    context: Context,
    environment: Environment,
    asked: BatchRequest | schema.Search,
    options: BatchOptions,
    based_on: Sequence[Base | None],
) -> None:
    """Refuse a smoke that no worker can run. Raises InvalidInput that names the field."""
    if options.preflight != "smoke":
        return
    smoke = environment.manifest.smoke_profile(asked.profile)
    where = "/options/preflight"
    if smoke is None:
        raise InvalidInput.field(
            where,
            f"{environment.name} has no profile without GPUs, which a smoke runs under; add one, "
            f"or the table [profiles.{asked.profile}.smoke], or choose `compile`",
            "no_smoke_profile",
        )
    name, need = smoke
    with context.db.read() as session:
        isolated = needs_sandbox(
            session,
            asked.executor,
            asked.ideator,
            based_on,
            allow_unisolated=options.allow_unisolated,
        )
        if fitting_class(session, need, asked.hardware_class, isolated=isolated) is None:
            chosen = (
                f" of class {asked.hardware_class}" if need.gpus and asked.hardware_class else ""
            )
            raise InvalidInput.field(
                where,
                f"no live worker{chosen} fits a smoke of profile {name!r} ({need.cpus} CPUs, "
                f"{need.gpus} GPUs, {need.memory_gb:g} GB); start one, or choose `compile`",
                "no_smoke_worker",
            )


def check_batch(
    context: Context,
    request: BatchRequest,
    owner: str,
    based_on: Sequence[Base | None] | None = None,
) -> Checked:
    """Check all that the wire model cannot know. `based_on`: the base of each idea, if it is
    known, instead of what the request names.

    Raises:
        InvalidInput: the environment, profile, executor, base or a client key is wrong.
        Unavailable: the object store cannot be written.
    """
    environment = known_environment(context, request.environment)
    environment.profile(request.profile)
    if based_on is None:
        default = bases.resolve(context, environment, request.base, owner)
        based_on = bases.resolve_all(context, environment, request.ideas, owner, default)
    if request.executor != NO_MODEL:
        check_models(context, request.executor)
        check_cap(context, request.executor, owner, request.options)
        check_smoke(context, environment, request, request.options, based_on)
    check_client_keys(request.ideas)
    _check_confirmed(context, request, environment, owner)
    _check_given(context, request, environment)
    context.check_store()
    return Checked(environment, based_on)


def _check_confirmed(
    context: Context, request: BatchRequest, environment: Environment, owner: str
) -> None:
    """Refuse to confirm what is not the owner's, has no result, or was made on other terms; and
    a batch that confirms some of its ideas and implements others."""
    confirms = [idea.confirms is not None for idea in request.ideas]
    if not any(confirms):
        return
    if not all(confirms):
        raise InvalidInput.field(
            f"/ideas/{confirms.index(False)}/confirms",
            "the other ideas confirm experiments, which is measured on another split; submit this "
            "one in a batch of its own",
            "not_confirmable",
        )
    with context.db.read() as session:
        for place, idea in enumerate(request.ideas):
            row = session.get(schema.Experiment, idea.confirms)
            batch = None if row is None else session.get(schema.Batch, row.batch_id)
            if row is None or batch is None or batch.owner != owner:
                wrong = "there is no such experiment"
            elif row.state != ExperimentState.SUCCEEDED.value:
                wrong = f"only a result can be confirmed, and this experiment is {row.state}"
            elif batch.kind != MeasurementKind.SCORE.value:
                idea_of = get(session, schema.Idea, row.idea_id, "idea")
                original = idea_of.confirms or idea_of.reproduces
                wrong = f"it was measured as a {batch.kind}; confirm {original} instead"
            elif (batch.environment_id, batch.profile) != (environment.id, request.profile):
                wrong = f"it was measured in {batch.environment_id}, profile {batch.profile}"
            elif (batch.executor, batch.ideator) != (request.executor, request.ideator):
                # They decide which isolation its code needs.
                wrong = (
                    f"it was made with executor {batch.executor!r} and ideator "
                    f"{batch.ideator!r}; name the same ones"
                )
            else:
                continue
            raise InvalidInput.field(f"/ideas/{place}/confirms", wrong, "not_confirmable")
        _check_fresh(session, request)


def _check_fresh(session: Session, request: BatchRequest) -> None:
    """Refuse to confirm on chosen seeds: they may be those on which a result was lucky."""
    rows = [session.get(schema.Experiment, idea.confirms) for idea in request.ideas]
    seeds = sorted(set(request.options.seeds))
    fresh = fresh_seeds_for([row for row in rows if row], len(seeds))
    if seeds != fresh:
        raise InvalidInput.field(
            "/options/seeds",
            f"these ideas are confirmed on the seeds {fresh[0]} to {fresh[-1]}, which follow from "
            "them and their number; POST /v1/experiments/{id}/confirm chooses them",
            "not_confirmable",
        )


def _check_given(context: Context, request: BatchRequest, environment: Environment) -> None:
    """Refuse codebases that cannot be measured as they are, and ideas without one where no model
    is asked."""
    for place, idea in enumerate(request.ideas):
        where = f"/ideas/{place}/codebase"
        if idea.codebase is None:
            if request.executor == NO_MODEL and idea.confirms is None:
                raise InvalidInput.field(
                    where,
                    f"executor {NO_MODEL!r} writes no code: name the codebase to measure, or "
                    "choose an executor that implements the text",
                    "codebase_missing",
                )
        elif idea.confirms is not None:
            raise InvalidInput.field(
                where, "`confirms` names a codebase already; leave one of them out"
            )
        elif request.executor != NO_MODEL:
            raise InvalidInput.field(
                where,
                f"a codebase is measured as it is, so nobody implements it: set `executor` to "
                f"{NO_MODEL!r}, and put ideas for {request.executor} into a batch of their own",
                "executor_not_none",
            )
    given = [(idea.codebase, n) for n, idea in enumerate(request.ideas) if idea.codebase]
    places = {codebase: f"/ideas/{n}/codebase" for codebase, n in given}
    codebases.check_given(context, environment, places)


def check_placement(context: Context, request: BatchRequest, checked: Checked) -> None:
    """Refuse what no worker could run. Without any worker nothing is refused: one may come.

    Raises:
        InvalidInput: the conditions are unknown, or no worker that fits isolates code.
        Unavailable: there are workers, and none fits the profile.
    """
    environment, base = checked
    with context.db.read() as session:
        try:
            conditions.choose(
                session,
                environment.id,
                environment.manifest,
                request.profile,
                request.hardware_class,
                request.conditions,
                isolated=wants_isolation(session, request, environment, base),
            )
        except Unavailable:
            active = select(schema.Worker.id).where(
                schema.Worker.state == WorkerState.ACTIVE.value
            )
            if session.scalars(active.limit(1)).first() is not None:
                raise


def wants_isolation(
    session: Session,
    request: BatchRequest,
    environment: Environment,
    based_on: Sequence[Base | None],
) -> bool:
    """Whether code of the batch may be started in isolation alone."""
    is_own = all(idea.codebase == environment.codebase_hash for idea in request.ideas)
    return needs_sandbox(
        session,
        None if is_own else request.executor,
        None if is_own else request.ideator,
        based_on,
        allow_unisolated=request.options.allow_unisolated,
    )


def check_client_keys(ideas: Sequence[IdeaRequest]) -> None:
    """Refuse ideas of which two have the same key. Raises InvalidInput that names the field."""
    keys = Counter(idea.client_key for idea in ideas if idea.client_key is not None)
    doubled = [key for key, n in keys.items() if n > 1]
    if doubled:
        places = [i for i, idea in enumerate(ideas) if idea.client_key == doubled[0]]
        raise InvalidInput.field(
            f"/ideas/{places[1]}/client_key",
            f"{doubled[0]!r} is already used by idea {places[0]}; keys are unique in a batch",
            "duplicate_client_key",
        )


def check_epoch(request: EpochRequest) -> None:
    """Refuse ideas that no epoch can hold. Raises InvalidInput that names the field."""
    check_client_keys(request.ideas)
    for place, idea in enumerate(request.ideas):
        if idea.confirms is not None:
            raise InvalidInput.field(
                f"/ideas/{place}/confirms",
                "an epoch holds new ideas; submit confirmations as a batch of their own",
                "not_confirmable",
            )
    size = bytes_of(request.ideas)
    if size > MAX_EPOCH_BYTES:
        raise InvalidInput.field(
            "/ideas",
            f"they take {size} bytes as JSON, and an epoch holds {MAX_EPOCH_BYTES}; shorten "
            "`thinking` or leave it out, or start a search with a smaller `batch_size`",
            "epoch_too_large",
        )


def check_search(
    context: Context, session: Session, search_id: str | None, owner: str, executor: str
) -> None:
    """Refuse a batch of a search that is not the owner's, or whose cap it could not keep.

    Raises InvalidInput.
    """
    if search_id is None:
        return
    search = session.get(schema.Search, search_id)
    if search is None or search.owner != owner:
        message = f"there is no search {search_id!r}"
        raise InvalidInput.field("/search", message, "unknown_search")
    spending = caps.spending_of(search)
    for cap in (spending.max_cost_usd, spending.max_executor_cost_usd):
        _check_priced(context, "/executor", executor, owner, {"/search": cap})


def register(context: Context, environment: Environment) -> str:
    """Store the environment so that workers can fetch it. Returns its id."""
    return environments.register(context.db, context.store, environment)
