"""Relays: several at once on Postgres, a broker that is away, and users that are kept in step."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest
from redis.exceptions import AuthenticationError
from sqlalchemy import func, select

from assay.broker import BrokerAddress
from assay.broker.acl import AccessList
from assay.domain.errors import Unavailable
from assay.storage import schema, workers
from assay.storage.access import AccessKeeper
from assay.storage.database import Database
from assay.storage.outbox import Relay, RelayLoop, Topic, post
from tests.broker.test_acl import worker
from tests.support.stack import Redis
from tests.support.waiting import wait_until


class Recorder:
    """A dispatcher that notes what it sends, and may be away."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []
        self.away = False
        self.tries = 0
        self._lock = threading.Lock()

    def send(self, topic: Topic, key: str) -> None:
        with self._lock:
            self.tries += 1
            if self.away:
                raise Unavailable("nobody takes messages", code="broker_unavailable")
            self.sent.append((topic.value, key))


def write(db: Database, *keys: str) -> None:
    with db.write() as session:
        for key in keys:
            post(session, Topic.WORKER, key)


def waiting(db: Database) -> int:
    with db.read() as session:
        return session.scalars(select(func.count()).select_from(schema.Outbox)).one()


def test_messages_are_sent_once_each_and_deleted(db: Database) -> None:
    recorder = Recorder()
    relay = Relay(db, recorder)
    write(db, "a", "b", "a", "a")
    while relay.deliver():
        pass
    relay.tidy()
    assert recorder.sent == [("worker", "a"), ("worker", "b")]
    assert waiting(db) == 0


def test_several_relays_at_once_send_everything_and_repeat_nothing(postgres: Database) -> None:
    class SmallBunches(Relay):
        BUNCH = 2  # so that each takes many turns

    keys = [f"k{n}" for n in range(400)]
    write(postgres, *keys)
    recorder, barrier = Recorder(), threading.Barrier(4)

    def run() -> None:
        relay = SmallBunches(postgres, recorder)
        barrier.wait()
        while relay.deliver():
            pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for _, key in recorder.sent) == sorted(keys)
    assert waiting(postgres) == 0


def test_a_broker_that_is_away_loses_nothing_and_is_named_once(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recorder = Recorder()
    recorder.away = True
    loop = RelayLoop(db, recorder, poll_seconds=0.01)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        write(db, "a")
        loop.wake()
        wait_until(lambda: recorder.tries > 5, "several tries", 20)
        assert waiting(db) == 1
        recorder.away = False
        wait_until(lambda: recorder.sent == [("worker", "a")], "delivery", 20)
        wait_until(lambda: waiting(db) == 0, "deletion", 20)
    finally:
        loop.stop()
        thread.join()
    said = [record.getMessage() for record in caplog.records]
    assert sum("messages wait" in line for line in said) == 1
    assert sum("delivered again" in line for line in said) == 1


def test_messages_that_nobody_takes_do_not_pile_up(db: Database) -> None:
    recorder = Recorder()
    recorder.away = True
    loop = RelayLoop(db, recorder, poll_seconds=0.01, keep=timedelta(0))
    thread = threading.Thread(target=loop.run)
    write(db, "a", "b")
    thread.start()
    try:
        wait_until(lambda: waiting(db) == 0, "old messages are dropped", 20)
    finally:
        loop.stop()
        thread.join()
    assert recorder.sent == []


def test_users_are_kept_in_step_with_workers(db: Database, redis: Redis) -> None:
    token = workers.new_token()
    worker_id = workers.admit(db, "gpu-0", token)
    keeper = AccessKeeper(db, AccessList(BrokerAddress(redis.url)))
    assert keeper.step() == 1
    with worker(redis, token, worker_id) as connection:
        assert connection.ping()
    assert keeper.step() == 0

    fresh = workers.new_token()
    workers.admit(db, "gpu-0", fresh)
    assert keeper.step() == 0, "nobody told it, and it is not time yet"
    keeper.poke()
    assert keeper.step() == 1
    with worker(redis, token, worker_id) as connection, pytest.raises(AuthenticationError):
        connection.ping()

    redis.kill()
    with pytest.raises(Unavailable):
        keeper.step()
    redis.start()
    assert keeper.step() == 1, "a restarted Redis knows nobody, and is told at once"
    with worker(redis, fresh, worker_id) as connection:
        assert connection.ping()
