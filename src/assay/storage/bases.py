"""Bases: codebases other than the environment's own that ideas change, and their names.

A name is given to a confirmed result (`Promotion`). It belongs to one version of an environment,
and to all owners of the service. Batches and searches store the codebase that was meant when they
were submitted, so a later promotion changes none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.domain.isolation import needs_isolation
from assay.storage import schema
from assay.storage.database import Database


@dataclass(frozen=True)
class Base:
    """A codebase that ideas change, and what it was asked for as: a name or an experiment."""

    codebase: str
    name: str | None = None


def base_of(row: schema.Batch | schema.Search) -> Base | None:
    """The base of a batch or search; None if its ideas change the environment's own code."""
    return None if row.base_id is None else Base(row.base_id, row.base)


def holder(session: Session, environment_id: str, name: str) -> schema.Promotion | None:
    """The promotion that a name stands for; None if nothing was promoted under it."""
    table = schema.Promotion
    return session.scalars(
        select(table)
        .where(table.environment_id == environment_id, table.name == name)
        .order_by(table.number.desc())
        .limit(1)
    ).first()


def history(session: Session, environment_id: str) -> Sequence[schema.Promotion]:
    """All promotions of a version of an environment: by name, the latest of each first."""
    table = schema.Promotion
    return session.scalars(
        select(table)
        .where(table.environment_id == environment_id)
        .order_by(table.name, table.number.desc())
    ).all()


def hold_names(session: Session, environment_id: str) -> None:
    """Keep other promotions in an environment waiting until the commit."""
    session.get_one(schema.Environment, environment_id, with_for_update={"key_share": True})


def promote(
    db: Database,
    session: Session,
    experiment: schema.Experiment,
    batch: schema.Batch,
    confirmation_id: str,
    name: str,
) -> schema.Promotion:
    """Give a name to the codebase of an experiment. `hold_names` comes first."""
    assert experiment.codebase_id is not None
    before = holder(session, batch.environment_id, name)
    row = schema.Promotion(
        environment_id=batch.environment_id,
        name=name,
        number=1 if before is None else before.number + 1,
        codebase_id=experiment.codebase_id,
        experiment_id=experiment.id,
        confirmation_id=confirmation_id,
        owner=batch.owner,
        created_at=db.now(session),
    )
    session.add(row)
    session.flush()
    return row


def all_bases(session: Session) -> set[tuple[str, str]]:
    """Every environment's bases, as pairs of their ids: promoted, or of a batch or search."""
    promotion, batch, search = schema.Promotion, schema.Batch, schema.Search
    promoted = select(promotion.environment_id, promotion.codebase_id).distinct()
    found = {(environment, codebase) for environment, codebase in session.execute(promoted)}
    for table in (batch, search):
        named = select(table.environment_id, table.base_id).where(table.base_id.is_not(None))
        rows = session.execute(named.distinct())
        found |= {(environment, base) for environment, base in rows if base is not None}
    return found


def needs_sandbox(
    session: Session,
    executor: str | None,
    ideator: str | None,
    base: str | None,
    *,
    allow_unisolated: bool,
) -> bool:
    """Whether code that is made from a base may be started in isolation alone.

    `executor`: None if there is none but the environment's own code to run. `base`: its codebase;
    None for the environment's own. A codebase holds what it was made from, so it needs isolation
    if a model wrote, or somebody uploaded, anything in its lineage.
    """
    if executor and needs_isolation(executor, ideator, allow_unisolated=allow_unisolated):
        return True
    return base is not None and not allow_unisolated and is_untrusted(session, base)


def is_untrusted(session: Session, codebase: str) -> bool:
    """Whether a model wrote part of a codebase, or it was uploaded, as far as is on record."""
    batch, experiment = schema.Batch, schema.Experiment
    waiting, seen = {codebase}, set[str]()
    while waiting:
        one = waiting.pop()
        seen.add(one)
        makers = session.execute(
            select(batch.executor, batch.ideator, batch.base_id)
            .join(experiment, experiment.batch_id == batch.id)
            .where(experiment.codebase_id == one)
            .distinct()
        ).all()
        if not makers:
            return True
        for executor, ideator, base in makers:
            if needs_isolation(executor, ideator, allow_unisolated=False):
                return True
            if base is not None and base not in seen:
                waiting.add(base)
    return False
