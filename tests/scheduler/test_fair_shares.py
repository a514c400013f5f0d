"""Two owners, one with a hundred times the ideas, on hosts that are not there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import insert, select

from assay.domain.ids import new_id
from assay.environments.catalog import Catalog
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.scheduler.machine import SUCCESS, Host
from tests.scheduler.moments import scheduler
from tests.storage.lifecycle import World

#: Slots of a host.
CPUS = 4


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def submit(world: World, owner: str, ideas: int) -> None:
    """A batch of an owner with so many measurements, of which only the first is an idea's."""
    batch = world.submit(f"the idea of {owner}", owner=owner)
    first = world.implement(world.experiments(batch)[0].id, f"{owner} = 1\n")
    with world.db.write() as session:
        row = session.get_one(schema.Measurement, first)
        values = {c.key: getattr(row, c.key) for c in schema.Measurement.__table__.columns}
        rows = [values | {"id": new_id("mea"), "seed": seed} for seed in range(1, ideas)]
        session.connection().execute(insert(schema.Measurement), rows)


def rounds(world: World, hosts: list[Host]) -> Iterator[Counter[str]]:
    """Of whom the measurements are that run, each time before all of them end."""
    clock = scheduler(world)
    while True:
        clock.tick()
        for host in hosts:
            host.sync()
            for attempt in sorted(host.offered):
                host.claim(attempt)
        running = [each.measurement_id for host in hosts for each in host.runs.values()]
        if not running:
            return
        with world.db.read() as session:
            table = schema.Measurement
            owners = session.scalars(select(table.owner).where(table.id.in_(running)))
            yield Counter(owners)
        for host in hosts:
            for attempt in sorted(host.runs):
                host.end(attempt, SUCCESS)
            host.sync()


def test_each_owner_has_half_while_both_have_work(world: World) -> None:
    few = 2 * CPUS
    submit(world, "crowd", 100 * few)
    submit(world, "few", few)
    seen = rounds(world, [Host(world), Host(world.another("v"))])
    assert [next(seen) for _ in range(3)] == [
        {"crowd": CPUS, "few": CPUS},
        {"crowd": CPUS, "few": CPUS},
        {"crowd": 2 * CPUS},
    ]


@pytest.mark.slow
def test_shares_make_the_whole_no_longer(world: World) -> None:
    """No slot is idle while anything waits: 505 measurements take 64 rounds of 8."""
    few = 5
    submit(world, "crowd", 100 * few)
    submit(world, "few", few)
    seen = list(rounds(world, [Host(world), Host(world.another("v"))]))
    assert len(seen) == -(-101 * few // (2 * CPUS))
    assert seen[0] == {"crowd": CPUS, "few": CPUS}
    assert sum(each["few"] for each in seen) == few
