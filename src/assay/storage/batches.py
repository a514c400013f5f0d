"""Batches: created whole or not at all, cancelled, measured against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import case, insert, literal_column, select, update
from sqlalchemy.orm import Session

from assay.contracts.batch import BatchRequest, IdeaRequest
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.ids import new_id
from assay.domain.states import (
    TERMINAL_EXPERIMENT,
    BatchState,
    ExperimentState,
    FailureStage,
    MeasurementKind,
)
from assay.storage import (
    baselines,
    bases,
    caps,
    conditions,
    environments,
    experiments,
    measurements,
    repairs,
    schema,
)
from assay.storage.bases import EXPERIMENT, Base, base_of
from assay.storage.database import Database
from assay.storage.measurements import Identity, Terms
from assay.storage.outbox import Topic, post, post_all
from assay.storage.rows import changed, get, run, table_of

_TERMINAL = [s.value for s in TERMINAL_EXPERIMENT]
#: Experiments cancelled in one transaction: on SQLite every other writer waits until its end.
CHUNK = 200


@dataclass(frozen=True)
class Similar:
    """An idea in nearly the same words: an experiment, or one of the same batch by position."""

    similarity: float
    experiment: str | None = None
    position: int = 0


def create(
    db: Database,
    session: Session,
    request: BatchRequest,
    owner: str,
    environment_id: str,
    on: Conditions,
    similar: Sequence[Sequence[Similar]] = (),
    *,
    kind: MeasurementKind | None = None,
    retries: str | None = None,
    reproduces: str | None = None,
    based_on: Sequence[Base | None] = (),
) -> str:
    """Store a batch with its ideas and experiments, and ask for the baseline. Returns its id.

    `similar`: for each idea, earlier ones in nearly the same words. `kind`: of the measurements
    that decide its experiments; if None, as the request says. `retries`: the failed experiment
    whose codebase the ideas measure again. `reproduces`: the experiment whose measurements they
    repeat. `based_on`: for each idea, what its base stands for, None for the environment's own
    code. Each base is measured on the seeds of the baseline, too. Without `based_on`, all ideas
    change the environment's own code, whatever the request names.
    """
    now = db.now(session)
    kind = kind or kind_of(request)
    batch = schema.Batch(
        id=new_id("bat"),
        kind=kind.value,
        owner=owner,
        environment_id=environment_id,
        profile=request.profile,
        hardware_class=on.hardware_class,
        conditions_id=on.id,
        executor=request.executor,
        ideator=request.ideator,
        options=request.options.model_dump(mode="json"),
        labels=dict(request.metadata),
        search_id=request.search,
        epoch=request.epoch,
        state=BatchState.RUNNING.value,
        version=1,
        created_at=now,
    )
    session.add(batch)
    session.flush()
    given = {idea.codebase for idea in request.ideas if idea.codebase}
    distinct = bases.distinct(based_on)
    for codebase in sorted(given.union(base.codebase for base in distinct)):
        # Locked until the row that names it is stored, or it could be collected as garbage.
        environments.keep_codebase(db, session, codebase, environment_id)
    _add_experiments(
        session,
        batch,
        request,
        similar or [()] * len(request.ideas),
        based_on or [None] * len(request.ideas),
        retries=retries,
        reproduces=reproduces,
    )
    environment = get(session, schema.Environment, environment_id, "environment")
    manifest = environments.manifest(session, environment_id)
    conditions.store_live(db, session, manifest.packages)
    profile = manifest.profiles[request.profile]
    wanted = baselines.seeds_of(profile, batch.options, kind.baseline)
    early = baselines.seeds_with_ideas(profile, wanted, request.options.seeds)
    later = sorted(set(wanted).difference(early))
    terms = Terms(owner, now, request.options.priority, needs_isolation=False)
    when_idle = replace(terms, priority=baselines.WHEN_IDLE)
    for seeds, asked in ((early, terms), (later, when_idle)):
        request_baseline(
            db, session, environment, request.profile, on, seeds, asked, kind.baseline
        )
    options = request.options
    early = sorted(set(wanted).intersection(options.seeds))
    later = sorted(set(wanted).difference(early))
    for base in distinct:
        isolated = not options.allow_unisolated and bases.is_untrusted(session, base.codebase)
        for seeds, asked in ((early, terms), (later, when_idle)):
            request_baseline(
                db,
                session,
                environment,
                request.profile,
                on,
                seeds,
                replace(asked, needs_isolation=isolated),
                kind.baseline,
                base.codebase,
            )
    return batch.id


def repeat(
    db: Database,
    session: Session,
    batch: schema.Batch,
    idea: schema.Idea,
    again: IdeaRequest,
    changes: Mapping[str, Any],
    *,
    kind: MeasurementKind | None = None,
    retries: str | None = None,
    reproduces: str | None = None,
) -> str:
    """Submit an idea of a batch once more, on the batch's terms but for these options.

    `again`: what to submit. It keeps the base of `idea`. The other arguments are those of
    `create`. Returns the id of the new experiment.
    """
    request = BatchRequest(
        environment=batch.environment_id,
        profile=batch.profile,
        ideas=[again],
        executor=batch.executor,
        ideator=batch.ideator,
        hardware_class=batch.hardware_class,
        options=caps.options_of(batch).model_copy(update=dict(changes)),
        metadata=batch.labels,
    )
    batch_id = create(
        db,
        session,
        request,
        batch.owner,
        batch.environment_id,
        conditions.of_batch(session, batch),
        kind=kind,
        retries=retries,
        reproduces=reproduces,
        based_on=[base_of(idea)],
    )
    made = select(schema.Experiment.id).where(schema.Experiment.batch_id == batch_id)
    return session.scalars(made).one()


def kind_of(request: BatchRequest) -> MeasurementKind:
    """The kind of the measurements that decide a batch's experiments."""
    confirms = all(idea.confirms is not None for idea in request.ideas)
    return MeasurementKind.CONFIRM if confirms else MeasurementKind.SCORE


def _add_experiments(
    session: Session,
    batch: schema.Batch,
    request: BatchRequest,
    similar: Sequence[Sequence[Similar]],
    based_on: Sequence[Base | None],
    *,
    retries: str | None,
    reproduces: str | None,
) -> None:
    is_again = retries is not None or reproduces is not None
    ids = [new_id("exp") for _ in request.ideas]
    ideas: list[dict[str, Any]] = [
        {
            "id": new_id("idea"),
            "batch_id": batch.id,
            "position": position,
            "client_key": idea.client_key,
            "text": idea.text,
            "thinking": idea.thinking,
            "operator": idea.operator,
            "parents": list(idea.parents) if is_again else _parents(idea, base),
            "confirms": idea.confirms,
            "retries": retries,
            "codebase_id": idea.codebase,
            "reproduces": reproduces,
            "base_id": base and base.codebase,
            "base": base and base.name,
            "similar": [
                {"experiment": one.experiment or ids[one.position], "similarity": one.similarity}
                for one in alike
            ],
        }
        for position, (idea, alike, base) in enumerate(
            zip(request.ideas, similar, based_on, strict=True)
        )
    ]
    tested = [
        {
            "id": id_,
            "batch_id": batch.id,
            "idea_id": idea["id"],
            "position": idea["position"],
            "state": ExperimentState.SUBMITTED.value,
            "was_started": False,
            "created_at": batch.created_at,
        }
        for id_, idea in zip(ids, ideas, strict=True)
    ]
    implementations = [
        {
            "id": new_id("impl"),
            "experiment_id": id_,
            "executor": batch.executor,
            "state": "submitted",
            "faults": 0,
            "repairs": 0,
            "created_at": batch.created_at,
        }
        for id_ in ids
    ]
    # Rows and not objects, which would be most of what a large batch costs; in the order of their
    # foreign keys.
    connection = session.connection()
    connection.execute(insert(table_of(schema.Idea)), ideas)
    connection.execute(insert(table_of(schema.Experiment)), tested)
    connection.execute(insert(table_of(schema.Implementation)), implementations)
    skipped = {
        id_: idea["similar"][0]
        for id_, idea in zip(ids, ideas, strict=True)
        if idea["similar"] and request.options.novelty == "skip"
    }
    _skip(session, skipped)
    if len(skipped) < len(ids):
        post(session, Topic.IMPLEMENT, batch.id)


def _parents(idea: IdeaRequest, base: Base | None) -> list[str]:
    """The experiments that an idea builds on, with the one that is its base.

    What confirms a result is compared with a base; it builds on the result alone.
    """
    parents = list(idea.parents)
    name = None if base is None or idea.confirms is not None else base.name
    if name is not None and name.startswith(EXPERIMENT) and name not in parents:
        parents.append(name)
    return parents


def _skip(session: Session, alike: Mapping[str, Mapping[str, Any]]) -> None:
    """Do not implement ideas that say what another said: by experiment, which one."""
    if not alike:
        return
    table = schema.Implementation
    changed(
        session,
        update(table)
        .where(table.experiment_id.in_(alike))
        .values(state="cancelled", finished_at=table.created_at),
    )
    for experiment_id, other in alike.items():
        message = (
            f"{other['similarity']:.0%} of its words are those of {other['experiment']}; with "
            "`novelty: warn` it is implemented nevertheless"
        )
        failure = Failure(FailureStage.IMPLEMENT, FailureCode.NEAR_DUPLICATE, message)
        experiments.move(session, experiment_id, ExperimentState.CANCELLED, failure)


def request_baseline(
    db: Database,
    session: Session,
    environment: schema.Environment,
    profile: str,
    on: Conditions,
    seeds: list[int],
    terms: Terms,
    kind: MeasurementKind = MeasurementKind.SCORE,
    codebase: str | None = None,
) -> list[str]:
    """Ask for measurements of the unmodified codebase, or of a base if `codebase` names one.

    Those there are count. Returns ids.
    """
    manifest = environments.manifest(session, environment.id)
    return [
        measurements.request(
            db,
            session,
            Identity(codebase or environment.codebase, environment.id, profile, seed, on, kind),
            manifest.profiles[profile],
            terms,
        )
        for seed in seeds
    ]


def cancel(db: Database, session: Session, batch_id: str, *, most: int = CHUNK) -> int:
    """Cancel a batch, and at most so many of its unfinished experiments with it.

    A cancelled batch starts nothing more. `continue_cancelling` cancels what is left, in
    transactions of its own, so that a large batch holds nobody up. Repeating it, or cancelling a
    finished batch, is harmless. Returns how many experiments were cancelled.
    """
    get(session, schema.Batch, batch_id, "batch")
    unfinished = _unfinished(session, batch_id, most)
    measurements.hold(session, _decided_by(session, unfinished), unfinished)
    changed(
        session,
        update(schema.Batch)
        .where(schema.Batch.id == batch_id, schema.Batch.state == BatchState.RUNNING.value)
        .values(state=BatchState.CANCELLED.value),
    )
    if len(unfinished) == most:
        post(session, Topic.SCHEDULE, "cancel")
    return _cancel(db, session, unfinished)


def is_cancelling(session: Session) -> bool:
    """Whether a cancelled batch has experiments that are not cancelled yet."""
    return run(session, _CANCELLING).first() is not None


def continue_cancelling(db: Database, session: Session, *, most: int = CHUNK) -> int:
    """Cancel the next experiments of the oldest batch that was cancelled and has not finished.

    Any process may do so at any time; what was committed stays done. Returns how many experiments
    were cancelled, 0 if nothing is left.
    """
    batch_id = session.scalars(_CANCELLING).first()
    return 0 if batch_id is None else cancel(db, session, batch_id, most=most)


def cancel_experiment(db: Database, session: Session, experiment_id: str) -> None:
    """Cancel one experiment, and the measurements that nobody else waits for."""
    get(session, schema.Experiment, experiment_id, "experiment")
    measurements.hold(session, _decided_by(session, [experiment_id]), [experiment_id])
    _cancel(db, session, [experiment_id])


_CANCELLING = (
    select(schema.Batch.id)
    .where(
        # As it stands in the index's condition, so that a prepared statement uses it too.
        schema.Batch.state == literal_column(f"'{BatchState.CANCELLED.value}'"),
        schema.Batch.finished_at.is_(None),
    )
    .order_by(schema.Batch.id)
    .limit(1)
)


def _unfinished(session: Session, batch_id: str, most: int) -> Sequence[str]:
    """Return experiments of a batch to cancel next, first those that keep models or hosts busy."""
    table = schema.Experiment
    return session.scalars(
        select(table.id)
        .where(table.batch_id == batch_id, table.state.not_in(_TERMINAL))
        .order_by(
            case((table.state == ExperimentState.SUBMITTED.value, 1), else_=0),
            # Last first: that one is still open is then seen at the first row of the index.
            table.position.desc(),
        )
        .limit(most)
    ).all()


def _cancel(db: Database, session: Session, experiment_ids: Sequence[str]) -> int:
    """Cancel experiments of one batch, in a fixed number of statements. Returns how many."""
    table = schema.Implementation
    # The caller has locked the experiments. Their implementations come next, in the order in which
    # leases are renewed: else two transactions could wait in a circle.
    session.execute(
        select(table.id)
        .where(table.experiment_id.in_(experiment_ids))
        .order_by(table.id)
        .with_for_update(key_share=True)
    )
    cancelled = experiments.cancel(db, session, experiment_ids)
    if not cancelled:
        return 0
    holders = session.scalars(
        update(table)
        .where(table.experiment_id.in_(cancelled), table.finished_at.is_(None))
        .values(state="cancelled", finished_at=db.now(session))
        .returning(table.holder),
        execution_options={"synchronize_session": False},
    ).all()
    repairs.abandon(session, cancelled)
    measurements.cancel_unwanted(db, session, _decided_by(session, cancelled))
    # A process that is at work on one of them looks and stops.
    post_all(db, session, Topic.IMPLEMENTER, {holder for holder in holders if holder is not None})
    return len(cancelled)


def _decided_by(session: Session, experiment_ids: Sequence[str]) -> Sequence[str]:
    link = schema.ExperimentMeasurement
    return session.scalars(
        select(link.measurement_id)
        .where(link.experiment_id.in_(experiment_ids))
        .order_by(link.measurement_id)
        .distinct()
    ).all()
