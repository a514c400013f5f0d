"""What a worker's user may do on a real Redis: hear its own queue, and nothing else."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Iterator

import pytest
import redis as driver
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from assay.broker import BrokerAddress, Doorbell, queue_name, worker_user
from assay.broker.acl import AccessList
from assay.broker.dispatch import CeleryDispatcher
from assay.domain.errors import Unavailable
from tests.broker.test_doorbell import HEARING, QUICK
from tests.support.stack import Redis
from tests.support.waiting import wait_until

ME, OTHER = "wrk_1", "wrk_10"
TOKEN = "asw_a-secret/of:mine"


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def access(redis: Redis) -> Iterator[AccessList]:
    """The administrator's side; two workers are let in."""
    made = AccessList(BrokerAddress(redis.url))
    assert made.apply({ME: hashed(TOKEN), OTHER: hashed("other")}) == 2
    yield made
    made.close()


def worker(redis: Redis, token: str = TOKEN, name: str = ME) -> driver.Redis:
    return driver.Redis(
        port=redis.port, username=worker_user(name), password=token, socket_timeout=5
    )


def test_a_worker_hears_its_own_queue_with_its_token(redis: Redis, access: AccessList) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    address = BrokerAddress.parse(redis.address, credentials=False)
    bell = Doorbell(
        lambda: address.signed_in(worker_user(ME), TOKEN),
        [queue_name("worker", ME)],
        heard.put,
        patience=QUICK,
    )
    bell.start()
    dispatcher = CeleryDispatcher(BrokerAddress(redis.url))
    try:
        wait_until(lambda: bell.hears, "hearing", HEARING)
        dispatcher.send("worker", ME)
        assert heard.get(timeout=HEARING) == ME
        with redis.connection() as connection:
            refused = [entry["object"] for entry in connection.acl_log()]
        assert set(refused) <= {"client|setinfo"}, (
            "the listener asks for nothing that it may not do"
        )
    finally:
        bell.stop()
        dispatcher.close()


FORBIDDEN = [
    ("BRPOP", queue_name("worker", OTHER), "1"),
    ("LPUSH", queue_name("worker", OTHER), "x"),
    ("BRPOP", queue_name("implement"), "1"),
    ("LPUSH", queue_name("schedule"), "x"),
    ("LLEN", queue_name("schedule")),
    ("GET", queue_name("worker", ME)),
    ("DEL", queue_name("worker", ME)),
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("PUBLISH", "x", "y"),
    ("SUBSCRIBE", "x"),
    ("PSUBSCRIBE", "*"),
    ("EVAL", "return 1", "0"),
    ("SCRIPT", "FLUSH"),
    ("FUNCTION", "LIST"),
    ("CONFIG", "GET", "*"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "me", "on"),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("CLIENT", "PAUSE", "1000"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("SHUTDOWN", "NOSAVE"),
    ("MONITOR",),
    ("INFO",),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SWAPDB", "0", "1"),
    ("MIGRATE", "127.0.0.1", "1", "x", "0", "1"),
]


@pytest.mark.parametrize("command", FORBIDDEN, ids=lambda command: "-".join(command[:2]))
def test_a_worker_may_do_nothing_else(
    redis: Redis, access: AccessList, command: tuple[str, ...]
) -> None:
    with worker(redis) as connection, pytest.raises(NoPermissionError):
        connection.execute_command(*command)


def test_a_worker_may_write_and_read_its_own_queue(redis: Redis, access: AccessList) -> None:
    own = queue_name("worker", ME)
    with worker(redis) as connection:
        connection.lpush(own, "a")
        assert connection.brpop([own], timeout=1) == (own.encode(), b"a")


def test_an_old_token_is_worth_nothing_once_there_is_a_new_one(
    redis: Redis, access: AccessList
) -> None:
    with worker(redis) as connected:
        assert connected.ping()
        access.admit(ME, hashed("new"))
        with pytest.raises(RedisError):  # cut off, and signing in again fails
            connected.ping()
    with worker(redis, "new") as connection:
        assert connection.ping()


def test_users_come_back_after_redis_forgot_them_and_others_go(
    redis: Redis, access: AccessList
) -> None:
    before = access.incarnation()
    redis.kill()
    with pytest.raises(Unavailable) as away:
        access.incarnation()
    assert redis.password not in str(away.value)
    redis.start()
    with worker(redis) as connection, pytest.raises(AuthenticationError):
        connection.ping()
    assert access.incarnation() != before
    assert access.apply({ME: hashed(TOKEN)}) == 1
    assert access.apply({ME: hashed(TOKEN)}) == 0
    with worker(redis) as connection:
        assert connection.ping()
    assert access.apply({}) == 1
    with worker(redis) as connection, pytest.raises(AuthenticationError):
        connection.ping()


def test_other_users_are_left_alone(redis: Redis, access: AccessList) -> None:
    with redis.connection() as connection:
        connection.execute_command("ACL SETUSER", "grafana", "on", ">x", "+ping")
    access.apply({})
    with redis.connection() as connection:
        assert "grafana" in connection.acl_users()
