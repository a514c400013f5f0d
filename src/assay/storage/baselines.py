"""How many seeds a baseline is measured on, in which order, and how far it is.

`batches.py` asks for the measurements, and the API's views read here how far they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from assay.contracts.environment import Profile
from assay.domain.conditions import Conditions
from assay.domain.states import TERMINAL_MEASUREMENT, MeasurementKind, MeasurementState
from assay.domain.usage import REFERENCE_RUNS
from assay.storage import bases, conditions, environments, schema
from assay.storage.rows import get
from assay.storage.types import clock

#: Seeds of a profile without GPUs and with them, unless a request names a number. On 20 seeds the
#: spread is known well enough for verdicts; runs on GPUs are too dear for that, so they begin with
#: the fewest that show a spread worth the name, and whoever needs more asks for more.
CPU_SEEDS, GPU_SEEDS = 20, 3
#: Priority of seeds that wait until no idea does: below that of every batch (-100 to 100).
WHEN_IDLE = -1_000
_TERMINAL = {s.value for s in TERMINAL_MEASUREMENT}


def seeds_wanted(profile: Profile, asked: int | None = None) -> int:
    """Return on how many seeds, from 0, a baseline is measured: as asked, else by the profile."""
    if asked is not None:
        return asked
    return GPU_SEEDS if profile.gpus else CPU_SEEDS


def seeds_of(
    profile: Profile, options: Mapping[str, Any], kind: MeasurementKind = MeasurementKind.SCORE
) -> list[int]:
    """Return the seeds that a batch is compared on: the first ones, and those of its ideas.

    `options` are the batch's as they are stored. A verdict depends on no other seed, so one that
    was given does not change when more are measured later. No seed if none was asked for.

    A confirmation on GPUs has those of its ideas alone, unless more are asked for: the first ones
    would have to be scored on the sealed split, too.
    """
    asked = options.get("baseline_seeds")
    wanted = seeds_wanted(profile, asked)
    if not wanted:
        return []
    is_dear = kind is MeasurementKind.CONFIRM and profile.gpus > 0
    first = range(0 if is_dear and asked is None else wanted)
    return sorted({*first, *options.get("seeds", ())})


def seeds_with_ideas(
    profile: Profile, wanted: Collection[int], seeds: Collection[int]
) -> list[int]:
    """Return the seeds of a baseline that are queued with the ideas; the others wait until idle.

    `wanted` are all of the baseline, `seeds` those the ideas are measured on. Where caps are
    multiples of what the baseline uses, a worker makes `REFERENCE_RUNS` runs of it before its
    first idea unless it has seen as many, and runs of its own count for nothing else. So the first
    seeds come early there: one more than that, because the last may still run when the first idea
    starts.
    """
    early = REFERENCE_RUNS + 1 if profile.budget.is_relative else 0
    return [seed for seed in wanted if seed < early or seed in seeds]


def hasten(session: Session, batch: schema.Batch) -> None:
    """Queue what is left of a batch's baseline, and of its bases, as if asked for now.

    Called when the ideas of the batch are done, so that it waits for nothing else. What waits at
    its priority already goes first; later batches cannot overtake for ever.

    Rows that another transaction has locked are left out: they are being started or settled, and
    waiting for them here, with the batch locked, could end in a deadlock.
    """
    environment = get(session, schema.Environment, batch.environment_id, "environment")
    options, manifest = batch.options, environments.manifest(session, environment.id)
    kind = MeasurementKind(batch.kind).baseline
    priority = options.get("priority", 0)
    table, on = schema.Measurement, conditions.of_batch(session, batch)
    codebases = {
        environment.codebase,
        *(base.codebase for base in bases.of_batch(session, batch.id)),
    }
    waiting = session.scalars(
        select(table.id)
        .where(
            *is_baseline(environment, batch.profile, on, kind, codebases),
            table.seed.in_(seeds_of(manifest.profiles[batch.profile], options, kind)),
            table.state == MeasurementState.QUEUED.value,
            table.priority < priority,
        )
        .order_by(table.id)
        .with_for_update(key_share=True, skip_locked=True)
    ).all()
    if waiting:
        now = session.scalars(select(clock())).one()  # one for all: they are a batch of their own
        session.execute(
            update(table).where(table.id.in_(waiting)).values(priority=priority, batch_at=now),
            execution_options={"synchronize_session": False},
        )


def is_of_base(session: Session, row: schema.Measurement) -> bool:
    """Whether a batch compares ideas with this measurement of their base."""
    table, idea = schema.Batch, schema.Idea
    for batch in session.scalars(
        select(table)
        .where(
            table.id.in_(select(idea.batch_id).where(idea.base_id == row.codebase_id)),
            table.environment_id == row.environment_id,
            table.profile == row.profile,
        )
        .order_by(table.id.desc())
    ):
        kind = MeasurementKind(batch.kind).baseline
        profile = environments.manifest(session, row.environment_id).profiles[row.profile]
        if row.kind == kind.value and row.seed in seeds_of(profile, batch.options, kind):
            return True
    return False


@dataclass(frozen=True)
class Progress:
    """The seeds without a result: those still to come, and those that failed, in order."""

    pending: Sequence[int]
    failed: Sequence[schema.Measurement]


def progress(
    session: Session, environment: schema.Environment, profile: str, on: Conditions
) -> Progress:
    """Return how far a baseline is.

    The newest measurement of a seed counts: one that is measured again is to come.
    """
    table = schema.Measurement
    query = (
        select(table, schema.Result.measurement_id)
        .outerjoin(schema.Result, schema.Result.measurement_id == table.id)
        .where(*is_baseline(environment, profile, on))
        .order_by(table.seed, table.replicate)
    )
    newest: dict[int, schema.Measurement] = {}
    measured: set[int] = set()
    for row, result in session.execute(query):
        newest[row.seed] = row
        if result is not None:
            measured.add(row.seed)
    missing = [row for seed, row in newest.items() if seed not in measured]
    return Progress(
        [row.seed for row in missing if row.state not in _TERMINAL],
        [row for row in missing if row.state == MeasurementState.FAILED.value],
    )


def is_baseline(
    environment: schema.Environment,
    profile: str,
    on: Conditions,
    kind: MeasurementKind = MeasurementKind.SCORE,
    codebases: Collection[str] = (),
) -> tuple[ColumnElement[bool], ...]:
    """Return what selects the measurements of a baseline, or of other `codebases` if given."""
    table = schema.Measurement
    return (
        table.codebase_id.in_(codebases or [environment.codebase]),
        table.environment_id == environment.id,
        table.profile == profile,
        *conditions.selected(table, on),
        table.kind == kind.value,
    )
