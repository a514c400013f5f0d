"""Conditions of workers, and which of them a batch is measured under.

A batch is pinned to one set of conditions when it is submitted. Its measurements, its baseline and
its verdicts belong to that set and to those that are taken for equal to it
(`equivalences.py`). The facts themselves are in `domain/conditions.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from assay.contracts.environment import EnvironmentManifest, Profile
from assay.domain.conditions import (
    UNRECORDED,
    Conditions,
    Facts,
    HostFacts,
    differences,
    host_facts,
)
from assay.domain.errors import InvalidInput, Unavailable
from assay.domain.states import MeasurementKind, WorkerState
from assay.storage import equivalences, schema
from assay.storage.database import Database
from assay.storage.rows import insert_missing


def facts_of(worker: schema.Worker, packages: Sequence[str] = ()) -> HostFacts:
    """Read a worker's facts, for an environment that declares these packages."""
    return host_facts(worker.hardware_class, worker.info, packages)


def store(session: Session, now: datetime, found: Iterable[HostFacts]) -> None:
    """Record the sets of facts of hosts under their ids, if they are new."""
    sets = {id_: facts for each in found for id_, facts in each.sets}
    insert_missing(
        session,
        schema.ConditionSet,
        [
            {
                "id": id_,
                "hardware_class": facts["hardware_class"],
                "facts": facts,
                "created_at": now,
            }
            for id_, facts in sets.items()
        ],
    )


def store_live(db: Database, session: Session, packages: Sequence[str]) -> None:
    """Record those of all live workers, for an environment that declares these packages."""
    live = session.scalars(
        select(schema.Worker).where(schema.Worker.state == WorkerState.ACTIVE.value)
    )
    store(session, db.now(session), [facts_of(worker, packages) for worker in live])


def facts_by_id(session: Session, ids: Sequence[str]) -> dict[str, Facts]:
    """The facts of recorded conditions; those that are not recorded are left out."""
    table = schema.ConditionSet
    rows = session.execute(select(table.id, table.facts).where(table.id.in_(ids)))
    return {id_: dict(facts) for id_, facts in rows}


def selected(
    table: type[schema.Measurement] | type[schema.VerdictFit], on: Conditions
) -> tuple[ColumnElement[bool], ...]:
    """What selects rows that were made under these conditions."""
    return (table.hardware_class == on.hardware_class, table.conditions_id.in_(on.ids))


def of_batch(session: Session, batch: schema.Batch) -> Conditions:
    """The conditions that a batch is pinned to, with those that are taken for equal."""
    return equivalences.family(
        session, batch.environment_id, batch.profile, batch.hardware_class, batch.conditions_id
    )


def that_differ(session: Session, mine: Conditions, theirs: Conditions) -> list[str]:
    """The facts in which two sets of conditions differ; none if they count as equal."""
    if (mine.hardware_class, mine.id) == (theirs.hardware_class, theirs.id):
        return []
    facts = facts_by_id(session, [mine.id, theirs.id])
    found = differences(
        facts.get(mine.id, {"hardware_class": mine.hardware_class}),
        facts.get(theirs.id, {"hardware_class": theirs.hardware_class}),
    )
    return found or ["conditions: one of them was not recorded"]


def of_search(session: Session, search_id: str) -> Conditions | None:
    """The conditions of a search's first batch; None if it has none yet."""
    first = session.scalars(
        select(schema.Batch)
        .where(schema.Batch.search_id == search_id)
        .order_by(schema.Batch.id)
        .limit(1)
    ).first()
    return None if first is None else of_batch(session, first)


def class_of(session: Session, conditions: str, asked: str | None) -> str:
    """The hardware class of conditions, which is the one `asked` for.

    Raises:
        InvalidInput: the conditions are unknown, or of another class than asked for.
    """
    row = session.get(schema.ConditionSet, conditions)
    if row is None:
        raise InvalidInput.field(
            "/conditions",
            f"{conditions!r} is unknown; `assay conditions list` shows those that were recorded",
            "unknown_conditions",
        )
    if asked is not None and row.hardware_class != asked:
        raise InvalidInput.field(
            "/conditions",
            f"{conditions!r} is of hardware class {row.hardware_class}, not {asked}; name one of "
            "them alone",
            "unknown_conditions",
        )
    return row.hardware_class


def choose(
    session: Session,
    environment_id: str,
    manifest: EnvironmentManifest,
    profile: str,
    hardware_class: str | None = None,
    conditions: str | None = None,
    *,
    isolated: bool = False,
) -> Conditions:
    """Return the conditions to measure under: those asked for, or those of most live capacity.

    Capacity is the GPUs of live workers that fit, or their CPUs where the profile needs no GPU;
    of equal ones, those whose baseline is measured. Where a hardware class is named and no worker
    of it lives, it is those of its latest result, and unrecorded ones if there is none.

    Raises:
        Unavailable: no worker fits, and no class was named.
        InvalidInput: the conditions are unknown, or of another class than asked for; or the code
            needs isolation and no live worker that fits offers it.
    """
    if conditions is not None:
        hardware_class = class_of(session, conditions, hardware_class)
    need = manifest.profiles[profile]
    fitting = [
        worker
        for worker in _live(session, need)
        if hardware_class is None or worker.hardware_class == hardware_class
    ]
    if isolated and fitting and not any(worker.isolated for worker in fitting):
        raise _no_isolation(sorted({worker.sandbox for worker in fitting}))
    if conditions is not None and hardware_class is not None:
        return equivalences.family(session, environment_id, profile, hardware_class, conditions)
    usable = [worker for worker in fitting if worker.isolated or not isolated]
    if not usable:
        if hardware_class is None:
            raise Unavailable(
                f"no worker fits profile {profile!r} ({need.cpus} CPUs, {need.gpus} GPUs, "
                f"{need.memory_gb} GB); start one, or name hardware_class to queue for it",
                code="no_fitting_worker",
            )
        id_ = _latest(session, environment_id, profile, hardware_class)
        return equivalences.family(session, environment_id, profile, hardware_class, id_)
    return _of_most_capacity(session, environment_id, manifest, profile, usable)


def not_offered(
    session: Session,
    environment_id: str,
    manifest: EnvironmentManifest,
    profile: str,
    on: Conditions,
    *,
    isolated: bool,
) -> list[str] | None:
    """In which facts live workers differ from these conditions, if none of them measures there.

    None if one does, or will once its controls are measured. Without any worker that fits, it
    says so.
    """
    known = equivalences.of_setting(session, environment_id, profile)
    hosts = [
        facts_of(worker, manifest.packages)
        for worker in _live(session, manifest.profiles[profile])
        if worker.isolated or not isolated
    ]
    for host in hosts:
        if host.deciding["hardware_class"] != on.hardware_class:
            continue
        if known.offers(host, on.id) or known.effective(host) in on.ids:
            return None
    if not hosts:
        return [f"none fits its profile{' and isolates code' if isolated else ''}"]
    wanted = facts_by_id(session, [on.id]).get(on.id, {"hardware_class": on.hardware_class})
    found = {
        said
        for host in hosts
        for said in differences(wanted, {n: t for n, t in host.all.items() if n in wanted})
    }
    return sorted(found) or ["its recorded facts: controls showed that they matter"]


def _live(session: Session, need: Profile) -> Sequence[schema.Worker]:
    table = schema.Worker
    return session.scalars(
        select(table).where(
            table.state == WorkerState.ACTIVE.value,
            table.cpus >= need.cpus,
            table.gpus >= need.gpus,
            table.memory_bytes >= need.memory_bytes,
        )
    ).all()


def _latest(session: Session, environment_id: str, profile: str, hardware_class: str) -> str:
    table = schema.Measurement
    found = session.scalars(
        select(table.conditions_id)
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .where(
            table.environment_id == environment_id,
            table.profile == profile,
            table.hardware_class == hardware_class,
            table.kind == MeasurementKind.SCORE.value,
        )
        .order_by(table.id.desc())
        .limit(1)
    ).first()
    return UNRECORDED if found is None else found


def _of_most_capacity(
    session: Session,
    environment_id: str,
    manifest: EnvironmentManifest,
    profile: str,
    workers: Sequence[schema.Worker],
) -> Conditions:
    by_gpus = manifest.profiles[profile].gpus > 0
    known = equivalences.of_setting(session, environment_id, profile)
    capacity: dict[str, int] = defaultdict(int)
    classes: dict[str, str] = {}
    for worker in workers:
        id_ = known.effective(facts_of(worker, manifest.packages))
        capacity[id_] += worker.gpus if by_gpus else worker.cpus
        classes[id_] = worker.hardware_class
    measured = _measured(session, environment_id, profile, list(capacity))
    chosen = max(capacity, key=lambda id_: (capacity[id_], measured.get(id_, 0), id_))
    return equivalences.family(session, environment_id, profile, classes[chosen], chosen)


def _measured(
    session: Session, environment_id: str, profile: str, ids: Sequence[str]
) -> Mapping[str, int]:
    """On how many seeds the unmodified codebase was measured, by conditions."""
    table = schema.Measurement
    query = (
        select(table.conditions_id, func.count())
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .join(schema.Environment, schema.Environment.id == table.environment_id)
        .where(
            table.codebase_id == schema.Environment.codebase,
            table.environment_id == environment_id,
            table.profile == profile,
            table.kind == MeasurementKind.SCORE.value,
            table.conditions_id.in_(ids),
        )
        .group_by(table.conditions_id)
    )
    return dict(session.execute(query).all())


def _no_isolation(sandboxes: list[str]) -> InvalidInput:
    return InvalidInput.field(
        "/options/allow_unisolated",
        "code that a model writes or somebody uploads is started only in isolation, which the "
        f"live workers ({', '.join(sandboxes)}) do not offer: install bubblewrap on their hosts, "
        "or set this to true to start it without",
        "isolation_required",
    )
