"""Which workers offer which settings, and what becomes of hosts that are new to one.

A host whose recorded facts nobody has measured with yet measures the unmodified codebase before
anything else of a setting; `assay/storage/equivalences.py` says what follows from that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager

from sqlalchemy.orm import Session

from assay.contracts.environment import EnvironmentManifest, Profile
from assay.domain.conditions import OWN_OWNER, Conditions
from assay.domain.states import MeasurementKind
from assay.storage import conditions, environments, equivalences, measurements, schema
from assay.storage.database import Database
from assay.storage.equivalences import SEEDS, Equality, Known
from assay.storage.measurements import Identity, Terms
from assay.storage.offers import Offers, Pinned, apart
from assay.storage.placing import Host, Waiting
from assay.storage.rows import get

log = logging.getLogger(__name__)
#: That of the most urgent batch: a host can do nothing else there before.
PRIORITY = 100
#: A setting, and the hosts that are or become comparable in it.
Unknown = tuple[Pinned, list[equivalences.Host]]


class Newcomers:
    """Knows the facts of live workers. `write` begins a transaction of the leader."""

    def __init__(self, db: Database, write: Callable[[], AbstractContextManager[Session]]) -> None:
        self._db = db
        self._write = write
        self._offers = Offers()

    def offers(
        self, session: Session, shapes: Sequence[Waiting], hosts: Sequence[Host]
    ) -> dict[str, frozenset[str]]:
        """The settings that each worker may measure now."""
        return self._offers.find(session, shapes, hosts)

    def ended(self, session: Session) -> list[schema.Equivalence]:
        """The hosts whose controls have ended."""
        pending = equivalences.pending(session)
        return [row for row in pending if equivalences.have_ended(session, row)]

    def decide(self, ended: Sequence[schema.Equivalence]) -> bool:
        """Decide about hosts whose controls have ended. Whether anything changed."""
        if not ended:
            return False
        changed = False
        with self._write() as session:
            now = self._db.now(session)
            for row in map(session.merge, ended):
                with apart(Pinned(row.environment_id, row.profile, row.equals_id)):
                    metric = environments.manifest(session, row.environment_id).metric
                    again = equivalences.to_repeat(session, row)
                    if again:
                        own = get(session, schema.ConditionSet, row.conditions_id, "conditions")
                        on = Conditions(own.hardware_class, (own.id,))
                        of = (row.environment_id, row.profile)
                        self._request(session, *of, again, on, MeasurementKind.CONTROL)
                    is_decided = equivalences.decide(session, row, metric.direction, now)
                    changed = changed or is_decided or bool(again)
                    if is_decided:
                        log.info(
                            "%s, %s: hosts of %s are %s to %s: %s",
                            *(row.environment_id, row.profile, row.conditions_id),
                            *(row.state, row.equals_id, row.evidence),
                        )
        return changed

    def unknown(self, hosts: Sequence[Host], at_work: Collection[str]) -> list[Unknown]:
        """The settings that `offers` saw last, with their hosts, where any of these is new.

        `hosts` are all that live, `at_work` the workers among them that get work: one that is
        cordoned or drains will be back, and others are compared with it.
        """
        found: list[Unknown] = []
        for each, (known, manifest) in self._offers.waiting.items():
            with apart(each):
                fitting = self._fitting(each, known, manifest, hosts, at_work)
                is_new = any(known.state(host.facts.narrow) is None for host in fitting)
                is_there = any(known.is_defined_by(host.facts) for host in fitting)
                if fitting and (is_new or not is_there):
                    found.append((each, fitting))
        return found

    def admit(self, unknown: Sequence[Unknown]) -> bool:
        """Introduce hosts to settings. Whether anything changed."""
        changed = False
        for each, fitting in unknown:
            with apart(each), self._write() as session:
                changed |= self._introduce(session, each, fitting)
        return changed

    def _fitting(
        self,
        each: Pinned,
        known: Known,
        manifest: EnvironmentManifest,
        hosts: Iterable[Host],
        at_work: Collection[str],
    ) -> list[equivalences.Host]:
        """The hosts that have these conditions, but for recorded facts, and that the profile fits:
        others could measure nothing that the rest is compared with."""
        need = manifest.profiles[each.profile]
        found = []
        for host in hosts:
            facts = self._offers.facts_of(host, manifest.packages)
            shared = known.canonical(facts.wide) == each.conditions
            if shared and facts.narrow != facts.wide and _fits(need, host):
                offered = host.gpus if need.gpus else host.cpus
                capacity = offered if host.worker in at_work else 0
                found.append(equivalences.Host(facts, capacity))
        return found

    def _introduce(
        self, session: Session, each: Pinned, hosts: Sequence[equivalences.Host]
    ) -> bool:
        known = equivalences.of_setting(session, each.environment, each.profile)
        environment = get(session, schema.Environment, each.environment, "environment")
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
        own = [id_ for id_, state in new.items() if state is Equality.PENDING]
        of = (each.environment, each.profile)
        if own:
            self._request(session, *of, SEEDS, on, MeasurementKind.SCORE)
        for id_ in own:
            there = Conditions(hardware_class, (id_,))
            self._request(session, *of, SEEDS, there, MeasurementKind.CONTROL)
        return True

    def _request(
        self,
        session: Session,
        environment_id: str,
        profile: str,
        seeds: Iterable[int],
        on: Conditions,
        kind: MeasurementKind,
    ) -> None:
        """Ask for measurements of the unmodified codebase."""
        environment = get(session, schema.Environment, environment_id, "environment")
        need = environments.manifest(session, environment_id).profiles[profile]
        terms = Terms(OWN_OWNER, self._db.now(session), PRIORITY, needs_isolation=False)
        for seed in seeds:
            identity = Identity(environment.codebase, environment_id, profile, seed, on, kind)
            measurements.request(self._db, session, identity, need, terms)


def _fits(need: Profile, host: Host) -> bool:
    return (
        host.cpus >= need.cpus
        and host.gpus >= need.gpus
        and host.memory_bytes >= need.memory_bytes
    )
