"""What the scheduler reads: heads of the queue by shape, through the index alone."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import insert, select, text, update

from assay.domain.conditions import Conditions
from assay.domain.ids import new_id
from assay.domain.placement import Demand, Policy, place
from assay.environments.catalog import Catalog
from assay.storage import schema, shapes
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from assay.storage.placing import (
    WAITING_SHAPES,
    Rules,
    demands,
    first_in_queue,
    supplies,
    view,
    waiting,
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
        free = supplies(seen, Rules(policy, 60, 1800))
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
        free = supplies(seen, Rules(Policy(), 60, 1800))
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
        assert len(session.execute(WAITING_SHAPES, {"now": now}).all()) == 6
        read = _statements(session, lambda: first_in_queue(session, shape, now, 40))
        plans = [_explain(session, each) for each in (WAITING_SHAPES.params(now=now), *read)]
    for plan in plans:
        assert "ix_measurement_queue" in plan
        assert "Seq Scan on measurement" not in plan
        assert "Sort" not in plan, plan


def _statements(session, call):  # type: ignore[no-untyped-def]
    """The statements that a call executes."""
    from sqlalchemy import event

    seen = []
    event.listen(
        session,
        "do_orm_execute",
        lambda state: seen.append(state.statement.params(**(state.parameters or {}))),
    )
    call()
    return seen


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


def next_in_queue(world: World, limit: int, **shares: float) -> Counter[str]:
    """Of which owners and batches the next placements are."""
    policy = Policy(starting_per_worker=limit, shares=shares)
    with world.db.read() as session:
        seen = view(world.db, session, 1800)
        free = supplies(seen, Rules(policy, 60, 1800))
        heads = demands(session, waiting(session, seen.now), seen.now, free, policy)
    chosen = {each.measurement for each in place(heads, free, seen.now.timestamp(), policy)}
    with world.db.read() as session:
        return Counter(
            session.scalars(
                select(schema.Batch.labels["name"].as_string())
                .join(schema.Experiment, schema.Experiment.batch_id == schema.Batch.id)
                .join(
                    schema.ExperimentMeasurement,
                    schema.ExperimentMeasurement.experiment_id == schema.Experiment.id,
                )
                .where(schema.ExperimentMeasurement.measurement_id.in_(chosen))
            )
        )


def submit(world: World, name: str, ideas: int, owner: str, **options: object) -> str:
    """Submit a batch for an owner, and implement its ideas."""
    batch = world.submit(*(f"{name} {n}" for n in range(ideas)), owner=owner, **options)
    with world.db.write() as session:
        session.get_one(schema.Batch, batch).labels = {"name": name}
    for number, experiment in enumerate(world.experiments(batch)):
        world.implement(experiment.id, f"{name} = {number}\n")
    return batch


def test_owners_and_their_batches_have_equal_shares_of_what_is_free(world: World) -> None:
    """Though one has submitted far more, and long before the others."""
    world.restart("two", cpus=8)
    submit(world, "crowd", 20, "a")
    submit(world, "few", 3, "a")
    submit(world, "other", 5, "b")
    assert next_in_queue(world, 8) == {"crowd": 2, "few": 2, "other": 4}
    assert next_in_queue(world, 8, b=3.0)["other"] == 5, "all that it has"


def test_what_runs_counts_against_a_share(world: World) -> None:
    world.restart("two", cpus=8)
    crowd = submit(world, "crowd", 20, "a")
    for experiment in world.experiments(crowd)[:4]:
        attempt = world.assign(world.measurements(experiment.id)[0])
        assert attempt is not None
        world.claim(attempt)
    submit(world, "other", 5, "b")
    assert next_in_queue(world, 8) == {"other": 4}


def test_the_queue_is_read_in_as_many_statements_for_many_batches_as_for_few(
    world: World,
) -> None:
    """And what is read is the first of each batch, the highest priority and the oldest first."""
    names = [f"batch {number}" for number in range(12)]
    for number, name in enumerate(names):
        submit(world, name, 3, f"owner {number % 2}", priority=number // 4)
    with world.db.read() as session:
        ideas = set(session.scalars(select(schema.ExperimentMeasurement.measurement_id)))

    def read(limit: int) -> tuple[list[Demand], int]:
        with world.db.read() as session:
            now = world.db.now(session)
            (shape,) = waiting(session, now)
            found: list[Demand] = []
            seen = _statements(
                session, lambda: found.extend(first_in_queue(session, shape, now, limit))
            )
        return [each for each in found if each.measurement in ideas], len(seen)

    found, statements = read(100)
    assert statements == 1
    assert len(found) == 36
    assert len({each.measurement for each in found}) == 36
    for owner in ("owner 0", "owner 1"):
        own = [each for each in found if each.owner == owner]
        assert [each.priority for each in own] == [2] * 6 + [1] * 6 + [0] * 6
    few, _ = read(2)
    assert Counter(each.owner for each in few) == {"owner 0": 2, "owner 1": 2}
    assert {each.priority for each in few} == {2}
    assert {each.batch for each in few} == {each.batch for each in found if each.priority == 2}, (
        "batches of an owner take turns"
    )


def test_a_priority_does_not_overtake_another_owner(world: World) -> None:
    world.restart("two", cpus=8)
    submit(world, "low", 9, "a")
    submit(world, "high", 3, "a", priority=100)
    submit(world, "other", 9, "b")
    assert next_in_queue(world, 8) == {"high": 3, "low": 1, "other": 4}
