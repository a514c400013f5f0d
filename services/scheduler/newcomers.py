"""Which workers offer which settings, and what becomes of hosts that are new to one.

A host whose recorded facts nobody has measured with yet measures the unmodified codebase before
anything else of a setting; `assay/storage/equivalences.py` says what follows from that.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.environment import Profile
from assay.domain.conditions import OWN_OWNER, Conditions, HostFacts, host_facts
from assay.domain.errors import AssayError
from assay.domain.states import MeasurementKind, MeasurementState
from assay.storage import conditions, environments, equivalences, measurements, schema
from assay.storage.database import Database
from assay.storage.equivalences import SEEDS, Equality, Known
from assay.storage.measurements import Identity, Terms
from assay.storage.rows import get
from services.scheduler.state import Host, Waiting

log = logging.getLogger(__name__)
#: That of the most urgent batch: a host can do nothing else there before.
PRIORITY = 100


@dataclass(frozen=True, order=True)
class _Pinned:
    """An environment, profile and conditions that something waits for."""

    environment: str
    profile: str
    conditions: str


class Newcomers:
    """Knows the facts of live workers. `write` begins a transaction of the leader."""

    def __init__(self, db: Database, write: Callable[[], AbstractContextManager[Session]]) -> None:
        self._db = db
        self._write = write
        self._infos: dict[tuple[str, str], dict[str, Any]] = {}
        self._facts: dict[tuple[str, str, tuple[str, ...]], HostFacts] = {}
        self._known: dict[_Pinned, Known] = {}

    def offers(
        self, session: Session, shapes: Sequence[Waiting], hosts: Sequence[Host]
    ) -> dict[str, frozenset[str]]:
        """The settings that each worker may measure now."""
        self._read(session, hosts)
        pinned = {shape.id: _pinned(shape) for shape in shapes if shape.setting}
        self._known = {
            each: equivalences.of_setting(session, each.environment, each.profile)
            for each in set(pinned.values())
        }
        found: dict[str, set[str]] = defaultdict(set)
        for shape in shapes:
            if not shape.setting:
                continue
            each = pinned[shape.id]
            with _apart(each):
                packages = environments.manifest(session, each.environment).packages
                for host in hosts:
                    if host.hardware_class == shape.hardware_class and self._known[each].offers(
                        self._facts_of(host, packages), each.conditions
                    ):
                        found[host.worker].add(shape.setting)
        return {worker: frozenset(settings) for worker, settings in found.items()}

    def _read(self, session: Session, hosts: Sequence[Host]) -> None:
        """Keep the facts of these workers, and of no others."""
        keys = {(host.worker, host.incarnation) for host in hosts}
        self._infos = {key: info for key, info in self._infos.items() if key in keys}
        self._facts = {key: facts for key, facts in self._facts.items() if key[:2] in keys}
        new = keys - self._infos.keys()
        if not new:
            return
        table = schema.Worker
        rows = session.execute(
            select(table.id, table.incarnation, table.info).where(
                table.id.in_({worker for worker, _ in new})
            )
        )
        for worker, incarnation, info in rows:
            if (worker, incarnation) in new:
                self._infos[worker, incarnation] = info

    def _facts_of(self, host: Host, packages: tuple[str, ...]) -> HostFacts:
        key = (host.worker, host.incarnation, packages)
        if key not in self._facts:
            info = self._infos.get(key[:2], {})
            self._facts[key] = host_facts(host.hardware_class, info, packages)
        return self._facts[key]

    def decide(self) -> bool:
        """Decide about hosts whose controls have ended. Whether anything changed."""
        with self._db.read() as session:
            ended = [row for row in equivalences.pending(session) if _has_ended(session, row)]
        if not ended:
            return False
        changed = False
        with self._write() as session:
            now = self._db.now(session)
            for row in map(session.merge, ended):
                with _apart(_Pinned(row.environment_id, row.profile, row.equals_id)):
                    metric = environments.manifest(session, row.environment_id).metric
                    again = equivalences.to_repeat(session, row)
                    for seed in again:
                        self._ask_again(session, row, seed, now)
                    is_decided = equivalences.decide(session, row, metric.direction, now)
                    changed = changed or is_decided or bool(again)
                    if is_decided:
                        log.info(
                            "%s, %s: hosts of %s are %s to %s: %s",
                            *(row.environment_id, row.profile, row.conditions_id),
                            *(row.state, row.equals_id, row.evidence),
                        )
        return changed

    def _ask_again(
        self, session: Session, row: schema.Equivalence, seed: int, now: datetime
    ) -> None:
        """Ask for the next replicate of a control that says nothing of its host's results."""
        environment = get(session, schema.Environment, row.environment_id, "environment")
        own = get(session, schema.ConditionSet, row.conditions_id, "conditions")
        profile = environments.manifest(session, row.environment_id).profiles[row.profile]
        on = Conditions(own.hardware_class, (own.id,))
        identity = Identity(
            environment.codebase, environment.id, row.profile, seed, on, MeasurementKind.CONTROL
        )
        terms = Terms(OWN_OWNER, now, PRIORITY, needs_isolation=False)
        measurements.request(self._db, session, identity, profile, terms)

    def admit(
        self, shapes: Sequence[Waiting], hosts: Sequence[Host], at_work: Collection[str]
    ) -> bool:
        """Introduce hosts to the settings that wait. Whether anything changed.

        `hosts` are all that live, `at_work` the workers among them that get work: one that is
        cordoned or drains will be back, and others are compared with it.
        """
        changed = False
        for each in sorted({_pinned(shape) for shape in shapes if shape.setting}):
            with _apart(each):
                known = self._known[each]
                fitting = self._fitting(each, known, hosts, at_work)
                is_new = any(known.state(host.facts.narrow) is None for host in fitting)
                is_there = any(known.is_defined_by(host.facts) for host in fitting)
                if fitting and (is_new or not is_there):
                    with self._write() as session:
                        changed |= self._introduce(session, each, fitting)
        return changed

    def _fitting(
        self, each: _Pinned, known: Known, hosts: Iterable[Host], at_work: Collection[str]
    ) -> list[equivalences.Host]:
        """The hosts that have these conditions, but for recorded facts, and that the profile fits:
        others could measure nothing that the rest is compared with."""
        with self._db.read() as session:
            manifest = environments.manifest(session, each.environment)
        need = manifest.profiles[each.profile]
        by_gpus = need.gpus > 0
        found = []
        for host in hosts:
            if not _fits(need, host):
                continue
            facts = self._facts_of(host, manifest.packages)
            shared = known.canonical(facts.wide) == each.conditions
            if shared and facts.narrow != facts.wide:
                offered = host.gpus if by_gpus else host.cpus
                capacity = offered if host.worker in at_work else 0
                found.append(equivalences.Host(facts, capacity))
        return found

    def _introduce(
        self, session: Session, each: _Pinned, hosts: Sequence[equivalences.Host]
    ) -> bool:
        known = equivalences.of_setting(session, each.environment, each.profile)
        environment = get(session, schema.Environment, each.environment, "environment")
        manifest = environments.manifest(session, each.environment)
        now = self._db.now(session)
        hardware_class = hosts[0].facts.deciding["hardware_class"]
        on = equivalences.family(
            session, each.environment, each.profile, hardware_class, each.conditions
        )
        measured = measurements.baseline_values(session, environment, each.profile, on)
        new = equivalences.introduced(
            known,
            each.conditions,
            hosts,
            has_results=equivalences.has_results(session, each.environment, each.profile, on),
            has_baseline=measured.keys() >= set(SEEDS),
        )
        if not new:
            return False
        conditions.store(session, now, [host.facts for host in hosts])
        equivalences.add(session, each.environment, each.profile, each.conditions, new, now)
        if Equality.PENDING in new.values():
            terms = Terms(OWN_OWNER, now, PRIORITY, needs_isolation=False)
            wanted = [(on, MeasurementKind.SCORE)] + [
                (Conditions(on.hardware_class, (id_,)), MeasurementKind.CONTROL)
                for id_, state in new.items()
                if state is Equality.PENDING
            ]
            for where, kind in wanted:
                for seed in SEEDS:
                    identity = Identity(
                        environment.codebase, environment.id, each.profile, seed, where, kind
                    )
                    measurements.request(
                        self._db, session, identity, manifest.profiles[each.profile], terms
                    )
        return True


@contextmanager
def _apart(each: _Pinned) -> Iterator[None]:
    """Leave out one environment that this version cannot read, say: others are scheduled."""
    try:
        yield
    except AssayError:  # the leadership or the database is lost, and that ends the tick
        raise
    except Exception:
        log.exception("%s, %s: cannot be scheduled", each.environment, each.profile)


def _pinned(shape: Waiting) -> _Pinned:
    return _Pinned(shape.environment_id, shape.profile, shape.conditions_id)


def _fits(need: Profile, host: Host) -> bool:
    return (
        host.cpus >= need.cpus
        and host.gpus >= need.gpus
        and host.memory_bytes >= need.memory_bytes
    )


def _has_ended(session: Session, row: schema.Equivalence) -> bool:
    made = equivalences.controls(session, row)
    return all(seed in made and MeasurementState(made[seed].state).is_terminal for seed in SEEDS)
