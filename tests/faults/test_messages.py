"""Messages that are lost, repeated, late; listeners that die; a broker that is gone or silent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
from redis.exceptions import RedisError
from sqlalchemy import select

from assay.broker.dispatch import CeleryDispatcher
from assay.broker.names import queue_name
from assay.broker.settings import BrokerAddress
from assay.domain.errors import Unavailable
from assay.storage import schema
from tests.support.faults.arena import REAL, SYNC, Arena, Batch
from tests.support.faults.hosts.work import Mischief, Work
from tests.support.stack import Part
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres
#: What this machine may add to an interval when everything runs on two cores.
SLACK = 6.0


def _listeners(part: Part) -> list[psutil.Process]:
    """The child processes with which a service hears messages."""
    children = psutil.Process(part.pid).children(recursive=True)
    return [child for child in children if _listens(child)]


def _listens(process: psutil.Process) -> bool:
    try:
        return "assay.broker.listen" in process.cmdline()
    except psutil.Error:  # it ended while we looked, and is replaced
        return False


def _seconds(arena: Arena, count: int = 1) -> float:
    """How long a batch takes on the real worker."""
    began = time.monotonic()
    arena.finish(arena.submit(count, REAL))
    return time.monotonic() - began


def test_06_listeners_are_killed_all_the_time(arena: Arena) -> None:
    """A listener holds nothing: what runs goes on, and the next sync finds what it missed."""
    worker = arena.real_worker()
    parts = [worker, arena.stack.scheduler, arena.stack.implementers[0]]
    chance, killed = random.Random(6), 0
    batch = arena.submit(8, REAL)
    pid = worker.pid
    for _ in range(12):
        for listener in _listeners(chance.choice(parts)):
            with suppress(psutil.NoSuchProcess):
                listener.kill()
                killed += 1
        time.sleep(chance.uniform(0.05, 0.3))
    arena.finish(batch)
    assert killed > 0
    assert worker.pid == pid
    assert worker.running
    assert [a.state for a in arena.attempts(batch)] == ["succeeded"] * 8
    wait_until(lambda: all(map(_listeners, parts)), "every service listens again")


@pytest.mark.parametrize("how", ["killed", "flushed"])
def test_10_redis_loses_everything_under_load(arena: Arena, how: str) -> None:
    arena.real_worker()
    redis = arena.stack.redis
    assert redis is not None
    usual = _seconds(arena)
    with arena.hosts(1) as hosts:
        batches = [arena.submit(4, REAL), arena.submit(4, hosts.hardware_class)]
        if how == "flushed":
            with redis.connection() as connection:
                # Queues may be empty at this moment, so there is one key that is certain to go.
                connection.set("assay-test:flushed", 1)
                redis.flush()
                assert not connection.exists("assay-test:flushed")
                assert connection.acl_users() == ["default"]
        else:
            redis.kill()
        batches += [arena.submit(3, REAL), arena.submit(3, hosts.hardware_class)]
        took = _seconds(arena)
        for batch in batches:
            arena.finish(batch)
    assert took < 3 * usual + 2 * SYNC + SLACK, (
        "without messages a start waits for a sync, and no longer"
    )
    if how == "killed":
        redis.start()
    _assert_heard_again(arena)


def _assert_heard_again(arena: Arena) -> None:
    """The worker empties its queue again, without anybody's help."""
    redis = arena.stack.redis
    assert redis is not None
    dispatcher = _dispatcher(arena)
    worker = _worker_id(arena)

    def heard() -> bool:
        try:
            dispatcher.send("worker", worker)
            with redis.connection() as connection:
                return not connection.exists(queue_name("worker", worker))
        except (Unavailable, RedisError):
            return False

    wait_until(heard, "the worker takes messages again")
    dispatcher.close()


def _worker_id(arena: Arena) -> str:
    query = select(schema.Worker.id).where(schema.Worker.name == REAL)
    return str(arena.column(query)[0])


def _dispatcher(arena: Arena) -> CeleryDispatcher:
    assert arena.stack.redis is not None
    return CeleryDispatcher(BrokerAddress(arena.stack.redis.url))


def test_11_a_broker_that_is_silent(arena: Arena) -> None:
    """Connections stay open and nothing passes: work goes on, and so does hearing, later."""
    arena.real_worker()
    held = arena.redis_proxy.counts["held"]
    arena.redis_proxy.freeze()
    try:
        arena.finish(arena.submit(3, REAL))
        wait_until(lambda: arena.redis_proxy.counts["held"] > held, "messages are held up")
    finally:
        arena.redis_proxy.heal()
    _assert_heard_again(arena)


def test_12_every_message_five_times_and_out_of_order(arena: Arena) -> None:
    """Whatever a message says, whoever hears it looks at the database."""
    arena.real_worker()
    batch = arena.submit(6, REAL)
    with _shouting(arena, batch) as sent:
        arena.finish(batch)
    assert sent[0] > 50
    assert [a.number for a in arena.attempts(batch)] == [0] * 6


@contextmanager
def _shouting(arena: Arena, batch: Batch) -> Iterator[list[int]]:
    """Messages about everything, repeated and shuffled, also of what is over or never was."""
    worker = _worker_id(arena)
    messages = [("worker", worker), ("schedule", "queue"), ("schedule", "slots")]
    messages += [("implement", experiment) for experiment in batch.experiments]
    messages += [("implement", experiment) for experiment in arena.accepted[:5]]
    messages.append(("implement", "exp_of_nobody"))
    stop, sent, chance = threading.Event(), [0], random.Random(12)

    def shout() -> None:
        dispatcher = _dispatcher(arena)
        while not stop.is_set():
            for topic, key in chance.sample(messages * 5, len(messages) * 5):
                dispatcher.send(topic, key)
                sent[0] += 1
        dispatcher.close()

    thread = threading.Thread(target=shout)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join(30)


def test_12_every_report_five_times_late_and_out_of_order(arena: Arena) -> None:
    mischief = Mischief(repeat=5, late_seconds=0.7, reorder=True)
    work = Work(low=0.5, high=1.0, log_bytes=3000, piece_bytes=200, points=7)
    with arena.hosts(2, work=work, mischief=mischief) as hosts:
        batch = arena.submit(6, hosts.hardware_class)
        arena.finish(batch)
        stats = hosts.fleet.stats
        wait_until(
            lambda: stats["late_accepted"] + stats["late_refused_fenced"] > 20, "late ones came"
        )
    assert stats["repeated"] > 50
    assert [a.state for a in arena.attempts(batch)] == ["succeeded"] * 6
