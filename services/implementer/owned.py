"""Batches, experiments and searches as their owner may see them: another owner's do not exist."""

from __future__ import annotations

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from assay.domain.errors import NotFound
from assay.storage import schema
from assay.storage.rows import get


def owned_batch(session: Session, batch_id: str, owner: str) -> schema.Batch:
    """A batch of that owner. Raises NotFound, also for another owner's."""
    batch = get(session, schema.Batch, batch_id, "batch")
    if batch.owner != owner:
        raise NotFound(f"batch {batch_id!r} was not found")
    return batch


_EXPERIMENT = (
    select(schema.Experiment)
    .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
    .where(
        schema.Experiment.id == bindparam("experiment"), schema.Batch.owner == bindparam("owner")
    )
)


def owned_experiment(session: Session, experiment_id: str, owner: str) -> schema.Experiment:
    """An experiment of that owner. Raises NotFound, also for another owner's."""
    wanted = {"experiment": experiment_id, "owner": owner}
    experiment = session.scalars(_EXPERIMENT, wanted).one_or_none()
    if experiment is None:
        raise NotFound(f"experiment {experiment_id!r} was not found")
    return experiment


def owned_search(session: Session, search_id: str, owner: str) -> schema.Search:
    """A search of that owner. Raises NotFound, also for another owner's."""
    search = get(session, schema.Search, search_id, "search")
    if search.owner != owner:
        raise NotFound(f"search {search_id!r} was not found")
    return search


def batch_of(session: Session, experiment_id: str) -> schema.Batch:
    """The batch of an experiment that exists."""
    experiment = get(session, schema.Experiment, experiment_id, "experiment")
    return get(session, schema.Batch, experiment.batch_id, "batch")
