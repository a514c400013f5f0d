"""Hosts with other software: kept apart, or measured first and then taken for equal."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import inspect, select, update

from assay.domain.conditions import Conditions
from assay.domain.errors import Conflict, InvalidInput
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.metrics import Direction
from assay.domain.states import AttemptState, FailureStage, MeasurementState
from assay.environments.catalog import Catalog
from assay.storage import (
    conditions,
    environments,
    equivalences,
    measurements,
    schema,
    statistics,
    waiting,
    workers,
)
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.equivalences import Equality
from assay.storage.objects import LocalStore
from assay.storage.rows import get
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import CRASH, World

INFO: dict[str, Any] = {
    "held_out_key": "key",
    "evaluation": 1,
    "torch": "2.9.0",
    "driver": "570.1",
    "cpu_model": "AMD EPYC",
    "python": "3.12.3",
    "numpy": "2.2.1",
}
#: What the unmodified codebase reaches by seed on a host like the first; seeds differ by about .1.
VALUES = {0: 1.0, 1: 1.1, 2: 0.9, 3: 1.05, 4: 0.95}


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    world = World.create(db, store, catalog)
    world.restart("two", info=INFO)
    return world


def pinned(world: World, **asked: Any) -> Conditions:
    """The conditions that a batch gets now."""
    with world.db.write() as session:
        manifest = environments.manifest(session, world.environment)
        conditions.store_live(world.db, session, manifest.packages)
        return conditions.choose(session, world.environment, manifest, "tiny", **asked)


class Cluster:
    """A scheduler and the workers it places on; each measures as its `shift` says."""

    def __init__(self, world: World) -> None:
        self.worlds = {world.worker: world}
        self.shifts = {world.worker: 0.0}
        self.ran: list[tuple[str, str, str, int]] = []
        self.db = world.db
        settings = SchedulerSettings(leader_seconds=60)
        self.scheduler = Scheduler(world.db, settings, lambda: None, holder="test")

    def add(self, world: World, shift: float = 0.0) -> World:
        self.worlds[world.worker], self.shifts[world.worker] = world, shift
        return world

    def run(self, most: int = 40) -> None:
        """Place and measure until nothing is placed any more."""
        for _ in range(most):
            self.scheduler.tick()
            if not self._finish_all():
                return

    def _finish_all(self) -> bool:
        with self.db.read() as session:
            live = session.scalars(
                select(schema.Attempt).where(schema.Attempt.state == "assigned")
            ).all()
        for attempt in live:
            world = self.worlds[attempt.worker_id]
            with self.db.read() as session:
                of = session.get_one(schema.Measurement, attempt.measurement_id)
            self.ran.append((world.name, of.kind, of.conditions_id, of.seed))
            value = VALUES[of.seed % len(VALUES)] + self.shifts[attempt.worker_id]
            world.run(attempt)
            outcome = Outcome(
                AttemptState.SUCCEEDED, metric=value, metrics={}, started=True, seconds=1.0
            )
            world.finish(attempt, outcome)
        return bool(live)

    def ran_on(self, world: World) -> list[tuple[str, int]]:
        return [(kind, seed) for name, kind, _, seed in self.ran if name == world.name]


def equality(world: World, narrow: str) -> str | None:
    with world.db.read() as session:
        row = session.get(schema.Equivalence, (world.environment, "tiny", narrow))
        return None if row is None else row.state


def narrow(**changes: Any) -> str:
    return conditions.host_facts("cpu", INFO | changes).narrow


def test_hosts_of_other_torch_or_key_share_nothing(world: World) -> None:
    cluster = Cluster(world)
    others = [
        cluster.add(world.another("torch", info=INFO | {"torch": "2.8.1"})),
        cluster.add(world.another("key", info=INFO | {"held_out_key": "other"})),
    ]
    on = pinned(world)
    world.submit("one", on=on, baseline_seeds=5)
    cluster.run()
    mine = [each for each in [world, *others] if cluster.ran_on(each)]
    assert len(mine) == 1
    assert len(cluster.ran) == 5
    assert {conditions_id for _, _, conditions_id, _ in cluster.ran} == {on.id}
    other = pinned(world, conditions=conditions.host_facts("cpu", others[0].row().info).wide)
    assert other.id != on.id
    world.submit("one", on=other, baseline_seeds=5)
    cluster.run()
    assert len(cluster.ran) == 10, "measured again, shared with nobody"
    assert cluster.ran_on(others[0]) == [("score", seed) for seed in range(5)]


def test_most_live_capacity_decides_then_what_is_measured(world: World) -> None:
    other = world.another("torch", info=INFO | {"torch": "2.8.1"}, cpus=16)
    theirs = conditions.host_facts("cpu", other.row().info).wide
    assert pinned(world).id == theirs
    world.another("like the first", info=INFO, cpus=12)
    mine = conditions.host_facts("cpu", INFO).wide
    cluster = Cluster(world)
    world.submit("one", on=pinned(world, conditions=mine), baseline_seeds=1)
    cluster.run()
    assert pinned(world).id == mine, "16 CPUs each, and a baseline"


def test_a_patch_update_is_measured_first_and_then_taken_for_equal(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=5)
    cluster.run()
    updated = [
        cluster.add(world.another(f"updated {i}", info=INFO | {"driver": "570.2"}))
        for i in range(3)
    ]
    on = pinned(world)
    measured = len(cluster.ran)
    for content in "abcdefgh":
        batch = world.submit(content, on=on, seeds=[0, 1])
        world.implement(world.experiments(batch)[0].id, f"{content} = 1\n")
    cluster.scheduler.tick()
    assert equality(world, narrow(driver="570.2")) == Equality.PENDING
    cluster.run()
    assert equality(world, narrow(driver="570.2")) == Equality.EQUAL
    controls = [ran for ran in cluster.ran if ran[1] == "control"]
    assert sorted(seed for *_, seed in controls) == [0, 1, 2], "once for all hosts alike"
    after = cluster.ran[measured:]
    first = {name: kind for name, kind, *_ in reversed(after)}
    assert all(first.get(each.name, "control") in ("control", "score") for each in updated)
    scored = {each.name for each in updated} & {
        name for name, kind, *_ in after if kind == "score"
    }
    assert scored, "comparable afterwards"
    assert {i for _, kind, i, _ in after if kind == "score"} == {on.id}


def test_a_host_that_measures_otherwise_is_kept_apart(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=5)
    cluster.run()
    other = cluster.add(world.another("odd", info=INFO | {"driver": "999"}, cpus=64), shift=2.0)
    on = pinned(world)
    batch = world.submit("two", on=on, seeds=[0])
    world.implement(world.experiments(batch)[0].id, "b = 1\n")
    cluster.run()
    assert equality(world, narrow(driver="999")) == Equality.DIFFERENT
    assert {kind for kind, _ in cluster.ran_on(other)} == {"control"}
    apart = pinned(world)
    assert apart.id == narrow(driver="999"), "of most live capacity, under its own conditions"
    batch = world.submit("three", on=apart, baseline_seeds=3, seeds=[0])
    world.implement(world.experiments(batch)[0].id, "b = 1\n")
    cluster.run()
    assert ("score", 2) in cluster.ran_on(other)
    assert all(i == apart.id for name, kind, i, _ in cluster.ran if name == "odd")


def test_nothing_to_compare_with_makes_the_next_host_the_first(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=2)
    cluster.scheduler.tick()
    assert equality(world, narrow()) == Equality.FIRST
    cluster.run()
    assert {kind for _, kind, *_ in cluster.ran} == {"score"}


def test_a_host_that_the_profile_does_not_fit_is_nobodys_first(world: World) -> None:
    """All others would wait for ever to be compared with it."""
    cluster = Cluster(world)
    changes: dict[str, Any] = {"info": INFO | {"driver": "999"}, "memory_bytes": 1 << 20}
    cluster.add(world.another("small", cpus=64, **changes))
    world.submit("one", on=pinned(world), baseline_seeds=3)
    cluster.run()
    assert equality(world, narrow(driver="999")) is None
    assert cluster.ran_on(world) == [("score", seed) for seed in range(3)]


def test_a_host_that_is_declared_equal_to_others_measures_with_those(world: World) -> None:
    """What it was found to differ from stays apart from it."""
    cluster = Cluster(world)
    mine = pinned(world)
    world.submit("one", on=mine, baseline_seeds=5)
    cluster.run()
    odd = cluster.add(world.another("odd", info=INFO | {"driver": "999"}, cpus=64), shift=2.0)
    world.submit("two", on=mine, baseline_seeds=6)
    cluster.run()
    assert equality(world, narrow(driver="999")) == Equality.DIFFERENT
    older = INFO | {"torch": "2.8.1"}
    cluster.add(world.another("older", info=older), shift=2.0)
    theirs = conditions.host_facts("cpu", older).wide
    world.submit("three", on=pinned(world, conditions=theirs), baseline_seeds=5)
    cluster.run()
    with world.db.write() as session:
        environment = get(session, schema.Environment, world.environment, "environment")
        ids = [narrow(driver="999"), theirs]
        equivalences.declare(
            session, environment, "tiny", Direction.MINIMIZE, ids, "me", world.db.now(session)
        )
    assert pinned(world).id == theirs, "of most live capacity, and that is the odd host's"
    number = len(cluster.ran)
    world.submit("four", on=mine, baseline_seeds=20)
    world.submit("five", on=pinned(world), baseline_seeds=20)
    cluster.run()
    measured = {i for name, _, i, _ in cluster.ran[number:] if name == odd.name}
    assert measured == {theirs}


def test_a_control_that_fails_keeps_its_host_apart(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=5)
    cluster.run()
    other = world.another("broken", info=INFO | {"numpy": "3.0"})
    batch = world.submit("two", on=pinned(world), seeds=[9])
    world.implement(world.experiments(batch)[0].id, "b = 1\n")
    cluster.scheduler.tick()
    with world.db.read() as session:
        waits = session.scalars(
            select(schema.Measurement).where(schema.Measurement.kind == "control")
        ).all()
    for each in waits:
        attempt = other.assign(each.id)
        if attempt is None:
            with world.db.read() as session:
                attempt = session.scalars(
                    select(schema.Attempt).where(schema.Attempt.measurement_id == each.id)
                ).one()
        other.run(attempt)
        other.finish(attempt, Outcome(AttemptState.FAILED, failure=CRASH, started=True))
    cluster.worlds[other.worker] = other
    cluster.shifts[other.worker] = 0.0
    cluster.run()
    assert equality(world, narrow(numpy="3.0")) == Equality.DIFFERENT


@pytest.mark.parametrize(
    ("there", "equal"),
    [
        ({0: 1.0, 1: 1.1, 2: 0.9}, True),
        ({0: 1.02, 1: 1.08, 2: 0.93}, True),
        ({0: 1.5, 1: 1.6, 2: 1.4}, False),
        ({0: 0.3, 1: 0.35, 2: 0.28}, False),
    ],
)
def test_what_counts_as_equal(there: dict[int, float], equal: bool) -> None:
    here = {seed: 1 + 0.05 * ((seed * 7) % 5 - 2) for seed in range(20)} | {0: 1.0, 1: 1.1, 2: 0.9}
    found = equivalences.compare(Direction.MINIMIZE, there, here)
    assert found.equal is equal
    assert found.evidence["seeds"] == [0, 1, 2]


def test_an_operator_declares_equal_what_was_measured_under_both(world: World) -> None:
    cluster = Cluster(world)
    other = cluster.add(world.another("torch", info=INFO | {"torch": "2.8.1"}))
    mine = conditions.host_facts("cpu", INFO).wide
    theirs = conditions.host_facts("cpu", other.row().info).wide

    def declare(*ids: str) -> None:
        with world.db.write() as session:
            environment = get(session, schema.Environment, world.environment, "environment")
            equivalences.declare(
                session, environment, "tiny", Direction.MINIMIZE, ids, "me", world.db.now(session)
            )

    world.submit("one", on=pinned(world, conditions=mine), baseline_seeds=5)
    with pytest.raises(Conflict) as caught:
        declare(theirs, mine)
    assert caught.value.code == "no_evidence"
    cluster.run()
    world.submit("one", on=pinned(world, conditions=theirs), baseline_seeds=3)
    cluster.run()
    declare(theirs, mine)
    declare(theirs, mine)  # harmless
    on = pinned(world, conditions=theirs)
    assert on.ids == (mine, theirs)
    number = len(cluster.ran)
    world.submit("two", on=on, baseline_seeds=5)
    cluster.run()
    assert len(cluster.ran) == number, "both baselines count"
    with pytest.raises(Conflict):
        declare(mine, theirs)


def test_conditions_whose_baselines_differ_are_declared_equal_only_on_demand(
    world: World,
) -> None:
    cluster = Cluster(world)
    other = cluster.add(world.another("torch", info=INFO | {"torch": "2.8.1"}), shift=2.0)
    ids = [conditions.host_facts("cpu", w.row().info).wide for w in (other, world)]
    for id_ in ids:
        world.submit("one", on=pinned(world, conditions=id_), baseline_seeds=5)
        cluster.run()
    with world.db.write() as session:
        environment = get(session, schema.Environment, world.environment, "environment")
        what = (session, environment, "tiny", Direction.MINIMIZE, ids, "me", world.db.now(session))
        with pytest.raises(Conflict, match="differs by") as caught:
            equivalences.declare(*what)
        assert caught.value.code == "baselines_differ"
        assert session.get(schema.Equivalence, (environment.id, "tiny", ids[0])) is None
        row = equivalences.declare(*what, despite_difference=True)
        assert (row.state, row.evidence["agrees"]) == ("equal", False)


def test_what_was_declared_can_be_taken_back(world: World) -> None:
    """The host is new again, and the controls that it has measured decide again."""
    cluster = Cluster(world)
    mine = pinned(world)
    world.submit("one", on=mine, baseline_seeds=5)
    cluster.run()
    odd = cluster.add(world.another("odd", info=INFO | {"driver": "999"}), shift=2.0)
    apart = narrow(driver="999")
    world.submit("two", on=mine, baseline_seeds=6)
    cluster.run()
    with world.db.write() as session:
        environment = get(session, schema.Environment, world.environment, "environment")
        what = (session, environment, "tiny", Direction.MINIMIZE, [apart, mine.id], "me")
        equivalences.declare(*what, world.db.now(session), despite_difference=True)
    assert pinned(world).ids == (mine.id, apart)
    with world.db.write() as session:
        row = equivalences.withdraw(session, world.environment, "tiny", apart)
        assert (row.conditions_id, row.equals_id) == (apart, mine.id)
        with pytest.raises(Conflict, match="no operator declared"):
            equivalences.withdraw(session, world.environment, "tiny", apart)
    number = len(cluster.ran)
    world.submit("three", on=mine, baseline_seeds=20)
    cluster.run()
    assert equality(world, apart) == Equality.DIFFERENT
    assert len(cluster.ran) > number
    assert odd.name not in {name for name, *_ in cluster.ran[number:]}, "its controls are there"


def test_what_controls_decided_is_not_an_operators_to_take_back(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=3)
    cluster.run()
    with world.db.write() as session, pytest.raises(Conflict):
        equivalences.withdraw(session, world.environment, "tiny", narrow())
    assert equality(world, narrow()) == Equality.FIRST


def test_controls_of_a_host_that_is_gone_are_no_backlog(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=3)
    cluster.run()
    gone = world.another("gone", info=INFO | {"driver": "999"})
    batch = world.submit("two", on=pinned(world), baseline_seeds=4)
    cluster.scheduler.tick()
    assert equality(world, narrow(driver="999")) == Equality.PENDING
    with world.db.write() as session:
        workers.remove(world.db, session, gone.worker)
    cluster.run()
    world.implement(world.experiments(batch)[0].id, "b = 1\n")
    with world.db.read() as session:
        table = schema.Measurement
        queued = session.scalars(select(table.kind).where(table.state == "queued")).all()
        backlog = statistics.present(world.db, session).queue
    assert sorted(queued) == ["control", "control", "control", "score"]
    assert sum(each.measurements for each in backlog) == 1


def test_other_data_cannot_be_declared_equal(world: World) -> None:
    other = world.another("key", info=INFO | {"held_out_key": "other"})
    ids = [conditions.host_facts("cpu", w.row().info).wide for w in (world, other)]
    with world.db.write() as session:
        environment = get(session, schema.Environment, world.environment, "environment")
        with pytest.raises(Conflict, match=r"differ in held_out_key: key and other\."):
            equivalences.declare(
                session, environment, "tiny", Direction.MINIMIZE, ids, "me", world.db.now(session)
            )


def test_unknown_conditions_are_named(world: World) -> None:
    with pytest.raises(InvalidInput, match="cnd_nothing"):
        pinned(world, conditions="cnd_nothing")
    mine = conditions.host_facts("cpu", INFO).wide
    with pytest.raises(InvalidInput, match="hardware class cpu"):
        pinned(world, conditions=mine, hardware_class="gpu")


def test_who_waits_for_a_first_host_that_is_gone_takes_its_place(world: World) -> None:
    cluster = Cluster(world)
    on = pinned(world)
    other = cluster.add(world.another("updated", info=INFO | {"driver": "570.2"}))
    world.submit("one", on=on, baseline_seeds=3)
    cluster.scheduler.tick()
    first, second = narrow(), narrow(driver="570.2")
    if equality(world, second) == Equality.FIRST:
        first, second, world, other = second, first, other, world
    assert (equality(world, first), equality(world, second)) == (Equality.FIRST, Equality.PENDING)
    with world.db.write() as session:
        workers.remove(world.db, session, world.worker)
    cluster.run()
    assert (equality(world, first), equality(world, second)) == (None, Equality.FIRST)
    assert ("score", 2) in cluster.ran_on(other)


def test_a_batch_says_that_nobody_offers_its_conditions(world: World) -> None:
    batch = world.submit("one", on=pinned(world), seeds=[0])
    world.implement(world.experiments(batch)[0].id, "b = 1\n")

    def waits() -> list[Any]:
        with world.db.read() as session:
            return list(waiting.of_batches(world.db, session, [batch])[batch])

    Cluster(world).scheduler.tick()
    world.restart("three", info=INFO | {"torch": "2.8.0"})
    with world.db.write() as session:
        session.execute(update(schema.Measurement).values(state="queued"))
    ((number, id_, differ),) = waits()
    assert (number, id_) == (1, conditions.host_facts("cpu", INFO).wide)
    assert differ == ["torch: 2.9 and 2.8"]
    world.restart("four", info=INFO | {"driver": "999"})
    assert waits()[0].differences is None
    world.restart("five", info=INFO)
    assert waits() == []


def test_an_environment_that_cannot_be_read_holds_up_no_other(world: World) -> None:
    """A process of a newer version may have registered it."""
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=1)
    with world.db.write() as session:
        environment = session.get_one(schema.Environment, world.environment)
        newer = environment.manifest | {"a_newer_key": True}
        changes = {"id": "newer@1", "name": "newer", "manifest": newer}
        session.add(copy_of(environment, **changes))
        session.flush()
        shape = session.scalars(select(schema.Shape)).one()
        session.add(copy_of(shape, id="shp_newer", environment_id="newer@1"))
        of = session.scalars(select(schema.Measurement)).one()
        changes = {"id": "mea_newer", "environment_id": "newer@1", "shape_id": "shp_newer"}
        session.add(copy_of(of, **changes))
    cluster.run()
    assert cluster.ran_on(world) == [("score", 0)]


def copy_of(row: Any, **changes: Any) -> Any:
    columns = {each.key: getattr(row, each.key) for each in inspect(type(row)).column_attrs}
    return type(row)(**columns | changes)


def test_a_control_that_its_host_failed_is_asked_for_again(world: World) -> None:
    cluster = Cluster(world)
    world.submit("one", on=pinned(world), baseline_seeds=5)
    cluster.run()
    cluster.add(world.another("new", info=INFO | {"numpy": "3.0"}))
    batch = world.submit("two", on=pinned(world), seeds=[9])
    world.implement(world.experiments(batch)[0].id, "b = 1\n")
    lost = Failure(FailureStage.START, FailureCode.INFRASTRUCTURE, "disk")
    cluster.scheduler.tick()
    with world.db.write() as session:
        controls = session.scalars(
            select(schema.Measurement.id).where(schema.Measurement.kind == "control")
        ).all()
        for each in controls:
            measurements.settle(session, each, MeasurementState.FAILED, lost)
        session.execute(
            update(schema.Attempt)
            .where(schema.Attempt.measurement_id.in_(controls))
            .values(state="failed", released_at=world.db.now(session))
        )
    cluster.run()
    assert len(controls) == 3
    assert equality(world, narrow(numpy="3.0")) == Equality.EQUAL


def test_a_first_host_that_drains_is_waited_for(world: World) -> None:
    cluster = Cluster(world)
    on = pinned(world)
    cluster.add(world.another("updated", info=INFO | {"driver": "570.2"}))
    world.submit("one", on=on, baseline_seeds=3)
    cluster.scheduler.tick()
    first, second = narrow(), narrow(driver="570.2")
    ours = world
    if equality(world, second) == Equality.FIRST:
        first, second = second, first
        ours = next(w for w in cluster.worlds.values() if w.name == "updated")
    ours.sync(draining=True)
    cluster.run()
    assert (equality(world, first), equality(world, second)) == (Equality.FIRST, Equality.PENDING)
    ours.sync(draining=False)
    cluster.run()
    assert equality(world, second) == Equality.EQUAL


def test_half_of_64_hosts_get_another_driver(world: World) -> None:
    cluster = Cluster(world)
    hosts = [cluster.add(world.another(f"h{i}", info=INFO, cpus=1)) for i in range(63)]
    on = pinned(world)
    world.submit("one", on=on, baseline_seeds=5)
    cluster.run()
    updated = [
        cluster.add(replace(host, incarnation="two", numbers=itertools.count(1)))
        for host in hosts[:32]
    ]
    for host in updated:
        host.restart("two", info=INFO | {"driver": "570.2"}, cpus=1)
    assert pinned(world).ids == on.ids
    batch = world.submit(*(f"idea {i}" for i in range(40)), on=on, seeds=[0, 1, 2])
    for number, experiment in enumerate(world.experiments(batch)):
        world.implement(experiment.id, f"a = {number}\n")
    before = len(cluster.ran)
    cluster.run(100)
    after = cluster.ran[before:]
    assert sorted(seed for _, kind, _, seed in after if kind == "control") == [0, 1, 2]
    assert equality(world, narrow(driver="570.2")) == Equality.EQUAL
    scored = {name for name, kind, *_ in after if kind == "score"}
    assert len(scored & {host.name for host in updated}) > 16
    assert {i for _, kind, i, _ in after if kind == "score"} == {on.id}
    assert len([ran for ran in after if ran[1] == "score"]) == 120
