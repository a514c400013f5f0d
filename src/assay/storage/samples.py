"""The samples of an implementation: what was answered, and what became of it.

A sample and revision is `calling` while its model is asked, `answered` when the answer is stored,
and then `applied` or `refused`; or its call `failed` or was `cancelled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from assay.domain.failure_codes import Code, FailureCode
from assay.storage import calls, schema
from assay.storage.database import Database
from assay.storage.rows import get
from assay.storage.text import clean_text

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Answer:
    """What a model said. `code` is set where that is no whole answer (`truncated`, `refused`)."""

    text: str
    thinking: str | None = None
    code: FailureCode | None = None


@dataclass(frozen=True)
class Verdict:
    """What became of an answer. `fitted`: its diff applied, whatever preflight said of it."""

    state: str
    code: Code | None = None
    log: str | None = None
    diff: str | None = None
    fitted: bool = False


def of(session: Session, implementation_id: str) -> list[schema.Sample]:
    """Every recorded sample, in order of sample and revision."""
    return list(
        session.scalars(
            select(schema.Sample)
            .where(schema.Sample.implementation_id == implementation_id)
            .order_by(schema.Sample.sample, schema.Sample.revision)
        ).all()
    )


def calling(
    db: Database, session: Session, key: Key, prompt_version: str, *, is_repair: bool = False
) -> None:
    """A request is about to be sent, maybe again."""
    row = session.get(schema.Sample, key)
    if row is None:
        implementation, sample, revision = key
        row = schema.Sample(
            implementation_id=implementation,
            sample=sample,
            revision=revision,
            state="calling",
            prompt_version=prompt_version,
            is_repair=is_repair,
            started_at=db.now(session),
        )
        session.add(row)
    row.state, row.tries = "calling", (row.tries or 0) + 1


def answered(session: Session, key: Key, answer: Answer) -> None:
    """The answer is here, and will not be asked for again."""
    row = get(session, schema.Sample, key, "sample")
    row.state, row.code = "answered", answer.code and str(answer.code)
    row.answer, row.thinking = clean_text(answer.text), clean_text(answer.thinking)


def smoking(session: Session, key: Key, measurement_id: str) -> None:
    """Its codebase is being tried on a worker."""
    row = get(session, schema.Sample, key, "sample")
    row.smoke_id, row.fitted = measurement_id, True


def ended(db: Database, session: Session, key: Key, verdict: Verdict) -> None:
    """Nothing more is done for this sample and revision; its totals are those of its calls."""
    row = get(session, schema.Sample, key, "sample")
    row.state, row.code = verdict.state, verdict.code and str(verdict.code)
    row.patch_log, row.diff = clean_text(verdict.log), clean_text(verdict.diff)
    row.fitted = row.fitted or verdict.fitted
    row.finished_at = db.now(session)
    total(session, row)


def close(db: Database, session: Session, implementation_id: str) -> None:
    """End what is left of an implementation that has ended: siblings of the winner that were
    asked, or had answered, when their process died."""
    calls.interrupt_all_of(session, implementation_id)
    for row in of(session, implementation_id):
        if row.state in ("calling", "answered"):
            key = (row.implementation_id, row.sample, row.revision)
            ended(db, session, key, Verdict("cancelled"))


def total(session: Session, row: schema.Sample) -> None:
    """Add the calls of a sample up; its cost is unknown if that of one is."""
    session.flush()
    made = calls.of_sample(session, row.implementation_id, row.sample, row.revision)
    ended_calls = [call for call in made if call.finished_at is not None]
    row.tries = len(made)
    row.interrupted = sum(call.state == "interrupted" for call in made)
    row.cached_input_tokens = sum(call.cached_input_tokens for call in ended_calls)
    row.input_tokens = row.cached_input_tokens + sum(
        call.input_tokens + call.cache_write_tokens for call in ended_calls
    )
    row.output_tokens = sum(call.output_tokens for call in ended_calls)
    known = [call.cost_usd for call in ended_calls if call.cost_usd is not None]
    row.cost_usd = sum(known, Decimal(0)) if len(known) == len(ended_calls) else None


def last_revision(session: Session, implementation_id: str, sample: int) -> int:
    """The highest revision that a sample has."""
    table = schema.Sample
    found = session.scalars(
        select(func.max(table.revision)).where(
            table.implementation_id == implementation_id, table.sample == sample
        )
    ).one()
    return int(found or 0)
