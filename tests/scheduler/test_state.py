"""What the scheduler reads: heads of the queue by shape, through the index alone."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select, text, update

from assay.domain.conditions import Conditions
from assay.domain.ids import new_id
from assay.domain.placement import Policy
from assay.environments.catalog import Catalog
from assay.storage import schema, shapes
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.scheduler.state import (
    demands,
    first_in_queue,
    supplies,
    view,
    waiting,
    waiting_shapes,
)
from tests.scheduler.moments import scheduler
from tests.storage.lifecycle import CLASS, World


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


def fill(world: World, number: int) -> None:
    """That many queued measurements of one shape, and a few shapes that nothing waits for."""
    first = world.measurement_of_one()
    with world.db.write() as session:
        profile = world.profile(session)
        for gpus in range(1, 6):
            shapes.find(
                session,
                shapes.Setting("", "", Conditions(CLASS)),
                profile.model_copy(update={"gpus": gpus}),
                needs_isolation=False,
            )
        row = session.get_one(schema.Measurement, first)
        values = {c.key: getattr(row, c.key) for c in schema.Measurement.__table__.columns}
        for start in range(1, number, 1000):
            rows = [
                values | {"id": new_id("mea"), "seed": seed}
                for seed in range(start, min(number, start + 1000))
            ]
            session.connection().execute(insert(schema.Measurement), rows)


def test_only_heads_are_read_and_only_what_could_start(world: World) -> None:
    fill(world, 50)
    policy = Policy()
    with world.db.read() as session:
        seen = view(world.db, session, 1800)
        free, _ = supplies(seen, 60, 1800, policy)
        heads = demands(session, waiting(session, seen.now), seen.now, free, policy)
        ids = session.scalars(select(schema.Measurement.id).order_by(schema.Measurement.id)).all()
    assert [d.measurement for d in heads] == list(ids[: 4 + policy.reservations])
    assert heads[0].bound_seconds == 5 * (10 + 2 * 10) + 60
    assert heads[0].batch_at > 0


def test_nothing_is_read_when_nothing_could_start(world: World) -> None:
    fill(world, 10)
    clock = scheduler(world)
    assert clock.ticks.decisions["assigned"] == 4
    with world.db.read() as session:
        seen = view(world.db, session, 1800)
        free, _ = supplies(seen, 60, 1800, Policy())
        assert demands(session, waiting(session, seen.now), seen.now, free, Policy()) == []


@pytest.mark.postgres
def test_the_queue_is_looked_at_through_its_index(
    postgres: Database, store: LocalStore, catalog: Catalog
) -> None:
    world = World.create(postgres, store, catalog)
    fill(world, 20_000)
    with postgres.write() as session:
        session.execute(text("ANALYZE measurement"))
    with postgres.read() as session:
        now = postgres.now(session)
        (shape,) = waiting(session, now)
        assert len(session.execute(waiting_shapes(now)).all()) == 6
        plans = [
            _explain(session, waiting_shapes(now)),
            _explain(
                session, _last_statement(session, lambda: first_in_queue(session, shape, now, 40))
            ),
        ]
    for plan in plans:
        assert "ix_measurement_queue" in plan
        assert "Seq Scan on measurement" not in plan
        assert "Sort" not in plan, plan


def _last_statement(session, call):  # type: ignore[no-untyped-def]
    """The statement that a call executes."""
    from sqlalchemy import event

    seen = []
    event.listen(session, "do_orm_execute", lambda state: seen.append(state.statement))
    call()
    return seen[0]


def _explain(session, statement):  # type: ignore[no-untyped-def]
    compiled = statement.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
    rows = session.execute(text("EXPLAIN (ANALYZE) " + str(compiled).replace(":", r"\:"))).all()
    return "\n".join(row[0] for row in rows)


def test_measurements_of_an_older_version_are_given_shapes(world: World) -> None:
    measurement = world.measurement_of_one()
    with world.db.write() as session:
        session.execute(update(schema.Measurement).values(shape_id=None, batch_at=None))
    assert scheduler(world).ticks.decisions["assigned"] == 1
    with world.db.read() as session:
        row = session.get_one(schema.Measurement, measurement)
        assert row.batch_at == row.created_at
        assert row.shape_id is not None
