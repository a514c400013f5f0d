"""Bases: codebases other than the environment's own that ideas change, and their names.

A name is given to a confirmed result (`Promotion`). It belongs to one version of an environment,
and to all owners of the service. Ideas and searches store the codebase that was meant when they
were submitted, so a later promotion changes none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from assay.domain.isolation import needs_isolation
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.rows import among, run

#: Ids of experiments begin so, and promoted names do not.
EXPERIMENT = "exp_"


@dataclass(frozen=True)
class Base:
    """A codebase that ideas change, and what it was asked for as: a name or an experiment."""

    codebase: str
    name: str | None = None


def base_of(row: schema.Idea | schema.Search) -> Base | None:
    """Return the base of an idea or search; None for the environment's own code."""
    return None if row.base_id is None else Base(row.base_id, row.base)


def distinct(bases: Iterable[Base | None]) -> list[Base]:
    """Return the first base of each codebase, in order."""
    found: dict[str, Base] = {}
    for base in bases:
        if base is not None:
            found.setdefault(base.codebase, base)
    return list(found.values())


def of_batch(session: Session, batch_id: str) -> list[Base]:
    """Return the distinct bases of a batch's ideas, in the order of the ideas."""
    return of_batches(session, [batch_id])[batch_id]


_IDEA = schema.Idea
_OF_BATCHES = (
    select(_IDEA.batch_id, _IDEA.base_id, _IDEA.base)
    .where(among(_IDEA.batch_id), _IDEA.base_id.is_not(None))
    .group_by(_IDEA.batch_id, _IDEA.base_id, _IDEA.base)
    .order_by(func.min(_IDEA.position))
)


def of_batches(session: Session, batch_ids: Sequence[str]) -> dict[str, list[Base]]:
    """Return the distinct bases of each batch's ideas, in the order of the ideas."""
    rows = run(session, _OF_BATCHES, ids=list(batch_ids))
    found: dict[str, list[Base]] = {batch_id: [] for batch_id in batch_ids}
    for batch_id, codebase, name in rows:
        if codebase is not None:
            found[batch_id].append(Base(codebase, name))
    return {batch_id: distinct(of) for batch_id, of in found.items()}


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
    """Every environment's bases, as pairs of their ids: promoted, or of an idea or search."""
    promotion, batch, search = schema.Promotion, schema.Batch, schema.Search
    idea = schema.Idea
    promoted = select(promotion.environment_id, promotion.codebase_id)
    of_searches = select(search.environment_id, search.base_id)
    of_ideas = select(batch.environment_id, idea.base_id).join(idea, idea.batch_id == batch.id)
    rows = [
        *session.execute(promoted.distinct()),
        *session.execute(of_searches.where(search.base_id.is_not(None)).distinct()),
        *session.execute(of_ideas.where(idea.base_id.is_not(None)).distinct()),
    ]
    return {(environment, codebase) for environment, codebase in rows if codebase is not None}


def needs_sandbox(
    session: Session,
    executor: str | None,
    ideator: str | None,
    bases: Iterable[Base | None],
    *,
    allow_unisolated: bool,
) -> bool:
    """Whether code that is made from any of these bases may be started in isolation alone.

    `executor`: None if there is none but the environment's own code to run. A base is None for
    the environment's own code. A codebase holds what it was made from, so it needs isolation if a
    model wrote, or somebody uploaded, anything in its lineage.
    """
    if executor and needs_isolation(executor, ideator, allow_unisolated=allow_unisolated):
        return True
    if allow_unisolated:
        return False
    return any(is_untrusted(session, base.codebase) for base in distinct(bases))


def is_untrusted(session: Session, codebase: str) -> bool:
    """Whether a model wrote part of a codebase, or it was uploaded, as far as is on record."""
    batch, experiment, idea = schema.Batch, schema.Experiment, schema.Idea
    waiting, seen = {codebase}, set[str]()
    while waiting:
        one = waiting.pop()
        seen.add(one)
        makers = session.execute(
            select(batch.executor, batch.ideator, idea.base_id)
            .join(experiment, experiment.batch_id == batch.id)
            .join(idea, idea.id == experiment.idea_id)
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
