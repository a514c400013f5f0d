"""The queue as the API shows it: what comes next is what the services do next, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event, select
from starlette.testclient import TestClient

from assay.contracts.queue import QueueBody
from assay.environments.catalog import Catalog
from assay.storage import cordons, implementations, schema
from assay.storage.implementations import Ahead
from services.implementer.places import Places
from tests.implementer.conftest import served
from tests.scheduler.moments import scheduler
from tests.storage.lifecycle import CLASS, World

OWN = "local"


def submit(world: World, ideas: int, owner: str = OWN, **options: object) -> str:
    """A batch whose ideas are implemented, and wait to be measured."""
    batch = world.submit(*map(str, range(ideas)), owner=owner, **options)
    for number, experiment in enumerate(world.experiments(batch)):
        world.implement(experiment.id, f"{batch} = {number}\n")
    return batch


def read(client: TestClient, limit: int = 20) -> QueueBody:
    answer = client.get("/v1/queue", params={"limit": limit})
    assert answer.status_code == 200, answer.text
    return QueueBody.model_validate_json(answer.content)


def running(world: World) -> set[str]:
    with world.db.read() as session:
        return set(session.scalars(select(schema.Attempt.measurement_id)))


def test_what_is_said_to_start_is_what_the_scheduler_starts(
    world: World, catalog: Catalog
) -> None:
    clock = scheduler(world, shares={OWN: 3.0})
    crowd, few = submit(world, 9), submit(world, 2, priority=7)
    submit(world, 9, "other")
    with served(world, catalog) as client:
        before = read(client)
        assert before.scheduled
        (stage,) = before.measuring
        assert (stage.hardware_class, stage.unit, stage.total) == (CLASS, "CPUs", 4)
        starts = [each for each in stage.next if each.reason == "starts"]
        assert len(starts) == 4
        assert [each.batch for each in starts if each.yours][:2] == [few, few]
        assert clock.tick() == 4
        started = running(world)
        assert {each.measurement for each in starts if each.yours} <= started
        assert sum(each.yours for each in starts) == 3, "by weight"
        (stage,) = read(client).measuring
    mine, others = stage.owners
    assert (mine.owner, mine.weight, mine.under_way, mine.has, mine.due) == (OWN, 3, 3, 0.75, 0.75)
    assert (others.owner, others.owners, others.under_way, others.due) == (None, 1, 1, 0.25)
    assert stage.under_way == 4
    assert {each.reason for each in stage.next} == {"busy"}
    assert "in use" in stage.next[0].why
    batches = {each.batch: each for each in stage.batches}
    assert batches.keys() == {crowd, few}, "and none of another owner"
    assert (batches[few].priority, batches[few].under_way, batches[few].waiting) == (7, 2, 0)


def test_another_owners_work_is_counted_and_not_shown(world: World, catalog: Catalog) -> None:
    scheduler(world)
    theirs = [submit(world, 3, "other"), world.submit("an idea", owner="other")]
    mine = submit(world, 1)
    with served(world, catalog) as client:
        text = client.get("/v1/queue").text
        body = read(client)
    with world.db.read() as session:
        experiments = session.scalars(
            select(schema.Experiment.id).where(schema.Experiment.batch_id.in_(theirs))
        ).all()
        measurements = session.scalars(
            select(schema.Measurement.id).where(schema.Measurement.owner == "other")
        ).all()
    assert not [each for each in ("other", *theirs, *experiments, *measurements) if each in text]
    assert {each.batch for each in body.measuring[0].next if each.yours} == {mine}
    assert body.implementing.owners[1].waiting == 1
    assert [(n.yours, n.experiment) for n in body.implementing.next] == [(False, None)]


def test_why_nothing_can_take_it(world: World, catalog: Catalog) -> None:
    submit(world, 1)
    with served(world, catalog) as client:
        assert not read(client).scheduled
        assert read(client).measuring[0].next[0].reason == "no_scheduler"
        clock = scheduler(world)
        submit(world, 5)
        with world.db.write() as session:
            cordons.cordon(world.db, session, world.worker, "new disk")
        clock.tick()
        (stage,) = read(client).measuring
    assert stage.total == 0
    assert {each.reason for each in stage.next} == {"no_worker"}
    assert stage.next[0].why == f"no worker of {CLASS} can take work"


def test_what_asks_for_too_much_or_for_isolation(world: World, catalog: Catalog) -> None:
    scheduler(world)
    submit(world, 2)
    with world.db.write() as session:
        row = session.scalars(select(schema.Shape)).one()
        row.memory_bytes = 1 << 50
    with served(world, catalog) as client:
        why = read(client).measuring[0].next[0].why
        assert why.startswith(f"no worker of {CLASS} has 0 GPUs, 1 CPUs and 1048576.0 GiB")
        with world.db.write() as session:
            session.scalars(select(schema.Shape)).one().needs_isolation = True
            session.get_one(schema.Worker, world.worker).isolated = False
        assert "needs isolation" in read(client).measuring[0].next[0].why


def test_ideas_that_wait_for_a_place_say_so(world: World, catalog: Catalog) -> None:
    crowd = world.submit(*map(str, range(9)))
    few = world.submit("a", "b", priority=1)
    with served(world, catalog) as client:
        client.app.state.context.settings.concurrent_ideas = 4  # type: ignore[attr-defined]
        stage = read(client).implementing
        assert [each.reason for each in stage.next] == ["unclaimed"] * 11
        assert [each.batch for each in stage.next[:3]] == [few, few, crowd]
        begin(world, crowd, 3)
        stage = read(client).implementing
        assert (stage.under_way, stage.total) == (3, 4)
        assert [(n.batch, n.reason) for n in stage.next[:3]] == [
            (few, "turn"),
            (few, "turn"),
            (crowd, "share"),
        ]
        begin(world, few, 1)
        assert {each.reason for each in read(client).implementing.next} == {"busy"}
        assert len(read(client, limit=2).implementing.next) == 2


def begin(world: World, batch: str, ideas: int) -> None:
    """As a process does that holds them."""
    with world.db.write() as session:
        for experiment in world.experiments(batch)[:ideas]:
            assert implementations.begin(world.db, session, experiment.id, "pool") is not None


def test_as_many_statements_for_many_ideas_and_batches_as_for_few(
    world: World, catalog: Catalog
) -> None:
    scheduler(world)
    submit(world, 2)
    submit(world, 1, "other")
    world.submit("an idea")
    with served(world, catalog) as client:
        few = statements(world, lambda: read(client))
        for number in range(6):
            submit(world, 5, f"owner {number % 3}")
            world.submit(*map(str, range(5)))
        assert statements(world, lambda: read(client)) == few


def statements(world: World, call: Callable[[], Any]) -> int:
    asked: list[str] = []
    note = lambda _c, _cu, text, *_: asked.append(text)  # noqa: E731
    event.listen(world.db.engine, "before_cursor_execute", note)
    try:
        call()
    finally:
        event.remove(world.db.engine, "before_cursor_execute", note)
    return len(asked)


def test_how_far_ahead_of_measuring_a_batch_may_be_implemented() -> None:
    places = Places(64, 10)
    places.see({"a": Ahead(6, 2), "b": Ahead(6, 20)})
    places.add("owner", "a", 3)
    assert places.ahead() == ["a"], "there is room for one: not worth a look"
    assert not places.is_ahead("a")
    places.add("owner", "a")
    assert places.is_ahead("a")
    assert not places.is_ahead("b"), "all that runs may end at once"


def test_an_idea_waits_for_those_of_its_batch_that_are_not_measured(
    world: World, catalog: Catalog
) -> None:
    large = world.submit("1", "2", "3")
    small = world.submit("4")
    for number, experiment in enumerate(world.experiments(large)[:2]):
        world.implement(experiment.id, f"a = {number}\n")
    with served(world, catalog, ideas_ahead=2) as client:
        first, last = read(client).implementing.next
    assert (first.batch, first.reason) == (small, "unclaimed")
    assert (last.batch, last.reason) == (large, "ahead")
    assert last.why.startswith("as many ideas of its batch as may be are under way or wait")


def test_a_batch_leaves_places_for_the_next_and_an_owner_for_another() -> None:
    places = Places(64, 100)
    for name in ("a", "b", "c"):
        while not places.is_full(name):
            places.add("owner", name)
    assert places.of_batch == {"a": 48, "b": 12, "c": 3}
    assert places.free == 1
    assert set(places.full()) == {"a", "b", "c", "owner"}
    places.add("owner", "a", -48)
    assert set(places.full()) == set()


def test_the_page_of_workers_says_whose_each_attempt_is(world: World, catalog: Catalog) -> None:
    """A baseline was called 'Baseline, or an experiment of another owner', on any service."""
    mine = world.submit("an idea of mine", baseline_seeds=1, seeds=[0])
    (experiment,) = world.experiments(mine)
    scored = world.implement(experiment.id, "a = 1\n")
    theirs = world.submit("a secret idea", owner="other", baseline_seeds=0, seeds=[0])
    (other,) = world.experiments(theirs)
    with world.db.read() as session:
        unmodified = session.get_one(schema.Environment, world.environment).codebase
        table = schema.Measurement
        baseline = session.scalars(
            select(table.id).where(table.codebase_id == unmodified, table.seed == 0)
        ).one()
    with served(world, catalog) as client:
        for measurement in (scored, baseline, world.implement(other.id, "b = 1\n")):
            assert world.assign(measurement) is not None
        page = client.get("/workers").text
    assert "or an experiment of another owner" not in page
    assert page.count("Baseline of count · tiny<") == 1
    assert page.count("Another owner's experiment<") == 1
    assert f'<a href="/experiments/{experiment.id}">an idea of mine</a>' in page
    assert "secret" not in page


def test_the_page_of_workers_links_what_confirms(world: World, catalog: Catalog) -> None:
    first = world.submit("an idea", baseline_seeds=0, seeds=[0])
    (experiment,) = world.experiments(first)
    world.measure(world.implement(experiment.id, "a = 1\n"))
    with served(world, catalog) as client:
        made = client.post(f"/v1/experiments/{experiment.id}/confirm", json={"seeds": 1})
        assert made.status_code == 202, made.text
        (confirming,) = world.experiments(made.json()["id"])
        with world.db.write() as session:
            work = implementations.begin(world.db, session, confirming.id)
            assert work is not None
            assert work.given is not None
            implementations.succeed(world.db, session, work, None, work.given)
        with world.db.read() as session:
            table = schema.Measurement
            queued = session.scalars(
                select(table.id).where(table.kind == "confirm").order_by(table.seed.desc())
            ).all()
        own = world.measurements(confirming.id)
        for measurement in (*own, next(each for each in queued if each not in own)):
            assert world.assign(measurement) is not None
        page = client.get("/workers").text
    assert f'<a href="/experiments/{confirming.id}">an idea</a>' in page
    assert page.count("Baseline of count · tiny, for confirmations<") == 1


def test_the_page_of_workers_says_for_which_batch_a_base_is_measured(
    world: World, catalog: Catalog
) -> None:
    (experiment,) = world.experiments(world.submit("an idea", baseline_seeds=0, seeds=[0]))
    world.measure(world.implement(experiment.id, "a = 1\n"))
    with served(world, catalog) as client:
        made = client.post(
            "/v1/batches",
            json={
                "environment": "count", "profile": "tiny", "ideas": [{"text": "more"}],
                "base": experiment.id, "options": {"baseline_seeds": 3},
            },
        )  # fmt: skip
        assert made.status_code == 202, made.text
        with world.db.read() as session:
            codebase = session.get_one(schema.Experiment, experiment.id).codebase_id
            table = schema.Measurement
            base = session.scalars(
                select(table.id).where(table.codebase_id == codebase, table.seed == 2)
            ).one()
        assert world.assign(base) is not None
        page = client.get("/workers").text
    assert f'Base of the ideas in <a href="/batches/{made.json()["id"]}">' in page


def test_the_page_of_workers_does_not_count_what_is_not_there(
    world: World, catalog: Catalog
) -> None:
    scheduler(world)
    submit(world, 1)
    with world.db.write() as session:
        session.scalars(select(schema.Shape)).one().gpus = 1
        cordons.cordon(world.db, session, world.worker, "new disk")
    with served(world, catalog) as client:
        (stage,) = read(client).measuring
        page = client.get("/workers").text
    assert (stage.total, stage.unit) == (0, "GPUs")
    assert "of 0 " not in page
    assert "no worker of this class" in page
    assert "<b>Due</b>" in page


def test_a_bound_says_that_it_is_one(world: World, catalog: Catalog) -> None:
    clock = scheduler(world)
    submit(world, 9)
    with served(world, catalog) as client:
        clock.tick()
        (stage,) = read(client).measuring
        assert "uses its whole budget" in stage.next[0].why
        assert "at the latest" in stage.next[0].why
