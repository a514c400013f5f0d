"""The batch that measures the codebases of results again, on seeds that selected none of them.

`POST /v1/experiments/{id}/confirm` asks here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy.orm import Session

from assay.contracts.batch import (
    MAX_BASES,
    BatchOptions,
    BatchRequest,
    ConfirmRequest,
    IdeaRequest,
)
from assay.domain.errors import InvalidInput
from assay.domain.seeds import fresh_seeds
from assay.storage import caps, conditions, schema
from assay.storage.bases import base_of, distinct
from assay.storage.rows import get


def fresh_seeds_for(rows: Sequence[schema.Experiment], number: int) -> list[int]:
    """Return as many seeds as these experiments are confirmed on together."""
    return fresh_seeds([row.codebase_id or row.id for row in rows], number)


def confirmation(
    session: Session, rows: Sequence[schema.Experiment], request: ConfirmRequest
) -> BatchRequest:
    """Return the batch that confirms these experiments together; `submit` adds their own bases.

    Raises:
        InvalidInput: one is named twice, or they differ in environment, profile, conditions or
            models, or have too many bases.
    """
    doubled = [id_ for id_, times in Counter(row.id for row in rows).items() if times > 1]
    if doubled:
        raise InvalidInput.field(
            "/beside", f"{doubled[0]} is named twice; name each experiment once", "not_confirmable"
        )
    batches = [get(session, schema.Batch, row.batch_id, "batch") for row in rows]
    terms = {
        (
            b.environment_id,
            b.profile,
            conditions.of_batch(session, b).id,
            b.executor,
            b.ideator,
        )
        for b in batches
    }
    if len(terms) > 1:
        raise InvalidInput.field(
            "/beside",
            "the experiments differ in environment, profile, conditions or models; confirm those "
            "of each in a batch of their own",
            "not_confirmable",
        )
    first = batches[0]
    options = caps.options_of(first)
    ideas = [get(session, schema.Idea, row.idea_id, "idea") for row in rows]
    if request.base is None and len(distinct(map(base_of, ideas))) > MAX_BASES:
        raise InvalidInput.field(
            "/beside",
            f"the experiments have more than {MAX_BASES} bases, each of which is measured beside "
            "them; confirm them in several batches",
            "not_confirmable",
        )
    return BatchRequest(
        environment=first.environment_id,
        profile=first.profile,
        hardware_class=first.hardware_class,
        conditions=first.conditions_id or None,
        executor=first.executor,
        ideator=first.ideator,
        ideas=[
            IdeaRequest(text=idea.text, parents=[row.id], confirms=row.id)
            for row, idea in zip(rows, ideas, strict=True)
        ],
        search=request.search,
        base=request.base,
        options=BatchOptions(
            seeds=fresh_seeds_for(rows, request.seeds),
            novelty="allow",
            priority=options.priority,
            allow_unisolated=options.allow_unisolated,
        ),
    )
