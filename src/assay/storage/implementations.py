"""Who implements an idea, and what came of it. (Its calls: see `samples` and `calls`.)

An idea is implemented by one holder at a time, under a lease on the database's clock. Whoever has
lost it (it was paused, and another took over) is refused every write: `Fenced`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import bindparam, case, func, or_, select, update
from sqlalchemy.orm import Session

from assay.contracts.batch import BatchOptions
from assay.contracts.environment import EnvironmentManifest
from assay.domain.conditions import Conditions
from assay.domain.errors import Fenced
from assay.domain.failure_codes import Failure
from assay.domain.states import (
    TERMINAL_EXPERIMENT,
    BatchState,
    ExperimentState,
    MeasurementKind,
)
from assay.storage import (
    bases,
    calls,
    caps,
    conditions,
    environments,
    experiments,
    measurements,
    repairs,
    schema,
)
from assay.storage.calls import Payer
from assay.storage.database import Database
from assay.storage.measurements import Identity, Terms
from assay.storage.repairs import Repair
from assay.storage.rows import changed, get, run, table_of

_TERMINAL = [s.value for s in TERMINAL_EXPERIMENT]
_WAITING = [ExperimentState.SUBMITTED.value, ExperimentState.IMPLEMENTING.value]
#: Who implements where one process does everything: its lock keeps a second one away.
LOCAL = "local"
LEASE = timedelta(seconds=30)
_IMPLEMENTATION = table_of(schema.Implementation)
_STATE = select(schema.Experiment.state).where(schema.Experiment.id == bindparam("experiment"))
_ASKED = (
    select(schema.Batch, schema.Idea)
    .select_from(schema.Experiment)
    .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
    .join(schema.Idea, schema.Idea.id == schema.Experiment.idea_id)
    .where(schema.Experiment.id == bindparam("experiment"))
)
#: Nobody else holds it. A holder that was restarted under its own name goes on at once.
_FREE = or_(
    _IMPLEMENTATION.c.holder.is_(None),
    _IMPLEMENTATION.c.holder == bindparam("by"),
    _IMPLEMENTATION.c.lease_expires_at <= bindparam("now"),
)
_TAKE_UP = (
    update(_IMPLEMENTATION)
    .where(
        _IMPLEMENTATION.c.experiment_id == bindparam("experiment"),
        _IMPLEMENTATION.c.finished_at.is_(None),
        _FREE,
    )
    .values(state="implementing", holder=bindparam("by"), lease_expires_at=bindparam("until"))
    .returning(_IMPLEMENTATION.c.id)
)
#: Changes nothing, and locks the row if it is still its holder's.
_HOLD = (
    update(_IMPLEMENTATION)
    .where(
        _IMPLEMENTATION.c.id == bindparam("implementation"),
        _IMPLEMENTATION.c.holder == bindparam("by"),
    )
    .values(holder=bindparam("by"))
)
_END = (
    update(_IMPLEMENTATION)
    .where(
        _IMPLEMENTATION.c.id == bindparam("implementation"),
        _IMPLEMENTATION.c.holder == bindparam("by"),
    )
    .values(
        state=bindparam("as_"),
        winner=bindparam("sample"),
        codebase_id=bindparam("codebase"),
        finished_at=bindparam("now"),
    )
)

_QUEUED, _RUNNING = ExperimentState.QUEUED.value, ExperimentState.RUNNING.value
_AHEAD = (
    select(
        schema.Experiment.batch_id,
        func.count().filter(schema.Experiment.state == _QUEUED),
        func.count().filter(schema.Experiment.state == _RUNNING),
    )
    .where(schema.Experiment.state.in_([_QUEUED, _RUNNING]))
    .group_by(schema.Experiment.batch_id)
)


@dataclass(frozen=True)
class Work:
    """All the implement loop needs to know of an experiment."""

    experiment: str
    batch: str
    implementation: str
    holder: str
    owner: str
    environment_id: str
    manifest: EnvironmentManifest
    #: The environment's own codebase, and the one that the idea changes.
    baseline_codebase: str
    base_codebase: str
    profile: str
    on: Conditions
    executor: str
    ideator: str | None
    options: BatchOptions
    idea: str
    submitted_at: datetime
    search: str | None = None
    repair: Repair | None = None
    #: The codebase to measure, if the idea names one, or repeats an experiment.
    given: str | None = None
    #: Of the measurements that decide the experiment.
    kind: MeasurementKind = MeasurementKind.SCORE
    #: Whether its code may be started in isolation alone.
    needs_isolation: bool = True
    #: Whether nobody has begun it before.
    is_new: bool = False

    def identity(self, codebase: str, seed: int) -> Identity:
        """What is measured of a codebase on a seed."""
        return Identity(codebase, self.environment_id, self.profile, seed, self.on, self.kind)

    def same_code(self, canonical: str | None) -> str | None:
        """A canonical form under which this owner's equal code is found in this environment.

        Another owner's would bring that one's comments along.
        """
        if canonical is None:
            return None
        named = f"{self.owner}\n{self.environment_id}\n{canonical}"
        return hashlib.sha256(named.encode()).hexdigest()

    @property
    def payer(self) -> Payer:
        """Who its calls are charged to."""
        return Payer(self.owner, self.batch, self.search, self.implementation)


def begin(
    db: Database,
    session: Session,
    experiment_id: str,
    holder: str = LOCAL,
    ttl: timedelta = LEASE,
) -> Work | None:
    """Take an experiment up, or take it up again after a crash; None if there is nothing to do:
    it is implemented, cancelled, or held by another."""
    experiment = session.get(schema.Experiment, experiment_id, with_for_update={"key_share": True})
    if experiment is None or experiment.state not in _WAITING:
        return None
    batch, idea = session.execute(_ASKED, {"experiment": experiment_id}).one()
    if batch.state == BatchState.CANCELLED.value:  # and its experiments are about to be
        return None
    now = db.now(session)
    implementation = run(
        session, _TAKE_UP, experiment=experiment_id, by=holder, now=now, until=now + ttl
    ).scalar_one_or_none()
    if implementation is None:
        return None
    is_new = experiment.state == ExperimentState.SUBMITTED.value
    if is_new:
        experiments.move(session, experiment_id, ExperimentState.IMPLEMENTING)
    else:
        calls.interrupt_all_of(session, implementation)
    options = caps.options_of(batch)
    base = bases.base_of(idea)
    environment = environments.registered(session, batch.environment_id)
    return Work(
        experiment=experiment_id,
        batch=batch.id,
        implementation=implementation,
        holder=holder,
        owner=batch.owner,
        environment_id=batch.environment_id,
        manifest=environment.manifest,
        baseline_codebase=environment.codebase,
        base_codebase=base.codebase if base else environment.codebase,
        profile=batch.profile,
        on=conditions.of_batch(session, batch),
        executor=batch.executor,
        ideator=batch.ideator,
        options=options,
        idea=idea.text,
        submitted_at=batch.created_at,
        search=batch.search_id,
        repair=repairs.pending(session, experiment_id),
        given=_given_codebase(session, idea),
        kind=MeasurementKind(batch.kind),
        needs_isolation=bases.needs_sandbox(
            session,
            batch.executor,
            batch.ideator,
            [base],
            allow_unisolated=options.allow_unisolated,
        ),
        is_new=is_new,
    )


def _given_codebase(session: Session, idea: schema.Idea) -> str | None:
    earlier = idea.confirms or idea.retries or idea.reproduces
    if earlier is None:
        return idea.codebase_id
    return get(session, schema.Experiment, earlier, "experiment").codebase_id


class Waiting(NamedTuple):
    """An experiment that waits to be implemented: of which batch, and of whom. `is_new`: nobody
    has begun it."""

    id: str
    batch: str
    owner: str
    priority: int
    is_new: bool


class Ahead(NamedTuple):
    """How many experiments of a batch are implemented: those that wait to be measured, and those
    that are being measured."""

    waiting: int
    running: int


def ahead(session: Session) -> dict[str, Ahead]:
    """Return how far each batch is implemented ahead of measuring."""
    return {batch: Ahead(*numbers) for batch, *numbers in run(session, _AHEAD)}


def unfinished(
    db: Database,
    session: Session,
    holder: str = LOCAL,
    *,
    limit: int = 1000,
    known: Collection[str] = (),
    full: Collection[str] = (),
    far_ahead: Collection[str] = (),
) -> list[Waiting]:
    """Return experiments that this holder may implement, in the order in which they come next.

    The `known` ones are left out, those of the batches and owners that are `full`, and of the
    batches that are `far_ahead` those that nobody has begun. Owners take turns. An owner's batches
    with the highest priority come first, and batches of equal priority take turns. Within a batch,
    what was begun before comes first.
    """
    priority = func.coalesce(schema.Batch.options["priority"].as_integer(), 0)
    is_new = case((schema.Experiment.state == ExperimentState.SUBMITTED.value, 1), else_=0)
    place = func.row_number().over(
        partition_by=schema.Experiment.batch_id, order_by=(is_new, schema.Experiment.position)
    )
    found = (
        select(
            schema.Experiment.id,
            schema.Experiment.batch_id,
            schema.Batch.owner,
            priority.label("priority"),
            is_new.label("is_new"),
            place.label("place"),
        )
        .join(
            schema.Implementation,
            schema.Implementation.experiment_id == schema.Experiment.id,
        )
        .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
        .where(
            schema.Experiment.state.in_(_WAITING),
            schema.Batch.state == BatchState.RUNNING.value,
            schema.Experiment.id.not_in(known),
            schema.Experiment.batch_id.not_in(full),
            schema.Batch.owner.not_in(full),
            or_(is_new == 0, schema.Experiment.batch_id.not_in(far_ahead)),
            _FREE,
        )
        .subquery()
        .c
    )
    turn = func.row_number().over(
        partition_by=found.owner, order_by=(found.priority.desc(), found.place, found.id)
    )
    rows = session.execute(
        select(found.id, found.batch_id, found.owner, found.priority, found.is_new)
        .order_by(turn, found.place, found.id)
        .limit(limit),
        {"by": holder, "now": db.now(session)},
    )
    return [Waiting(*row[:-1], is_new=bool(row.is_new)) for row in rows]


def renew(db: Database, session: Session, holder: str = LOCAL, ttl: timedelta = LEASE) -> set[str]:
    """Renew all leases of a holder. Returns the experiments it still holds and should go on with:
    those that were cancelled, or taken over by another, are not among them."""
    table = schema.Implementation
    held = (
        select(table.id)
        .where(table.holder == holder, table.finished_at.is_(None))
        .order_by(table.id)  # as a batch is cancelled: else two could wait in a circle
        .with_for_update(key_share=True)
    )
    return set(
        session.execute(
            update(table)
            .where(table.id.in_(held))
            .values(lease_expires_at=db.now(session) + ttl)
            .returning(table.experiment_id),
            execution_options={"synchronize_session": False},
        ).scalars()
    )


def release(session: Session, holder: str = LOCAL) -> int:
    """Give up what a holder has not finished, so that others need not wait for its leases."""
    table = schema.Implementation
    return changed(
        session,
        update(table)
        .where(table.holder == holder, table.finished_at.is_(None))
        .values(holder=None, lease_expires_at=None),
    )


def check_held(session: Session, work: Work) -> None:
    """Make sure, until the commit, that the work is still its holder's.

    Raises:
        Fenced: another took it over; nothing of this transaction may be stored.
    """
    held = run(session, _HOLD, implementation=work.implementation, by=work.holder).rowcount
    if not held:
        raise _fenced(work.experiment)


def _fenced(experiment_id: str) -> Fenced:
    return Fenced(f"{experiment_id} is implemented by another process by now")


def is_wanted(session: Session, experiment_id: str) -> bool:
    """False once the experiment is terminal, for example cancelled."""
    return run(session, _STATE, experiment=experiment_id).scalar_one() not in _TERMINAL


def terms_of(work: Work, *, more_priority: int = 0) -> Terms:
    """On which terms the measurements of an experiment are asked for."""
    # The environment's own code is trusted, whoever submits it.
    isolated = work.given != work.baseline_codebase and work.needs_isolation
    priority = work.options.priority + more_priority
    fresh = work.kind is MeasurementKind.CONTROL
    return Terms(work.owner, work.submitted_at, priority, isolated, work.options.again, fresh)


def succeed(
    db: Database,
    session: Session,
    work: Work,
    winner: int | None,
    codebase: str,
    canonical: str | None = None,
) -> None:
    """Record the codebase and ask for its measurements.

    `winner` is the sample whose diff applied and passed preflight; None if there was none to ask.
    Where one with the same code (`canonical`) was recorded before, that one is measured.

    Raises:
        Fenced: another process took the idea over.
    """
    codebase = environments.add_codebase(db, session, codebase, work.environment_id, canonical)
    profile = work.manifest.profiles[work.profile]
    terms = terms_of(work)
    wanted = [
        measurements.request(
            db,
            session,
            work.identity(codebase, seed),
            profile,
            terms,
        )
        for seed in sorted(set(work.options.seeds))
    ]
    # Measurements are locked before the experiment, as everywhere (see `measurements.hold`).
    queued = ExperimentState.QUEUED
    if not experiments.move(session, work.experiment, queued, codebase_id=codebase):
        measurements.cancel_unwanted(db, session, wanted)
        return
    _close(db, session, work, "succeeded", winner=winner, codebase_id=codebase)
    if work.repair is not None:
        repairs.close(session, work.experiment, work.repair.number, codebase)
    session.add_all(
        schema.ExperimentMeasurement(experiment_id=work.experiment, measurement_id=measurement)
        for measurement in wanted
    )
    session.flush()
    # A shared measurement may be running or finished already.
    experiments.refresh(session, work.experiment, queued)


def fail(db: Database, session: Session, work: Work, failure: Failure) -> None:
    """No codebase came of it: the experiment ends here. Raises Fenced."""
    # The experiment before its implementation, as everywhere: else two could wait in a circle.
    if not experiments.move(session, work.experiment, ExperimentState.FAILED, failure):
        return
    if work.repair is None:
        _close(db, session, work, "failed")
        return
    # There is a codebase, though it crashed and was not mended.
    crashed = work.repair
    _close(db, session, work, "succeeded", winner=crashed.sample, codebase_id=crashed.codebase)
    repairs.close(session, work.experiment, crashed.number)


def count_fault(session: Session, experiment_id: str, holder: str = LOCAL) -> int:
    """Count a fault of our own in implementing an idea; returns how many there were.

    The experiment is locked first, as everywhere: it may be ended in the same transaction.
    """
    session.execute(
        select(schema.Experiment.id)
        .where(schema.Experiment.id == experiment_id)
        .with_for_update(key_share=True)
    )
    table = schema.Implementation
    faults = session.execute(
        update(table)
        .where(table.experiment_id == experiment_id, table.holder == holder)
        .values(faults=table.faults + 1)
        .returning(table.faults),
        execution_options={"synchronize_session": False},
    ).scalar_one_or_none()
    return faults or 0


def give_up(
    db: Database, session: Session, experiment_id: str, failure: Failure, holder: str = LOCAL
) -> None:
    """End an experiment that cannot be implemented, though nothing is wrong with the idea.

    Raises:
        Fenced: another took it over.
    """
    if not experiments.move(session, experiment_id, ExperimentState.FAILED, failure):
        return
    repairs.abandon(session, [experiment_id])
    table = schema.Implementation
    ended = changed(
        session,
        update(table)
        .where(table.experiment_id == experiment_id, table.holder == holder)
        .values(state="failed", finished_at=db.now(session)),
    )
    if not ended:
        raise _fenced(experiment_id)


def _close(
    db: Database,
    session: Session,
    work: Work,
    state: str,
    winner: int | None = None,
    codebase_id: str | None = None,
) -> None:
    ended = run(
        session,
        _END,
        implementation=work.implementation,
        by=work.holder,
        as_=state,
        sample=winner,
        codebase=codebase_id,
        now=db.now(session),
    ).rowcount
    if not ended:
        raise _fenced(work.experiment)
