"""Who gets a thread next."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from services.implementer.turns import FairThreads, Turn, current


class Line:
    """One thread, which waits until everything is submitted, and what it ran in which order."""

    def __init__(self, **weights: float) -> None:
        self.ran: list[str] = []
        self._threads = FairThreads(1, "test", lambda owner: weights.get(owner, 1.0))
        self._gate = threading.Event()
        self._done: list[Future[None]] = [self._threads.submit(lambda: self._wait())]

    def _wait(self) -> None:
        self._gate.wait(10)

    def add(self, label: str, turn: Turn | None) -> None:
        token = current.set(turn)
        self._done.append(self._threads.submit(self.ran.append, label))
        current.reset(token)

    def run(self) -> list[str]:
        self._gate.set()
        for each in self._done:
            each.result(10)
        self._threads.shutdown()
        return self.ran


@contextmanager
def line(**weights: float) -> Iterator[Line]:
    yield Line(**weights)


def test_a_small_batch_does_not_wait_for_a_large_one_of_the_same_owner() -> None:
    with line() as given:
        for number in range(1000):
            given.add("large", Turn("a", "bat_1", 0, number))
        for number in range(5):
            given.add("small", Turn("a", "bat_2", 0, 1000 + number))
    assert Counter(given.run()[:10]) == {"large": 5, "small": 5}


def test_owners_have_equal_shares_however_many_batches_they_have() -> None:
    with line() as given:
        for number in range(300):
            given.add("a", Turn("a", f"bat_{number % 30}", 0, number))
        for number in range(100):
            given.add("b", Turn("b", "bat_b", 0, 1000 + number))
    assert Counter(given.run()[:100]) == {"a": 50, "b": 50}


def test_an_owner_of_twice_the_weight_gets_twice_as_many_turns() -> None:
    with line(b=2.0) as given:
        for number in range(100):
            given.add("a", Turn("a", "bat_a", 0, number))
            given.add("b", Turn("b", "bat_b", 0, number))
    assert Counter(given.run()[:60]) == {"a": 20, "b": 40}


def test_priority_counts_inside_the_share_of_an_owner() -> None:
    with line() as given:
        for number in range(10):
            given.add("a", Turn("a", "bat_1", 0, number))
            given.add("a urgent", Turn("a", "bat_2", 5, number))
            given.add("b", Turn("b", "bat_3", 0, number))
    first = given.run()[:20]
    assert Counter(first) == {"a urgent": 10, "b": 10}


def test_the_idea_that_was_begun_first_goes_on_first() -> None:
    with line() as given:
        for number in (3, 1, 2):
            given.add(str(number), Turn("a", "bat_1", 0, number))
    assert given.run() == ["1", "2", "3"]


def test_an_owner_that_had_nothing_to_do_gets_no_credit_for_it() -> None:
    with line() as given:
        for number in range(100):
            given.add("a", Turn("a", "bat_a", 0, number))
        given.add("own", None)
    ran = given.run()
    assert (ran[0], len(ran)) == ("own", 101), "what belongs to no idea goes first"


def test_the_exception_of_a_step_is_its_futures() -> None:
    threads = FairThreads(1, "test")
    failed: Future[object] = threads.submit(lambda: {}["x"])
    assert isinstance(failed.exception(10), KeyError)
    threads.shutdown()
