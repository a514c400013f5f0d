"""GPU-seconds that did not count, by cause."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import select

from assay.domain.states import AttemptState
from assay.storage import schema
from assay.storage.database import Database


@dataclass(frozen=True)
class Waste:
    """GPU-seconds held by attempts: all of them, and those that decided nothing, by cause."""

    total: float
    by_cause: dict[str, float]

    @property
    def wasted(self) -> float:
        return sum(self.by_cause.values())

    @property
    def ratio(self) -> float:
        """The share of GPU-seconds that did not count."""
        return self.wasted / self.total if self.total else 0.0


def waste(db: Database) -> Waste:
    """Add up what attempts held from their claim until their host let go.

    A failure of the code is a result and counts; cancelled, lost and retried attempts do not.
    """
    total = 0.0
    causes: dict[str, float] = defaultdict(float)
    table = schema.Attempt
    with db.read() as session:
        rows = session.execute(
            select(
                table.state,
                table.failure,
                table.infrastructure,
                table.gpus,
                table.created_at,
                table.finished_at,
                table.released_at,
            )
        ).all()
    for row in rows:
        end = row.released_at or row.finished_at
        if end is None:
            continue
        used = row.gpus * (end - row.created_at).total_seconds()
        total += used
        counts = row.state in (AttemptState.SUCCEEDED.value, AttemptState.FAILED.value)
        if not counts or _is_retried(row.failure, row.infrastructure):
            code = row.failure["code"] if row.failure else row.state
            causes[code if row.state != AttemptState.CANCELLED.value else "cancelled"] += used
    return Waste(total, {cause: round(used, 3) for cause, used in sorted(causes.items())})


def _is_retried(failure: dict[str, object] | None, infrastructure: bool) -> bool:
    return infrastructure or bool(failure and failure.get("retryable"))
