"""Environments: list, read, codebase, baseline."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from sqlalchemy.orm import Session

from assay.contracts.base import Items, Name, Page, Request, Seed, ShortName
from assay.contracts.environment import BaselineBody, CodebaseFiles, EnvironmentBody
from assay.environments.catalog import Environment
from assay.storage import batches, schema
from assay.storage.measurements import Terms
from assay.storage.rows import get
from services.implementer import submission
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, IdQuery, NamePath, OwnerDep, get_owner
from services.implementer.views.environments import baseline_body, environment_bodies

router = APIRouter(tags=["environments"], dependencies=[Depends(get_owner)])


class BaselineRequest(Request):
    """Measure the unmodified codebase on these seeds; those already measured are kept."""

    profile: Name
    seeds: Items[Seed] = Field([0, 1, 2, 3, 4], min_length=1, max_length=64)
    hardware_class: ShortName | None = None


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
def codebase(name: NamePath, context: ContextDep) -> CodebaseFiles:
    """The baseline codebase: everything an idea may read and change."""
    environment = context.environments.get(name)
    return CodebaseFiles(id=environment.codebase_hash, files=environment.codebase)


@router.get("/environments/{name}/baseline")
def baseline(
    name: NamePath,
    context: ContextDep,
    profile: Annotated[Name, Query(description="A profile of the environment.")],
    hardware_class: IdQuery = None,
) -> BaselineBody:
    """The baseline as measured on this service."""
    environment = context.environments.get(name)
    environment.profile(profile)
    submission.register(context, environment)
    with context.db.read() as session:
        chosen = submission.choose_hardware_class(session, environment, profile, hardware_class)
        return _body(session, environment, profile, chosen)


@router.post("/environments/{name}/baseline", status_code=202)
def measure_baseline(
    name: NamePath, request: BaselineRequest, context: ContextDep, owner: OwnerDep
) -> BaselineBody:
    """Ask for the baseline on some seeds; it is there when `pending` is 0."""
    environment = context.environments.get(name)
    environment.profile(request.profile)
    context.store.check()
    environment_id = submission.register(context, environment)
    hardware_class = _hardware_class(context, environment, request)
    with context.write() as session:
        batches.request_baseline(
            context.db,
            session,
            get(session, schema.Environment, environment_id, "environment"),
            request.profile,
            hardware_class,
            sorted(set(request.seeds)),
            Terms(owner, context.db.now(session), needs_isolation=False),
        )
        return _body(session, environment, request.profile, hardware_class)


def _hardware_class(context: Context, environment: Environment, request: BaselineRequest) -> str:
    with context.db.read() as session:
        return submission.choose_hardware_class(
            session, environment, request.profile, request.hardware_class
        )


def _body(
    session: Session, environment: Environment, profile: str, hardware_class: str
) -> BaselineBody:
    row = get(session, schema.Environment, environment.id, "environment")
    metric = environment.manifest.metric.name
    return baseline_body(session, row, metric, profile, hardware_class)
