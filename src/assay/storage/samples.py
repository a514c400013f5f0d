"""The samples of an implementation: what was answered, and what became of it.

A sample and revision is `calling` while its model is asked, `answered` when the answer is stored,
and then `applied` or `refused`; or its call `failed` or was `cancelled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import Boolean, Update, bindparam, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from assay.domain.errors import NotFound
from assay.domain.failure_codes import Code, FailureCode
from assay.storage import calls, schema
from assay.storage.database import Database
from assay.storage.rows import run, table_of
from assay.storage.text import clean_text

Key = tuple[str, int, int]

_SAMPLE = table_of(schema.Sample)
_CHANGE = update(_SAMPLE).where(
    _SAMPLE.c.implementation_id == bindparam("of_implementation"),
    _SAMPLE.c.sample == bindparam("of_sample"),
    _SAMPLE.c.revision == bindparam("of_revision"),
)
#: Recorded when it is first asked for, and counted when it is asked for again.
_CALLING = {
    dialect: insert(_SAMPLE).on_conflict_do_update(
        index_elements=list(_SAMPLE.primary_key),
        set_={"state": "calling", "tries": _SAMPLE.c.tries + 1},
    )
    for dialect, insert in (("sqlite", sqlite.insert), ("postgresql", postgresql.insert))
}
_ANSWERED = _CHANGE.values(
    {"state": "answered"} | {name: bindparam(name) for name in ("code", "answer", "thinking")}
)
_SMOKING = _CHANGE.values(smoke_id=bindparam("smoke_id"), fitted=True)
_ENDED = _CHANGE.values(
    fitted=or_(_SAMPLE.c.fitted, bindparam("was_fitted", type_=Boolean)),
    **{
        name: bindparam(name)
        for name in (
            *("state", "code", "patch_log", "diff", "finished_at"),
            *("tries", "interrupted", "cached_input_tokens", "input_tokens", "output_tokens"),
            "cost_usd",
        )
    },
)
_OPEN = (
    select(_SAMPLE.c.sample, _SAMPLE.c.revision)
    .where(
        _SAMPLE.c.implementation_id == bindparam("implementation"),
        _SAMPLE.c.state.in_(("calling", "answered")),
    )
    .order_by(_SAMPLE.c.sample, _SAMPLE.c.revision)
)


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
    implementation, sample, revision = key
    run(
        session,
        _CALLING[session.get_bind().dialect.name],
        implementation_id=implementation,
        sample=sample,
        revision=revision,
        state="calling",
        prompt_version=prompt_version,
        is_repair=is_repair,
        tries=1,
        started_at=db.now(session),
    )


def answered(session: Session, key: Key, answer: Answer) -> None:
    """The answer is here, and will not be asked for again."""
    _change(
        session,
        _ANSWERED,
        key,
        code=answer.code and str(answer.code),
        answer=clean_text(answer.text),
        thinking=clean_text(answer.thinking),
    )


def smoking(session: Session, key: Key, measurement_id: str) -> None:
    """Its codebase is being tried on a worker."""
    _change(session, _SMOKING, key, smoke_id=measurement_id)


def ended(db: Database, session: Session, key: Key, verdict: Verdict) -> None:
    """Nothing more is done for this sample and revision; its totals are those of its calls."""
    _change(
        session,
        _ENDED,
        key,
        state=verdict.state,
        code=verdict.code and str(verdict.code),
        patch_log=clean_text(verdict.log),
        diff=clean_text(verdict.diff),
        was_fitted=verdict.fitted,
        finished_at=db.now(session),
        **_totals(session, key),
    )


def _change(session: Session, statement: Update, key: Key, **values: Any) -> None:
    implementation, sample, revision = key
    changed = run(
        session,
        statement,
        of_implementation=implementation,
        of_sample=sample,
        of_revision=revision,
        **values,
    )
    if not changed.rowcount:
        raise NotFound(f"sample {key!r} was not found")


def close(db: Database, session: Session, implementation_id: str) -> None:
    """End what is left of an implementation that has ended: siblings of the winner that were
    asked, or had answered, when their process died."""
    calls.interrupt_all_of(session, implementation_id)
    for row in run(session, _OPEN, implementation=implementation_id).mappings().all():
        key = (implementation_id, row["sample"], row["revision"])
        ended(db, session, key, Verdict("cancelled"))


def _totals(session: Session, key: Key) -> dict[str, Any]:
    """Add the calls of a sample up; its cost is unknown if that of one is."""
    made = calls.of_sample(session, *key)
    over = [call for call in made if call.finished_at is not None]
    known = [call.cost_usd for call in over if call.cost_usd is not None]
    cached = sum(call.cached_input_tokens for call in over)
    return {
        "tries": len(made),
        "interrupted": sum(call.state == calls.INTERRUPTED for call in made),
        "cached_input_tokens": cached,
        "input_tokens": cached + sum(call.input_tokens + call.cache_write_tokens for call in over),
        "output_tokens": sum(call.output_tokens for call in over),
        "cost_usd": sum(known, Decimal(0)) if len(known) == len(over) else None,
    }


def last_revision(session: Session, implementation_id: str, sample: int) -> int:
    """The highest revision that a sample has."""
    table = schema.Sample
    found = session.scalars(
        select(func.max(table.revision)).where(
            table.implementation_id == implementation_id, table.sample == sample
        )
    ).one()
    return int(found or 0)
