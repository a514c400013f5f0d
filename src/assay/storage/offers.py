"""Which workers may measure which settings, so that what is compared can be compared.

The scheduler decides by this, and the API says by it why something waits.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.environment import EnvironmentManifest
from assay.domain.conditions import HostFacts, host_facts
from assay.domain.errors import AssayError
from assay.storage import environments, equivalences, schema
from assay.storage.equivalences import Known
from assay.storage.placing import Host, Waiting

log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class Pinned:
    """An environment, profile and conditions that something waits for."""

    environment: str
    profile: str
    conditions: str


class Offers:
    """Knows the facts of live workers; one that is kept reads only those of new ones.

    `waiting` is what the last `find` saw.
    """

    def __init__(self) -> None:
        self._infos: dict[tuple[str, str], dict[str, Any]] = {}
        self._facts: dict[tuple[str, str, tuple[str, ...]], HostFacts] = {}
        self.waiting: dict[Pinned, tuple[Known, EnvironmentManifest]] = {}

    def find(
        self, session: Session, shapes: Sequence[Waiting], hosts: Sequence[Host]
    ) -> dict[str, frozenset[str]]:
        """Return the settings that each worker may measure now."""
        self._read(session, hosts)
        self.waiting = {}
        for each in sorted({_pinned(shape) for shape in shapes if shape.setting}):
            with apart(each):
                self.waiting[each] = (
                    equivalences.of_setting(session, each.environment, each.profile),
                    environments.manifest(session, each.environment),
                )
        found: dict[str, set[str]] = defaultdict(set)
        for shape in shapes:
            if (each := _pinned(shape)) not in self.waiting:
                continue
            known, manifest = self.waiting[each]
            for host in hosts:
                facts = self.facts_of(host, manifest.packages)
                if host.hardware_class == shape.hardware_class and known.offers(
                    facts, each.conditions
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

    def facts_of(self, host: Host, packages: tuple[str, ...]) -> HostFacts:
        """Return the facts of a worker that `find` was asked about."""
        key = (host.worker, host.incarnation, packages)
        if key not in self._facts:
            info = self._infos.get(key[:2], {})
            self._facts[key] = host_facts(host.hardware_class, info, packages)
        return self._facts[key]


@contextmanager
def apart(each: Pinned) -> Iterator[None]:
    """Leave out an environment that cannot be scheduled, such as one of a newer version."""
    try:
        yield
    except AssayError:  # the leadership or the database is lost, and that ends the tick
        raise
    except Exception:  # whatever is wrong with this environment, the others are scheduled
        log.exception("%s, %s: cannot be scheduled", each.environment, each.profile)


def _pinned(shape: Waiting) -> Pinned:
    return Pinned(shape.environment_id, shape.profile, shape.conditions_id)
