"""Environments: list, read, codebase, baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from assay.contracts.base import (
    ItemsOrNone,
    Name,
    Named,
    Page,
    Request,
    Seed,
    ShortName,
    Storable,
)
from assay.contracts.bases import PromotionBody
from assay.contracts.environment import (
    BaselineBody,
    CodebaseFiles,
    EnvironmentBody,
    PriorBody,
)
from assay.domain.conditions import Conditions
from assay.environments.catalog import Environment
from assay.patching.guard import MAX_FILES
from assay.storage import baselines, batches, conditions, fits, schema
from assay.storage.environments import get_codebase
from assay.storage.measurements import Terms
from assay.storage.rows import get
from services.implementer import bases, codebases, submission
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, IdQuery, NamePath, OwnerDep, get_owner
from services.implementer.views.environments import baseline_body, environment_bodies
from services.implementer.views.verdicts import prior_body

router = APIRouter(tags=["environments"], dependencies=[Depends(get_owner)])
#: Of a file's name, and of its content, at most; the guard's bounds are narrower.
MAX_NAME, MAX_FILE_CHARACTERS = 1_000, 16 << 20


class BaselineRequest(Request):
    """Measure the unmodified codebase on these seeds; those already measured are kept."""

    profile: Name
    seeds: ItemsOrNone[Seed] = Field(
        None,
        min_length=1,
        max_length=64,
        description="If null, as many as `baseline_seeds` of the profile says, from 0.",
    )
    hardware_class: ShortName | None = None
    conditions: ShortName | None = Field(None, description="In place of those chosen.")
    again: bool = Field(
        False, description="Measure seeds again on which the codebase failed. Results stay."
    )


@router.get("/environments")
def list_(context: ContextDep) -> Page[EnvironmentBody]:
    """The environments this service knows."""
    found = list(context.environments.all())
    with context.db.read() as session:
        return Page(data=environment_bodies(session, found))


@router.get("/environments/{name}")
def read(name: NamePath, context: ContextDep) -> EnvironmentBody:
    """A research problem: statement, metric, profiles."""
    environment = context.environments.get(name)
    with context.db.read() as session:
        return environment_bodies(session, [environment])[0]


@router.get("/environments/{name}/codebase")
def codebase(
    name: NamePath,
    context: ContextDep,
    owner: OwnerDep,
    base: Annotated[
        ShortName | None,
        Query(description="A base, as a batch names it; by default the baseline."),
    ] = None,
) -> CodebaseFiles:
    """The baseline codebase, or a base: everything an idea may read and change."""
    environment = context.environments.get(name)
    found = bases.resolve(context, environment, base, owner, where="base")
    if found is None:
        return _codebase_body(environment, environment.codebase_hash, environment.codebase)
    files = get_codebase(context.store, found.codebase)
    return _codebase_body(environment, found.codebase, files)


@router.get("/environments/{name}/bases")
def list_bases(name: NamePath, context: ContextDep, owner: OwnerDep) -> Page[PromotionBody]:
    """What was promoted in this version of an environment: by name, the latest of each first."""
    environment = context.environments.get(name)
    with context.db.read() as session:
        return Page(data=bases.promotion_bodies(session, environment.id, owner))


class CodebaseRequest(Request):
    """Text files, by their names in the codebase."""

    files: Annotated[
        dict[
            Annotated[str, Field(min_length=1, max_length=MAX_NAME), Storable()],
            Annotated[str, Field(max_length=MAX_FILE_CHARACTERS), Storable()],
        ],
        Named(MAX_FILES),
    ] = Field(
        description="All of them: what is left out is not there. Together at most 256 KiB more "
        "than the environment's own, whose protected files are unchanged.",
    )


@router.post(
    "/environments/{name}/codebases",
    status_code=201,
    response_model=CodebaseFiles,
    responses={200: {"description": "The same files are there already.", "model": CodebaseFiles}},
)
def upload_codebase(name: NamePath, request: CodebaseRequest, context: ContextDep) -> Response:
    """Store a codebase, so that an idea can name it as its `codebase`.

    One that no idea names is removed after a while; send it again then.
    """
    environment = context.environments.get(name)
    stored = codebases.upload(context, environment, request.files)
    body = _codebase_body(environment, stored.sha256, request.files)
    return JSONResponse(body.wire(), 201 if stored.is_new else 200)


@router.get("/environments/{name}/baseline")
def baseline(
    name: NamePath,
    context: ContextDep,
    profile: Annotated[Name, Query(description="A profile of the environment.")],
    hardware_class: IdQuery = None,
    conditions: IdQuery = None,
) -> BaselineBody:
    """The baseline as measured on this service."""
    environment = context.environments.get(name)
    environment.profile(profile)
    submission.register(context, environment)
    with context.db.read() as session:
        on = _choose(session, environment, profile, hardware_class, conditions)
        return _body(session, environment, profile, on)


@router.post("/environments/{name}/baseline", status_code=202)
def measure_baseline(
    name: NamePath, request: BaselineRequest, context: ContextDep, owner: OwnerDep
) -> BaselineBody:
    """Ask for the baseline on some seeds; it is there when `pending` is 0."""
    environment = context.environments.get(name)
    profile = environment.profile(request.profile)
    context.check_store()
    environment_id = submission.register(context, environment)
    on = _conditions(context, environment, request)
    with context.write() as session:
        batches.request_baseline(
            context.db,
            session,
            get(session, schema.Environment, environment_id, "environment"),
            request.profile,
            on,
            sorted(set(request.seeds or range(baselines.seeds_wanted(profile)))),
            Terms(owner, context.db.now(session), needs_isolation=False, again=request.again),
        )
        return _body(session, environment, request.profile, on)


class FitRequest(Request):
    """Fit what verdicts presume to what has been measured until now."""

    profile: Name
    hardware_class: ShortName | None = None
    conditions: ShortName | None = Field(None, description="In place of those chosen.")


@router.get("/environments/{name}/fit")
def fit(
    name: NamePath,
    context: ContextDep,
    profile: Annotated[Name, Query(description="A profile of the environment.")],
    hardware_class: IdQuery = None,
    conditions: IdQuery = None,
) -> PriorBody:
    """What verdicts presume of this environment's codebases."""
    environment = context.environments.get(name)
    environment.profile(profile)
    with context.db.read() as session:
        on = _choose(session, environment, profile, hardware_class, conditions)
        return prior_body(fits.latest(session, environment.id, profile, on))


@router.post("/environments/{name}/fit", status_code=201)
def refit(name: NamePath, request: FitRequest, context: ContextDep, owner: OwnerDep) -> PriorBody:
    """Fit it anew. All verdicts of the environment, profile and conditions change with it."""
    environment = context.environments.get(name)
    environment.profile(request.profile)
    environment_id = submission.register(context, environment)
    on = _conditions(context, environment, request)
    with context.write() as session:
        row = get(session, schema.Environment, environment_id, "environment")
        return prior_body(fits.refit(context.db, session, row, request.profile, on, owner))


def _codebase_body(
    environment: Environment, sha256: str, files: Mapping[str, str]
) -> CodebaseFiles:
    return CodebaseFiles(id=sha256, environment=environment.id, files=dict(files))


def _conditions(
    context: Context, environment: Environment, request: BaselineRequest | FitRequest
) -> Conditions:
    with context.db.read() as session:
        return _choose(
            session, environment, request.profile, request.hardware_class, request.conditions
        )


def _choose(
    session: Session,
    environment: Environment,
    profile: str,
    hardware_class: str | None,
    named: str | None,
) -> Conditions:
    return conditions.choose(
        session, environment.id, environment.manifest, profile, hardware_class, named
    )


def _body(
    session: Session, environment: Environment, profile: str, on: Conditions
) -> BaselineBody:
    row = get(session, schema.Environment, environment.id, "environment")
    metric = environment.manifest.metric.name
    return baseline_body(session, row, metric, profile, on)
