"""What the queued measurements of batches wait for, apart from their turn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from assay.domain.conditions import UNRECORDED, Facts, HostFacts, differences
from assay.domain.states import MeasurementState
from assay.storage import conditions, environments, equivalences, schema, workers
from assay.storage.database import Database
from assay.storage.rows import among, run


class Pause(NamedTuple):
    """Measurements that failed for their host and are tried again, the first `at` a time."""

    number: int
    code: str
    at: datetime


class Want(NamedTuple):
    """Measurements for a hardware class of which no worker can take work."""

    number: int
    hardware_class: str


class Unmet(NamedTuple):
    """Measurements under conditions that no worker of their hardware class has: in which facts
    those differ. None if some have yet to show, by controls, that they measure alike."""

    number: int
    conditions: str
    differences: list[str] | None


_TABLE = schema.Measurement
_IS_QUEUED = _TABLE.state == MeasurementState.QUEUED.value
#: Pairs of `batch_id` and the `id` of a measurement that its experiments need, each once.
_OF = (
    select(schema.Experiment.batch_id, schema.ExperimentMeasurement.measurement_id.label("id"))
    .join(schema.Experiment, schema.Experiment.id == schema.ExperimentMeasurement.experiment_id)
    .where(among(schema.Experiment.batch_id))
    .distinct()
    .subquery()
    .c
)
_IS_PAUSED = func.coalesce(_TABLE.not_before > bindparam("now"), False)
_QUEUED = (
    select(_OF.batch_id, _TABLE.hardware_class, _TABLE.conditions_id, _IS_PAUSED, func.count())
    .join(_OF.batch_id.table, _OF.id == _TABLE.id)
    .where(_IS_QUEUED)
    .group_by(_OF.batch_id, _TABLE.hardware_class, _TABLE.conditions_id, _IS_PAUSED)
    .order_by(_TABLE.hardware_class)
)
_CODE = (
    select(schema.Attempt.failure["code"].as_string())
    .where(schema.Attempt.measurement_id == _TABLE.id)
    .order_by(schema.Attempt.number.desc())
    .limit(1)
    .correlate(_TABLE)
    .scalar_subquery()
)
_PAUSED = (
    select(_OF.batch_id, func.count(), _CODE.label("code"), func.min(_TABLE.not_before))
    .join(_OF.batch_id.table, _OF.id == _TABLE.id)
    .where(_IS_QUEUED, _TABLE.not_before > bindparam("now"))
    .group_by(_OF.batch_id, "code")
    .order_by("code")
)


def of_batches(
    db: Database, session: Session, batch_ids: Sequence[str]
) -> dict[str, list[Pause | Want | Unmet]]:
    """Return by batch why queued measurements of its ideas are not started; nothing where they
    only wait for others to end.

    The number of queries depends on how many environments, profiles and hardware classes there
    are, not on the batches.
    """
    now = db.now(session)
    rows = run(session, _QUEUED, ids=list(batch_ids), now=now).all()
    found: dict[str, list[Pause | Want | Unmet]] = {id_: [] for id_ in batch_ids}
    if any(paused for *_, paused, _ in rows):
        for batch_id, pause in _pauses(session, batch_ids, now):
            found[batch_id].append(pause)
    if rows:
        at_work = workers.classes_at_work(db, session)
        wanted: Counter[tuple[str, str]] = Counter()
        queued: Counter[tuple[str, str]] = Counter()
        for batch_id, hardware_class, conditions_id, paused, number in rows:
            queued[batch_id, conditions_id] += number
            if not paused and hardware_class not in at_work:
                wanted[batch_id, hardware_class] += number
        for (batch_id, hardware_class), number in wanted.items():
            found[batch_id].append(Want(number, hardware_class))
        for batch_id, each in _unmet(db, session, queued):
            found[batch_id].append(each)
    return found


def _pauses(
    session: Session, batch_ids: Sequence[str], now: datetime
) -> Iterator[tuple[str, Pause]]:
    rows = run(session, _PAUSED, ids=list(batch_ids), now=now)
    for batch_id, count, why, at in rows:
        yield batch_id, Pause(count, why or "", at)


def _unmet(
    db: Database, session: Session, queued: Mapping[tuple[str, str], int]
) -> Iterator[tuple[str, Unmet]]:
    """`queued`: how many measurements are, by batch and conditions."""
    table, ids = schema.Batch, {id_ for id_, on in queued if on != UNRECORDED}
    if not ids:
        return
    batches = session.scalars(select(table).where(table.id.in_(ids)))
    settings: dict[tuple[str, str, str], list[schema.Batch]] = defaultdict(list)
    for batch in batches:
        if batch.conditions_id != UNRECORDED and (batch.id, batch.conditions_id) in queued:
            settings[batch.environment_id, batch.profile, batch.hardware_class].append(batch)
    for setting, members in settings.items():
        found = unmet(db, session, *setting, {batch.conditions_id for batch in members})
        for batch in members:
            on = batch.conditions_id
            if on in found:
                yield batch.id, Unmet(queued[batch.id, on], on, found[on])


def unmet(
    db: Database,
    session: Session,
    environment: str,
    profile: str,
    hardware_class: str,
    wanted: Collection[str],
) -> dict[str, list[str] | None]:
    """Return for each of the conditions under which no worker measures what `Unmet` says of it.

    None of them is there if no worker of the hardware class can take work at all.
    """
    known = equivalences.of_setting(session, environment, profile)
    packages = environments.manifest(session, environment).packages
    hosts = [
        conditions.facts_of(worker, packages)
        for worker in workers.at_work(db, session, hardware_class)
    ]
    if not hosts:
        return {}
    facts = conditions.facts_by_id(session, sorted(wanted))
    return {
        id_: None
        if any(known.effective(host) == id_ for host in hosts)
        else _differences(facts.get(id_, {}), hosts)
        for id_ in wanted
        if not any(known.offers(host, id_) for host in hosts)
    }


def _differences(wanted: Facts, hosts: Sequence[HostFacts]) -> list[str]:
    found = {
        said
        for host in hosts
        for said in differences(wanted, {n: t for n, t in host.all.items() if n in wanted})
    }
    return sorted(found)
