"""Reports over an owner's batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.base import ShortName
from assay.contracts.batch import Funnel, Usage
from assay.contracts.report import (
    Execution,
    ExecutionReport,
    ExecutionRow,
    FailureCount,
    MetricSummary,
    PerIdea,
    RepairCounts,
    Shares,
)
from assay.domain.errors import NotFound
from assay.domain.metrics import Direction
from assay.domain.rounding import Bits, shown, shown_or_none, whole
from assay.storage import disclosure, environments, funnel, schema
from assay.storage.funnel import Key, Line, Scope, Spent, Stages
from services.implementer.context import Context
from services.implementer.dependencies import MAX_PAGE, ContextDep, IdQuery, NameQuery, OwnerDep
from services.implementer.owned import owned_search
from services.implementer.views.calls import dollars

router = APIRouter(tags=["reports"])


def _only_a_day(value: object) -> object:
    # Pydantic would also take seconds since 1970 for a day.
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value) is None:
        raise ValueError("must be a day as YYYY-MM-DD")
    return value


Day = Annotated[date, BeforeValidator(_only_a_day)]
_CENTS = Decimal("0.000001")


@router.get("/reports/execution")
def execution(
    context: ContextDep,
    owner: OwnerDep,
    environment: NameQuery = None,
    batch: Annotated[
        list[ShortName] | None,
        Query(max_length=MAX_PAGE, description="Only these; may be repeated."),
    ] = None,
    search: IdQuery = None,
    since: Annotated[Day | None, Query(description="Only batches from this day on (UTC).")] = None,
) -> ExecutionReport:
    """How many ideas came to a result, per environment, profile, ideator and executor."""
    start = datetime.combine(since, time(), UTC) if since else None
    wanted = sorted(set(batch or ()))
    with context.db.snapshot() as session:
        scope = Scope(owner, environment, wanted, search, start)
        rows = execution_rows(session, read_lines(context, session, scope))
    return ExecutionReport(
        environment=environment, batches=wanted, search=search, since=since, data=rows
    )


def read_lines(context: Context, session: Session, scope: Scope) -> list[Line]:
    """Count the experiments of a scope.

    Raises:
        NotFound: its search or a batch of it is not there, or another owner's.
    """
    _check_batches(session, scope.batches, scope.owner)
    if scope.search is not None:
        owned_search(session, scope.search, scope.owner)
    return funnel.lines(session, scope, context.tallies.of)


def execution_rows(session: Session, lines: Sequence[Line]) -> list[ExecutionRow]:
    """Return the lines as the API shows them."""
    bits = disclosure.shown_bits(session, {line.key.environment for line in lines})
    return [_row(session, line, bits[line.key.environment]) for line in lines]


def _check_batches(session: Session, wanted: Sequence[str], owner: str) -> None:
    """Raises NotFound: a batch is not there, or another owner's."""
    there = session.scalars(
        select(schema.Batch.id).where(schema.Batch.id.in_(wanted), schema.Batch.owner == owner)
    )
    missing = sorted(set(wanted) - set(there))
    if missing:
        raise NotFound(f"batch {missing[0]!r} was not found")


def _row(session: Session, line: Line, bits: Bits) -> ExecutionRow:
    stages, spent = line.stages, line.spent
    return ExecutionRow(
        environment=line.key.environment,
        profile=line.key.profile,
        hardware_classes=line.hardware_classes,
        ideator=line.key.ideator,
        executor=line.key.executor,
        execution=_execution(line.key),
        batches=stages.batches,
        funnel=Funnel(
            submitted=stages.submitted,
            applied=stages.applied,
            patched=stages.patched,
            started=stages.started,
            scored=stages.scored,
        ),
        shares=_shares(stages),
        unfinished=stages.unfinished,
        cancelled=stages.cancelled,
        near_duplicates=stages.near_duplicates,
        failures=[FailureCount(stage=e.stage, code=e.code, count=e.number) for e in line.failures],
        repairs=RepairCounts(experiments=stages.repaired, scored=stages.repaired_scored),
        wasted_seconds=whole(line.wasted_seconds),
        usage=_usage(spent),
        per_submitted=_per_idea(spent, stages.submitted),
        per_patched=_per_idea(spent, stages.patched),
        metric=_metric(session, line, bits),
    )


def _execution(key: Key) -> Execution:
    if key.ideator is None:
        return "person"
    return "self" if key.ideator == key.executor else "cross"


def _shares(stages: Stages) -> Shares:
    def share(number: int) -> float | None:
        return round(number / stages.submitted, 6) if stages.submitted else None

    return Shares(
        applied=share(stages.applied),
        patched=share(stages.patched),
        started=share(stages.started),
        scored=share(stages.scored),
    )


def _usage(spent: Spent) -> Usage:
    cached, written = spent.cached_input_tokens, spent.cache_write_tokens
    return Usage(
        calls=spent.calls,
        under_way=spent.under_way,
        input_tokens=spent.input_tokens + cached + written,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=spent.output_tokens,
        cost_usd=None if spent.unpriced else dollars(spent.cost),
        estimated_usd=dollars(spent.estimated),
    )


def _per_idea(spent: Spent, ideas: int) -> PerIdea | None:
    if not ideas:
        return None
    full = spent.input_tokens + spent.cached_input_tokens + spent.cache_write_tokens
    cost = (spent.cost / ideas).quantize(_CENTS)
    return PerIdea(
        calls=round(spent.calls / ideas, 4),
        input_tokens=round(full / ideas, 1),
        output_tokens=round(spent.output_tokens / ideas, 1),
        cost_usd=None if spent.unpriced else dollars(cost),
    )


def _metric(session: Session, line: Line, bits: Bits) -> MetricSummary:
    manifest = environments.manifest(session, line.key.environment)
    spec = manifest.metric
    minimize = spec.direction is Direction.MINIMIZE
    return MetricSummary(
        name=spec.name,
        direction=spec.direction.value,
        average=shown_or_none(line.metrics.average),
        best=shown_or_none(line.metrics.lowest if minimize else line.metrics.highest),
        worn=bits.search > manifest.held_out_bits,
        baseline_mean=shown(line.baseline.mean) if line.baseline else None,
        baseline_n=line.baseline.n if line.baseline else 0,
    )
