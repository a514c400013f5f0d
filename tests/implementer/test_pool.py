"""The pool of implement loops: what goes wrong around them, and what becomes of the ideas."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from assay.contracts.batch import BatchRequest
from assay.domain.conditions import Conditions
from assay.domain.errors import Unavailable
from assay.llm import ImplementRequest
from assay.storage import batches, calls, environments, implementations, schema
from assay.storage.calls import CallStart
from assay.storage.objects import LocalStore, codebase_key
from services.implementer.context import Context
from services.implementer.judging import Judgement
from services.implementer.limits import Gates
from services.implementer.loop import Shared, take_up
from services.implementer.pool import THREADS, ImplementPool
from services.implementer.smoke import Waiter
from tests.implementer.conftest import batch
from tests.implementer.scripted import Scripted, judge_here
from tests.implementer.test_loop import submit
from tests.support.waiting import wait_until


@pytest.fixture
def pool(context: Context) -> Iterator[ImplementPool]:
    """A pool that looks for work many times a second; the test starts it."""
    context.settings.rescan_seconds = 0.02
    pool = ImplementPool(context)
    yield pool
    pool.stop()


def state(context: Context, experiment: str) -> str:
    with context.db.read() as session:
        return session.get_one(schema.Experiment, experiment).state


def baseline_path(context: Context, experiment: str) -> Path:
    assert isinstance(context.store, LocalStore)
    with context.db.read() as session:
        batch = session.get_one(
            schema.Batch, session.get_one(schema.Experiment, experiment).batch_id
        )
        environment = session.get_one(schema.Environment, batch.environment_id)
    return context.store.folder / codebase_key(environment.codebase)


def test_an_idea_is_given_up_when_its_baseline_is_gone(
    context: Context, pool: ImplementPool
) -> None:
    experiment = submit(context, executor="offline:literal")
    baseline_path(context, experiment).unlink()
    pool.start()
    wait_until(lambda: state(context, experiment) == "failed")
    with context.db.read() as session:
        failure = session.get_one(schema.Experiment, experiment).failure
    assert failure is not None
    assert (failure["code"], failure["retryable"]) == ("infrastructure", True)


def test_an_idea_waits_for_a_store_that_cannot_be_written(
    context: Context, pool: ImplementPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "[Experiment] Fours.\n[Code Changes]\nIn `train.py`:\n<<<<<<< SEARCH\nSTEP = 1\n"
        "=======\nSTEP = 4\n>>>>>>> REPLACE\n[End]"
    )
    experiment = submit(context, executor="offline:literal")
    with context.db.write() as session:
        row = session.get_one(schema.Experiment, experiment)
        session.get_one(schema.Idea, row.idea_id).text = text
    failures = 0

    def full(*args: object, **kwargs: object) -> None:
        nonlocal failures
        failures += 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("assay.storage.objects.tempfile.mkstemp", full)
        pool.start()
        wait_until(lambda: failures > 10)
        assert state(context, experiment) == "implementing"
    wait_until(lambda: state(context, experiment) == "queued")


def sample_state(context: Context, experiment: str) -> tuple[str, bool]:
    """The state of the only sample of an experiment, and whether its diff fitted."""
    with context.db.read() as session:
        row = session.scalars(
            select(schema.Sample)
            .join(schema.Implementation)
            .where(schema.Implementation.experiment_id == experiment)
        ).one()
    return row.state, row.fitted


def test_an_answer_that_was_accepted_is_recorded_though_its_idea_is_given_up(
    context: Context, pool: ImplementPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("the store is broken")

    large = literal_batch(context, 1)
    monkeypatch.setattr(environments, "put_codebase", broken)
    with context.db.read() as session:
        experiment = session.scalars(
            select(schema.Experiment.id).where(schema.Experiment.batch_id == large)
        ).one()
    pool.start()
    wait_until(lambda: state(context, experiment) == "failed")
    assert sample_state(context, experiment) == ("applied", True)


def test_an_idea_that_is_cancelled_while_it_waits_to_be_stored_leaves_no_sample_open(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer was paid for."""
    caplog.set_level("INFO")
    large = literal_batch(context, 1)
    held, is_open = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        held.release()
        is_open.wait(30)

    async def judge_and_hold(*args: Any, **options: Any) -> Judgement:
        judgement = await judge_here(*args, **options)
        for _ in range(THREADS):
            asyncio.get_running_loop().run_in_executor(None, hold)
        return judgement

    with context.db.read() as session:
        experiment = session.scalars(
            select(schema.Experiment.id).where(schema.Experiment.batch_id == large)
        ).one()
    pool = ImplementPool(context, judge=judge_and_hold)
    pool.start()
    try:
        for _ in range(THREADS):
            assert held.acquire(timeout=30)
        with context.db.write() as session:
            batches.cancel_experiment(context.db, session, experiment)
        pool.look_again()
        wait_until(lambda: "is not to be implemented here any more" in caplog.text)
        is_open.set()
        wait_until(lambda: sample_state(context, experiment) == ("applied", True))
    finally:
        is_open.set()
        pool.stop()


def test_a_pool_that_stops_begins_nothing_more(context: Context) -> None:
    """Ideas it gives back while it stops are for others, or for the next process."""

    async def never(_: ImplementRequest) -> str:
        await asyncio.Event().wait()
        return ""

    model = Scripted(never)
    shared = Shared(Gates(context.settings.models, longest_warm_up_s=0.01), Waiter(context))
    context.settings.concurrent_ideas = 2
    experiments = [submit(context) for _ in range(6)]
    pool = ImplementPool(context, open_executor=lambda *_: model, shared=shared)
    pool.start()
    wait_until(lambda: len(model.asked) == 2)
    pool.stop()
    assert len(model.asked) == 2
    with context.db.read() as session:
        holders = session.scalars(select(schema.Implementation.holder)).all()
        open_calls = session.scalars(
            select(schema.ModelCall.id).where(schema.ModelCall.finished_at.is_(None))
        ).all()
    assert set(holders) == {None}
    assert open_calls == []
    assert len(experiments) == 6


def test_ideas_that_take_long_leave_places_for_another_batch(context: Context) -> None:
    async def never(_: ImplementRequest) -> str:
        await asyncio.Event().wait()
        return ""

    model = Scripted(never)
    shared = Shared(Gates(context.settings.models, longest_warm_up_s=0.01), Waiter(context))
    context.settings.concurrent_ideas = 8
    first = submit(context)
    texts = [f"Count in steps of {number}." for number in range(20)]
    request = BatchRequest.model_validate(
        batch(*texts, executor="anthropic:claude-opus-4-5", options={"baseline_seeds": 0})
    )
    with context.db.write() as session:
        made = session.get_one(schema.Experiment, first).batch_id
        environment = session.get_one(schema.Batch, made).environment_id
        batches.cancel_experiment(context.db, session, first)
        batches.create(context.db, session, request, "local", environment, Conditions("cpu"))
    pool = ImplementPool(context, open_executor=lambda *_: model, shared=shared)
    pool.start()
    try:
        wait_until(lambda: len(model.asked) >= 6)
        other = submit(context)
        pool.look_at(other)
        wait_until(lambda: state(context, other) == "implementing")
        assert len(model.asked) <= 8
    finally:
        pool.stop()


def test_an_idea_that_meets_faults_rests_until_the_next_rescan(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while there is a backlog, of which the next idea is looked for at once."""
    context.settings.concurrent_ideas = 1
    context.settings.rescan_seconds = 0.5

    class Away(LocalStore):
        def get(self, key: str) -> bytes:
            raise Unavailable("the store is away")

    def taken() -> list[str]:
        """The experiments whose baseline could not be read, in order."""
        found = (re.fullmatch("cannot take up (.+)", text) for text in caplog.messages)
        return [match[1] for match in found if match]

    experiments = [submit(context) for _ in range(3)]
    assert isinstance(context.store, LocalStore)
    pool = ImplementPool(replace(context, store=Away(context.store.folder)))
    pool.start()
    wait_until(lambda: len(taken()) >= 6)
    pool.stop()
    assert Counter(taken()[:3]) == Counter(experiments), "each once, then a pause"


def test_calls_of_a_process_that_is_gone_do_not_stay_open(context: Context) -> None:
    """Its idea was cancelled before another took it up: nobody else would close them."""
    experiment = submit(context)
    taken = take_up(context, experiment)
    assert taken is not None
    with context.db.write() as session:
        start = CallStart("call_1", 0, 0, 1, "m", "", "p", Decimal("0.5"))
        calls.before(session, taken[0].payer, start)
        batches.cancel_experiment(context.db, session, experiment)
    with context.db.write() as session:
        assert calls.sweep(context.db, session) == 0, "its holder may be alive and at it"
        session.execute(update(schema.Implementation).values(lease_expires_at=None))
        assert calls.sweep(context.db, session) == 1
    with context.db.read() as session:
        row = session.get_one(schema.ModelCall, "call_1")
    assert (row.state, row.cost_usd, row.is_estimate) == ("interrupted", Decimal("0.5"), True)


def begun(context: Context, limit: int, *owners: tuple[str, int, int]) -> list[str]:
    """Which of the batches (owner, ideas, priority), by number, the next ideas are of."""
    names: dict[str, str] = {}
    environment = environments.register(context.db, context.store, context.catalog.get("count"))
    for number, (owner, ideas, priority) in enumerate(owners):
        options = {"baseline_seeds": 0, "priority": priority}
        request = BatchRequest.model_validate(batch(*map(str, range(ideas)), options=options))
        with context.db.write() as session:
            made = batches.create(
                context.db, session, request, owner, environment, Conditions("cpu")
            )
        names[made] = f"{owner}{number}"
    with context.db.read() as session:
        found = implementations.unfinished(context.db, session, limit=limit)
    return [names[each.batch] for each in found]


def test_owners_take_turns_however_many_ideas_one_has(context: Context) -> None:
    found = begun(context, 20, ("a", 50, 0), ("a", 50, 0), ("b", 10, 0))
    assert Counter(found) == {"a0": 5, "a1": 5, "b2": 10}


def test_a_priority_counts_among_the_batches_of_its_owner(context: Context) -> None:
    found = begun(context, 20, ("a", 50, 0), ("a", 10, 7), ("b", 20, 0))
    assert Counter(found) == {"a1": 10, "b2": 10}


def test_what_was_begun_before_a_restart_comes_first(context: Context) -> None:
    begun(context, 1, ("a", 30, 0))
    with context.db.read() as session:
        last = implementations.unfinished(context.db, session)[-1]
    with context.db.write() as session:
        assert implementations.begin(context.db, session, last.id) is not None
    with context.db.read() as session:
        (first,) = implementations.unfinished(context.db, session, limit=1)
    assert (first.id, first.is_new) == (last.id, False)


def literal_batch(context: Context, ideas: int, first: int = 2) -> str:
    """A batch of ideas that spell out an edit each."""
    texts = (
        f"[Experiment] Steps of {n}.\n[Code Changes]\nIn `train.py`:\n"
        f"<<<<<<< SEARCH\nSTEP = 1\n=======\nSTEP = {n}\n>>>>>>> REPLACE\n[End]"
        for n in range(first, first + ideas)
    )
    request = BatchRequest.model_validate(batch(*texts, options={"baseline_seeds": 0}))
    environment = environments.register(context.db, context.store, context.catalog.get("count"))
    with context.db.write() as session:
        return batches.create(context.db, session, request, "a", environment, Conditions("cpu"))


def test_a_batch_is_implemented_no_further_ahead_than_it_may(context: Context) -> None:
    """10,000 ideas were all implemented, and paid for, while the first were being measured."""
    context.settings.ideas_ahead = 10
    context.settings.rescan_seconds = 60
    large = literal_batch(context, 40)

    def of(batch: str, *states: str) -> list[str]:
        experiment = schema.Experiment
        with context.db.read() as session:
            return list(
                session.scalars(
                    select(experiment.id).where(
                        experiment.batch_id == batch, experiment.state.in_(states)
                    )
                )
            )

    pool = ImplementPool(context)
    pool.start()
    try:
        wait_until(lambda: len(of(large, "queued")) == 10)
        small = literal_batch(context, 3, first=100)
        pool.rescan()
        wait_until(lambda: len(of(small, "queued")) == 3)
        assert len(of(large, "submitted")) == 30, "it waits, and holds up no other"
        for experiment in of(large, "queued")[:5]:
            with context.db.write() as session:
                batches.cancel_experiment(context.db, session, experiment)
        wait_until(lambda: len(of(large, "submitted")) == 25)
        wait_until(lambda: len(of(large, "queued")) == 10)
    finally:
        pool.stop()


def test_a_batch_whose_answers_take_long_is_not_looked_for_again_and_again(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its ideas is implemented yet, but as many are under way as may be."""

    async def never(_: ImplementRequest) -> str:
        await asyncio.Event().wait()
        return ""

    context.settings.ideas_ahead = 4
    context.settings.concurrent_ideas = 12
    context.settings.rescan_seconds = 60
    looks = 0
    unfinished = implementations.unfinished

    def counted(*args: Any, **options: Any) -> list[implementations.Waiting]:
        nonlocal looks
        looks += 1
        return unfinished(*args, **options)

    monkeypatch.setattr(implementations, "unfinished", counted)
    texts = [f"Count in steps of {number}." for number in range(40)]
    options = {"baseline_seeds": 0, "novelty": "allow"}
    request = BatchRequest.model_validate(
        batch(*texts, executor="anthropic:claude-opus-4-5", options=options)
    )
    environment = environments.register(context.db, context.store, context.catalog.get("count"))
    with context.db.write() as session:
        batches.create(context.db, session, request, "a", environment, Conditions("cpu"))
    model = Scripted(never)
    shared = Shared(Gates(context.settings.models, longest_warm_up_s=0.01), Waiter(context))
    pool = ImplementPool(context, open_executor=lambda *_: model, shared=shared)
    pool.start()
    try:
        wait_until(lambda: len(model.asked) == 4)
        before = looks
        literal_batch(context, 1)
        pool.rescan()
        wait_until(lambda: len(model.asked) == 5)
        assert looks - before <= 3
        assert len(model.asked) == 5
    finally:
        pool.stop()


def test_what_was_begun_goes_on_however_far_ahead_its_batch_is(context: Context) -> None:
    context.settings.ideas_ahead = 1
    large = literal_batch(context, 3)
    with context.db.read() as session:
        found = [each.id for each in implementations.unfinished(context.db, session)]
    with context.db.write() as session:
        for experiment in found[:2]:
            assert implementations.begin(context.db, session, experiment) is not None
    pool = ImplementPool(context)
    pool.start()
    try:
        wait_until(lambda: state(context, found[0]) == state(context, found[1]) == "queued")
        assert state(context, found[2]) == "submitted"
    finally:
        pool.stop()
    with context.db.read() as session:
        assert implementations.ahead(session) == {large: (2, 0)}


def test_the_first_ideas_of_a_large_batch_are_done_before_the_last_are_begun(
    context: Context,
) -> None:
    literal_batch(context, 120)
    events = schema.Event

    def all_done() -> bool:
        with context.db.read() as session:
            return implementations.unfinished(context.db, session) == []

    pool = ImplementPool(context)
    pool.start()
    try:
        wait_until(all_done, 60)
    finally:
        pool.stop()
    with context.db.read() as session:
        states = [
            data["state"]
            for data in session.scalars(select(events.data).order_by(events.id))
            if "state" in data
        ]
    first_done = states.index("queued")
    assert "implementing" in states[first_done:]
