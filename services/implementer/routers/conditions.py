"""Conditions: what decides which results may be compared, and which are taken for equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import Name, Page
from assay.contracts.conditions import (
    ConditionsBody,
    EquivalenceBody,
    EquivalenceRequest,
    SeparationRequest,
)
from assay.domain.conditions import differences
from assay.domain.states import WorkerState
from assay.storage import conditions, equivalences, schema
from assay.storage.rows import get
from services.implementer import submission
from services.implementer.dependencies import (
    ContextDep,
    NamePath,
    OwnerDep,
    PageDep,
    get_administrator,
    get_owner,
)
from services.implementer.paging import after, page_of

router = APIRouter(tags=["conditions"], dependencies=[Depends(get_owner)])


@router.get("/conditions")
def list_(context: ContextDep, page: PageDep) -> Page[ConditionsBody]:
    """Recorded conditions, in the order of their ids."""
    table = schema.ConditionSet
    last = after(page, {})
    with context.db.read() as session:
        query = select(table).order_by(table.id)
        if last is not None:
            query = query.where(table.id > str(last))
        rows = session.scalars(query.limit(page.limit + 1)).all()
        live = session.scalars(
            select(schema.Worker).where(schema.Worker.state == WorkerState.ACTIVE.value)
        ).all()
    return page_of(rows, page, {}, lambda row: row.id, lambda row: _conditions_body(row, live))


def _conditions_body(row: schema.ConditionSet, live: Sequence[schema.Worker]) -> ConditionsBody:
    names = []
    for worker in live:
        # An environment may declare packages, which are facts under their own names.
        own = conditions.facts_of(worker).all
        packages = tuple(name for name in row.facts if name not in own)
        facts = conditions.facts_of(worker, packages).all
        if all(facts.get(name) == told for name, told in row.facts.items()):
            names.append(worker.name)
    return ConditionsBody(
        id=row.id,
        hardware_class=row.hardware_class,
        facts=row.facts,
        workers=sorted(names),
        created_at=row.created_at,
    )


@router.get("/environments/{name}/conditions")
def known(
    name: NamePath,
    context: ContextDep,
    profile: Annotated[Name, Query(description="A profile of the environment.")],
) -> Page[EquivalenceBody]:
    """What is known of the conditions of hosts, for an environment and profile."""
    environment = context.environments.get(name)
    environment.profile(profile)
    with context.db.read() as session:
        rows = equivalences.of_setting(session, environment.id, profile).rows
        bodies = [_equivalence_body(session, rows[id_]) for id_ in sorted(rows)]
    return Page(data=bodies)


@router.post(
    "/environments/{name}/conditions", status_code=201, dependencies=[Depends(get_administrator)]
)
def equate(
    name: NamePath, request: EquivalenceRequest, context: ContextDep, owner: OwnerDep
) -> EquivalenceBody:
    """Take conditions for equal to others: their baselines are one, and ideas are shared."""
    environment = context.environments.get(name)
    environment.profile(request.profile)
    environment_id = submission.register(context, environment)
    with context.write() as session:
        row = equivalences.declare(
            session,
            get(session, schema.Environment, environment_id, "environment"),
            request.profile,
            environment.manifest.metric.direction,
            [request.conditions, request.equals],
            owner,
            context.db.now(session),
            despite_difference=request.despite_difference,
        )
        return _equivalence_body(session, row)


@router.post("/environments/{name}/conditions/separate", dependencies=[Depends(get_administrator)])
def separate(name: NamePath, request: SeparationRequest, context: ContextDep) -> EquivalenceBody:
    """Take back that conditions were declared equal; returns what was declared.

    Results that were measured in between stay with those of the other conditions.
    """
    environment = context.environments.get(name)
    environment.profile(request.profile)
    with context.write() as session:
        row = equivalences.withdraw(session, environment.id, request.profile, request.conditions)
        return _equivalence_body(session, row)


def _equivalence_body(session: Session, row: schema.Equivalence) -> EquivalenceBody:
    facts = conditions.facts_by_id(session, [row.conditions_id, row.equals_id])
    mine, theirs = facts.get(row.conditions_id, {}), facts.get(row.equals_id, {})
    found = differences(mine, theirs)
    if theirs.items() <= mine.items():  # a host beside what it shares with others
        found = [f"{name}: {told}" for name, told in mine.items() if name not in theirs]
    return EquivalenceBody(
        environment=row.environment_id,
        profile=row.profile,
        conditions=row.conditions_id,
        equals=row.equals_id,
        state=row.state,
        differences=found,
        evidence=row.evidence,
        declared_by=row.declared_by,
        created_at=row.created_at,
        decided_at=row.decided_at,
    )
