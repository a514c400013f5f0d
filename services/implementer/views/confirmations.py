"""What confirmations say of results: what may be claimed, and the gap.

The first confirmation of a codebase against a base decides. Otherwise a claim could be tried on
other seeds until one supports it. One on the same seeds, such as a retry, is the same
confirmation.

The routers show experiments through `experiment_bodies`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session, aliased

from assay.contracts.batch import BaseBody, ConfirmationBody, ExperimentBody
from assay.domain.metrics import mean
from assay.domain.rounding import shown
from assay.domain.states import ExperimentState, MeasurementKind
from assay.domain.verdicts import Verdict, claimed
from assay.storage import schema
from services.implementer.views.experiments import Relative, plain_bodies

CONFIRM = MeasurementKind.CONFIRM.value
#: Verdicts that are not final, or say nothing.
_UNDECIDED = (Verdict.PROVISIONAL.value, Verdict.NOT_COMPARABLE.value)


def experiment_bodies(session: Session, rows: Sequence[schema.Experiment]) -> list[ExperimentBody]:
    """Experiments with their results, what their confirmation says, and their tags and note."""
    plain = plain_bodies(session, rows)
    confirming = _Confirming.of(
        session,
        {
            *(each.batch_id for found in plain.confirming.values() for each in found),
            *(id_ for id_, batch in plain.batches.items() if batch.kind == CONFIRM),
        },
    )
    for body in plain.bodies:
        body.claimed = confirming.claims.get(body.id)
        body.confirmation = _confirmation(body, plain.confirming.get(body.id, ()), confirming)
    return plain.bodies


def gaps(session: Session, environment_id: str, profile: str, limit: int) -> list[float]:
    """By how much more the results that were confirmed together improved on the split that search
    sees, on average, oldest batch first. In a batch their order says nothing about time.

    Of the latest `limit` batches that confirm something.
    """
    batch = schema.Batch
    ids = session.scalars(
        select(batch.id)
        .where(
            batch.environment_id == environment_id,
            batch.profile == profile,
            batch.kind == CONFIRM,
            batch.finished_at.is_not(None),
        )
        .order_by(batch.id.desc())
        .limit(limit)
    ).all()
    if not ids:
        return []
    confirming = _Confirming.of(session, ids)
    table = schema.Experiment
    named = [body.idea.confirms for body in confirming.bodies.values()]
    originals = session.scalars(select(table).where(table.id.in_(named))).all()
    bodies = {body.id: body for body in plain_bodies(session, originals).bodies}
    ordered = sorted(confirming.bodies.values(), key=lambda body: (body.batch, body.position))
    by_batch: dict[str, list[float]] = defaultdict(list)
    for body in ordered:
        original = bodies.get(body.idea.confirms or "")
        gap = None if original is None else _gap(original, body)
        if gap is not None:
            by_batch[body.batch].append(gap)
    return [mean(each) for each in by_batch.values()]


@dataclass(frozen=True)
class _Confirming:
    """Experiments that confirm others, by id, and which of them support a claim. `later`: those
    on other seeds than the first confirmation of their codebase."""

    bodies: Mapping[str, ExperimentBody]
    claims: Mapping[str, bool]
    later: Collection[str]

    @classmethod
    def of(cls, session: Session, batch_ids: Collection[str]) -> _Confirming:
        """Those of these batches, which all confirm something."""
        if not batch_ids:  # as for most experiments
            return cls({}, {}, ())
        table = schema.Experiment
        rows = session.scalars(
            select(table)
            .where(table.batch_id.in_(batch_ids))
            .order_by(table.batch_id, table.position)
        ).all()
        bodies = plain_bodies(session, rows).bodies
        by_batch: dict[str, list[ExperimentBody]] = defaultdict(list)
        for body in bodies:
            by_batch[body.batch].append(body)
        later, families = _later(session, rows), _families(session, rows)
        claims = {
            id_: is_claimed
            for group in by_batch.values()
            for id_, is_claimed in _claims(group, later, families).items()
        }
        return cls({body.id: body for body in bodies}, claims, later)


def _later(session: Session, rows: Sequence[schema.Experiment]) -> set[str]:
    """Those of the experiments that confirm a codebase on other seeds than the first that did."""
    table, batch, link = schema.Experiment, schema.Batch, schema.ExperimentMeasurement
    idea = schema.Idea
    # One that was cancelled counts if some seed was seen: it may have been cancelled for that.
    has_result = (
        select(schema.Result.measurement_id)
        .join(link, link.measurement_id == schema.Result.measurement_id)
        .where(link.experiment_id == table.id)
        .exists()
    )
    found = session.execute(
        select(
            table.id,
            batch.owner,
            batch.environment_id,
            batch.profile,
            table.codebase_id,
            idea.base_id,
            batch.options["seeds"].as_json(),
        )
        .join(batch, batch.id == table.batch_id)
        .join(idea, idea.id == table.idea_id)
        .where(
            table.codebase_id.in_({row.codebase_id for row in rows if row.codebase_id}),
            or_(table.state != ExperimentState.CANCELLED.value, has_result),
            batch.kind == CONFIRM,
        )
        .order_by(table.id)
    )
    first: dict[tuple[str | None, ...], list[int]] = {}
    later = set()
    for id_, *of, seeds in found:
        if first.setdefault(tuple(of), seeds) != seeds:
            later.add(id_)
    return later & {row.id for row in rows}


def _families(session: Session, rows: Sequence[schema.Experiment]) -> dict[str, int]:
    """For each that retries a failed confirmation: how many were confirmed together with that."""
    idea, table, one = schema.Idea, schema.Experiment, aliased(schema.Experiment)
    found = session.execute(
        select(idea.id, func.count(one.id))
        .join(table, table.id == idea.retries)
        .join(one, one.batch_id == table.batch_id)
        .where(idea.id.in_([row.idea_id for row in rows]))
        .group_by(idea.id)
    ).all()
    of_ideas = dict(found)
    return {row.id: of_ideas[row.idea_id] for row in rows if row.idea_id in of_ideas}


def _claims(
    group: Sequence[ExperimentBody], later: Collection[str], families: Mapping[str, int]
) -> dict[str, bool]:
    """Which experiments of a batch support a claim; nothing before all of them are decided.

    What failed, or was looked at before, counts among those that were tried. A retry is a batch of
    its own: its p is multiplied by the number of those that were confirmed with the failed one.
    """
    comparisons = [body.comparison for body in group]
    is_open = not all(body.is_terminal for body in group)
    if is_open or any(c and c.verdict == Verdict.PROVISIONAL.value for c in comparisons):
        return {}
    tried = [
        (None, 0.0)
        if c is None or c.p is None or c.exploratory or body.id in later
        else (min(1.0, c.p * families.get(body.id, 1)), c.effect)
        for body, c in zip(group, comparisons, strict=True)
    ]
    return dict(zip((body.id for body in group), claimed(tried), strict=True))


def _confirmation(
    body: ExperimentBody, rows: Sequence[Relative], confirming: _Confirming
) -> ConfirmationBody | None:
    """What the last of those on the first seeds says; one that was cancelled only if all were."""
    first = [row for row in rows if row.id not in confirming.later]
    kept = [row for row in first if row.state != ExperimentState.CANCELLED.value]
    if not first:
        return None
    found = confirming.bodies[(kept or first)[-1].id]
    return ConfirmationBody(
        experiment=found.id,
        batch=found.batch,
        state=found.state,
        metric_name=found.metric_name,
        metric=found.metric,
        comparison=found.comparison,
        base=found.base,
        against_baseline=found.against_baseline,
        claimed=confirming.claims.get(found.id),
        gap=_gap(body, found),
        repeated=len(rows) - len(first),
    )


def _gap(body: ExperimentBody, confirming: ExperimentBody) -> float | None:
    before, after = body.comparison, confirming.comparison
    if before is None or after is None:
        return None
    if _codebase(body.base) != _codebase(confirming.base):  # effects beside different codebases
        return None
    if before.verdict in _UNDECIDED or after.verdict in _UNDECIDED:
        return None
    return shown(before.effect - after.effect)


def _codebase(base: BaseBody | None) -> str | None:
    return None if base is None else base.codebase
