"""Batches, experiments and searches as their owner may see them: another owner's do not exist."""

from __future__ import annotations

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


def owned_experiment(session: Session, experiment_id: str, owner: str) -> schema.Experiment:
    """An experiment of that owner. Raises NotFound, also for another owner's."""
    experiment = get(session, schema.Experiment, experiment_id, "experiment")
    if batch_of(session, experiment_id).owner != owner:
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
