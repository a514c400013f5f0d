"""Several processes implement ideas: one holder each, no write of one that lost it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from assay.domain.errors import Fenced
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import FailureStage
from assay.environments.catalog import Catalog
from assay.llm import Executor
from assay.llm.executors import RequestId
from assay.llm.interface import Completion
from assay.storage import batches, environments, implementations, samples, schema
from assay.storage.database import Database
from assay.storage.implementations import Work
from assay.storage.objects import LocalStore
from assay.storage.samples import Verdict
from services.implementer.context import Context
from services.implementer.pool import ImplementPool
from services.implementer.settings import ImplementerSettings
from tests.implementer.test_loop import submit
from tests.implementer.test_pool import state
from tests.support.waiting import wait_until

HOUR, NOTHING = timedelta(hours=1), timedelta(0)


@pytest.fixture
def shared(db: Database, store: LocalStore, catalog: Catalog) -> Context:
    """What two processes share, on SQLite and on Postgres."""
    return Context(db, store, catalog, ImplementerSettings(), variables={})


@pytest.fixture
def experiment(shared: Context) -> str:
    return submit(shared, executor="offline:literal")


def begin(context: Context, experiment: str, holder: str, ttl: timedelta = HOUR) -> Work | None:
    with context.db.write() as session:
        return implementations.begin(context.db, session, experiment, holder, ttl)


def taken(context: Context, experiment: str, holder: str, ttl: timedelta = HOUR) -> Work:
    work = begin(context, experiment, holder, ttl)
    assert work is not None
    return work


def unfinished(context: Context, holder: str) -> list[str]:
    with context.db.read() as session:
        return [each.id for each in implementations.unfinished(context.db, session, holder)]


def succeed(context: Context, work: Work) -> None:
    codebase = environments.put_codebase(context.store, {"train.py": "print(4)\n"})
    with context.db.write() as session:
        implementations.succeed(context.db, session, work, 0, codebase)


def test_one_process_holds_an_idea(shared: Context, experiment: str) -> None:
    assert unfinished(shared, "a") == unfinished(shared, "b") == [experiment]
    assert begin(shared, experiment, "a") is not None
    assert begin(shared, experiment, "b") is None
    assert unfinished(shared, "b") == []
    assert begin(shared, experiment, "a") is not None, "a restart under the same name goes on"


def test_an_idea_passes_on_when_its_lease_runs_out_or_is_given_up(
    shared: Context, experiment: str
) -> None:
    taken(shared, experiment, "a", NOTHING)
    taken(shared, experiment, "b")
    with shared.db.write() as session:
        assert implementations.release(session, "b") == 1
    taken(shared, experiment, "c")


@pytest.mark.parametrize("holders", [8])
def test_of_many_that_begin_at_once_one_holds_it(
    shared: Context, experiment: str, holders: int
) -> None:
    barrier, won = threading.Barrier(holders), []

    def run(name: str) -> None:
        barrier.wait()
        if begin(shared, experiment, name) is not None:
            won.append(name)

    threads = [threading.Thread(target=run, args=(f"h{n}",)) for n in range(holders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    with shared.db.read() as session:
        events = session.scalars(
            select(func.count()).where(schema.Event.experiment_id == experiment)
        ).one()
    assert events == 1, "it began once"


def test_a_zombie_writes_nothing(shared: Context, experiment: str) -> None:
    zombie = taken(shared, experiment, "a", NOTHING)
    heir = taken(shared, experiment, "b")
    failure = Failure(FailureStage.IMPLEMENT, FailureCode.NO_SAMPLES, "none")

    def call(work: Work) -> None:
        with shared.db.write() as session:
            key = (work.implementation, 0, 0)
            samples.calling(shared.db, session, key, "1")
            samples.ended(shared.db, session, key, Verdict("applied"))
            implementations.check_held(session, work)

    def fail(work: Work) -> None:
        with shared.db.write() as session:
            implementations.fail(shared.db, session, work, failure)

    def give_up(work: Work) -> None:
        with shared.db.write() as session:
            implementations.give_up(shared.db, session, experiment, failure, work.holder)

    for write in (call, fail, give_up, lambda work: succeed(shared, work)):
        with pytest.raises(Fenced):
            write(zombie)
    with shared.db.write() as session:
        assert implementations.count_fault(session, experiment, zombie.holder) == 0
        assert implementations.renew(shared.db, session, zombie.holder) == set()
    with shared.db.read() as session:
        assert session.scalars(select(func.count()).select_from(schema.Sample)).one() == 0
        wanted = select(func.count()).select_from(schema.ExperimentMeasurement)
        assert session.scalars(wanted).one() == 0
    assert state(shared, experiment) == "implementing"
    call(heir)
    succeed(shared, heir)
    assert state(shared, experiment) == "queued"
    with pytest.raises(Fenced):
        succeed(shared, zombie)
    assert state(shared, experiment) == "queued"


def test_a_cancelled_idea_tells_its_holder_and_is_not_renewed(
    shared: Context, experiment: str
) -> None:
    work = taken(shared, experiment, "a")
    with shared.db.write() as session:
        assert implementations.renew(shared.db, session, "a") == {experiment}
        batches.cancel(shared.db, session, work.batch)
    with shared.db.write() as session:
        assert implementations.renew(shared.db, session, "a") == set()
        messages = session.execute(select(schema.Outbox.topic, schema.Outbox.key)).all()
    assert ("implementer", "a") in [tuple(message) for message in messages]
    succeed(shared, work)
    assert state(shared, experiment) == "cancelled"


class Endless(Executor):
    """A model that never answers."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.dropped = threading.Event()

    def prompt_version(self, request: object) -> str:
        return "1"

    def identify(self, request: object) -> RequestId:
        return RequestId("1")

    async def implement(
        self, request: object, *, on_try: object = None, gate: object = None
    ) -> Completion:
        import asyncio

        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.dropped.set()
        raise AssertionError

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture
def asking(context: Context) -> Iterator[tuple[ImplementPool, Endless]]:
    """A running pool whose model never answers."""
    model = Endless()
    context.settings.rescan_seconds = 0.05
    pool = ImplementPool(replace(context, holder="a"), open_executor=lambda *_: model)
    pool.start()
    yield pool, model
    pool.stop()


def test_a_message_ends_the_call_for_a_cancelled_idea(
    context: Context, asking: tuple[ImplementPool, Endless]
) -> None:
    pool, model = asking
    experiment = submit(context, executor="offline:literal")
    assert model.asked.wait(20)
    with context.db.write() as session:
        batches.cancel_experiment(context.db, session, experiment)
    pool.look_again()
    assert model.dropped.wait(10)


def test_without_a_message_the_next_renewal_ends_it(
    context: Context, asking: tuple[ImplementPool, Endless]
) -> None:
    _, model = asking
    context.settings.idea_lease_seconds = 0.6
    experiment = submit(context, executor="offline:literal")
    assert model.asked.wait(20)
    with context.db.write() as session:
        session.get_one(schema.Implementation, _implementation(context, experiment)).holder = "b"
    # The first wait for a renewal began with the lease that was set before.
    assert model.dropped.wait(20)


def test_what_a_pool_held_is_free_when_it_has_stopped(
    context: Context, asking: tuple[ImplementPool, Endless]
) -> None:
    pool, model = asking
    experiment = submit(context, executor="offline:literal")
    assert model.asked.wait(20)
    assert unfinished(context, "b") == []
    pool.stop()
    assert unfinished(context, "b") == [experiment]


def test_two_pools_share_the_work(context: Context, tmp_path: Path) -> None:
    context.settings.rescan_seconds = 0.05
    text = "[Experiment] x.\n[Code Changes]\nIn `train.py`:\n<<<<<<< SEARCH\nSTEP = 1\n=======\n"
    experiments = [submit(context, executor="offline:literal") for _ in range(6)]
    with context.db.write() as session:
        for number, experiment in enumerate(experiments, 2):
            row = session.get_one(schema.Experiment, experiment)
            idea = session.get_one(schema.Idea, row.idea_id)
            idea.text = f"{text}STEP = {number}\n>>>>>>> REPLACE\n[End]"
    pools = [ImplementPool(replace(context, holder=name)) for name in ("a", "b")]
    for pool in pools:
        pool.start()
    try:
        wait_until(
            lambda: {state(context, experiment) for experiment in experiments} == {"queued"}
        )
    finally:
        for pool in pools:
            pool.stop()
    with context.db.read() as session:
        calls = session.execute(select(schema.Sample.implementation_id)).all()
    assert len(calls) == len(set(calls)) == len(experiments), "one call for each idea"


def _implementation(context: Context, experiment: str) -> str:
    with context.db.read() as session:
        return session.scalars(
            select(schema.Implementation.id).where(
                schema.Implementation.experiment_id == experiment
            )
        ).one()
