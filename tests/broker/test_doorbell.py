"""Messages arrive through Celery and Redis, and whatever dies on the way is replaced."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from assay.broker import BrokerAddress, Doorbell, queue_name
from assay.broker.dispatch import CeleryDispatcher
from assay.broker.doorbell import Patience
from assay.domain.errors import Unavailable
from tests.support.stack import Redis
from tests.support.waiting import wait_until

QUICK = Patience(test=0.3, answer=2, start=20, first_pause=0.05, longest_pause=0.2)
HEARING = 20.0


class Bell:
    """A doorbell, and what it heard."""

    def __init__(self, redis: Redis, *queues: str, patience: Patience = QUICK) -> None:
        self.heard: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.began = 0
        self.doorbell = Doorbell(
            lambda: BrokerAddress(redis.url),
            queues,
            self.heard.put,
            on_hearing=self._begin,
            acknowledge=True,
            patience=patience,
        )
        self.doorbell.start()
        self.wait_hearing()

    def _begin(self) -> None:
        self.began += 1

    def wait_hearing(self, times: int = 1) -> None:
        wait_until(
            lambda: self.doorbell.hears and self.began >= times, f"hearing #{times}", HEARING
        )

    def next(self) -> str:
        return self.heard.get(timeout=HEARING)


@pytest.fixture
def dispatcher(redis: Redis) -> Iterator[CeleryDispatcher]:
    """The sending side."""
    made = CeleryDispatcher(BrokerAddress(redis.url))
    yield made
    made.close()


@pytest.fixture
def ring(redis: Redis) -> Iterator[Callable[..., Bell]]:
    """Makes doorbells, which are stopped at the end."""
    bells: list[Bell] = []

    def make(*queues: str, patience: Patience = QUICK) -> Bell:
        bells.append(Bell(redis, *queues, patience=patience))
        return bells[-1]

    yield make
    for bell in bells:
        bell.doorbell.stop()


def test_every_key_arrives_at_its_own_receiver(
    dispatcher: CeleryDispatcher, ring: Callable[..., Bell]
) -> None:
    one, other = (ring(queue_name("worker", name)) for name in ("wrk_1", "wrk_2"))
    for _ in range(20):
        dispatcher.send("worker", "wrk_1")
    dispatcher.send("worker", "wrk_2")
    assert [one.next() for _ in range(20)] == ["wrk_1"] * 20
    assert other.next() == "wrk_2"
    assert one.heard.empty()
    assert other.heard.empty()


def test_one_of_several_receivers_of_a_shared_queue_gets_a_message(
    dispatcher: CeleryDispatcher, ring: Callable[..., Bell]
) -> None:
    bells = [ring(queue_name("implement"), queue_name("implementer", n)) for n in ("a", "b")]
    sent = [f"exp_{n}" for n in range(30)]
    for key in sent:
        dispatcher.send("implement", key)
    heard: list[str] = []

    def collect() -> bool:
        for bell in bells:
            while not bell.heard.empty():
                heard.append(bell.heard.get())
        return len(heard) >= len(sent)

    wait_until(collect, "thirty messages", HEARING)
    assert sorted(heard) == sorted(sent)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_killed_listener_is_replaced_and_queued_messages_arrive(
    dispatcher: CeleryDispatcher, ring: Callable[..., Bell]
) -> None:
    bell = ring(queue_name("schedule"))
    pid = bell.doorbell.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    # Until then its connection is open, and Redis may hand it the message.
    wait_until(lambda: has_ended(pid), "the listener has ended", HEARING)
    dispatcher.send("schedule", "slots")
    bell.wait_hearing(times=2)
    assert bell.next() == "slots"
    assert bell.doorbell.pid != pid


def test_a_listener_that_hears_nothing_any_more_is_replaced(ring: Callable[..., Bell]) -> None:
    bell = ring(queue_name("schedule"))
    pid = bell.doorbell.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # connected, and deaf
    bell.wait_hearing(times=2)
    assert bell.doorbell.pid != pid
    assert not psutil.pid_exists(pid)


def test_messages_arrive_again_after_redis_was_killed(
    redis: Redis, dispatcher: CeleryDispatcher, ring: Callable[..., Bell]
) -> None:
    bell = ring(queue_name("worker", "wrk_1"))
    redis.kill()
    with pytest.raises(Unavailable) as refused:
        dispatcher.send("worker", "wrk_1")
    assert refused.value.code == "broker_unavailable"
    assert redis.password not in str(refused.value)
    wait_until(lambda: not bell.doorbell.hears, "deaf", HEARING)
    redis.start()
    bell.wait_hearing(times=2)
    dispatcher.send("worker", "wrk_1")
    assert bell.next() == "wrk_1"


def test_flushed_keys_are_missed_by_nobody(
    redis: Redis, dispatcher: CeleryDispatcher, ring: Callable[..., Bell]
) -> None:
    bell = ring(queue_name("worker", "wrk_1"))
    redis.flush()
    dispatcher.send("worker", "wrk_1")
    assert bell.next() == "wrk_1"


def test_a_handler_that_fails_ends_nothing(
    redis: Redis, dispatcher: CeleryDispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    def handle(key: str) -> None:
        heard.put(key)
        if key == "bad":
            raise RuntimeError("no such row")

    bell = Doorbell(
        lambda: BrokerAddress(redis.url), [queue_name("schedule")], handle, patience=QUICK
    )
    bell.start()
    try:
        dispatcher.send("schedule", "bad")
        dispatcher.send("schedule", "good")
        assert [heard.get(timeout=HEARING) for _ in range(2)] == ["bad", "good"]
    finally:
        bell.stop()
    assert "no such row" in caplog.text
    assert bell.starts == 1


def test_the_listener_dies_with_its_parent(redis: Redis, tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import time
        from assay.broker import BrokerAddress, Doorbell, queue_name
        bell = Doorbell(lambda: BrokerAddress({redis.url!r}), [queue_name("schedule")], print)
        bell.start()
        while not bell.hears:
            time.sleep(0.01)
        print(bell.pid, flush=True)
        time.sleep(600)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    listener = psutil.Process(int(parent.stdout.readline()))
    shown = " ".join(listener.cmdline()) + " ".join(listener.environ().values())
    assert redis.password not in shown
    parent.kill()
    parent.communicate()
    wait_until(lambda: not listener.is_running(), "the listener is gone", 10)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://host", "redis://"),
        ("redis://", "redis://"),
        ("redis://host/nought", "number"),
        ("redis://me:secret@host/0", "credentials"),
    ],
)
def test_addresses_that_workers_cannot_use(url: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        BrokerAddress.parse(url, credentials=False)


def test_an_address_never_shows_its_password() -> None:
    address = BrokerAddress.parse("redis://host:1/2").signed_in("worker.wrk_1", "a/b:c@d")
    assert address.url == "redis://worker.wrk_1:a%2Fb%3Ac%40d@host:1/2"
    assert str(address) == "redis://host:1/2"
    assert "a%2Fb" not in repr(address)
