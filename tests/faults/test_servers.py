"""Servers that are killed, stopped, doubled, or lose their database."""

from __future__ import annotations

import threading
import time

import httpx2
import pytest
from sqlalchemy import select

from assay.storage import schema
from tests.support.faults.arena import Arena
from tests.support.faults.timing import LEASE
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres


def test_01_a_batch_whose_answer_was_lost_is_stored_once(arena: Arena) -> None:
    """The API dies after the commit; the client, who was told nothing, asks again."""
    with arena.hosts(1) as hosts:
        request = arena.request(4, hosts.hardware_class)
        answers: list[httpx2.Response] = []
        troubles: list[str] = []

        def post() -> None:
            while not answers:
                try:
                    answers.append(
                        httpx2.post(
                            f"{arena.stack.api_url}/v1/batches",
                            content=request.model_dump_json(),
                            headers={
                                "Authorization": f"Bearer {arena.stack.key}",
                                "Content-Type": "application/json",
                                "Idempotency-Key": f"once-{hosts.hardware_class}",
                            },
                            timeout=60,
                        )
                    )
                except httpx2.TransportError as error:
                    troubles.append(type(error).__name__)
                    time.sleep(0.1)

        client = threading.Thread(target=post)
        with arena.killed_at(arena.stack.api, "batch-committed"):
            client.start()
        client.join(30)
        assert troubles, "the client noticed nothing"
        assert answers[0].status_code == 202
        assert answers[0].headers["Idempotent-Replayed"] == "true"
        batch = arena.took(answers[0].json()["id"])
        stored = select(schema.Batch.id).where(schema.Batch.hardware_class == hosts.hardware_class)
        assert arena.column(stored) == [batch.id]
        assert len(batch.experiments) == 4
        arena.finish(batch)


@pytest.mark.parametrize("point", ["scheduler-before-commit", "scheduler-after-commit"])
def test_03_a_scheduler_killed_around_an_assignment(arena: Arena, point: str) -> None:
    with arena.hosts(2) as hosts:
        with arena.killed_at(arena.stack.scheduler, point):
            batch = arena.submit(4, hosts.hardware_class, gpus=4)
            epoch = _epoch(arena)
        wait_until(lambda: _epoch(arena) > epoch, "there is a leader again", 20)
        arena.finish(batch)
    attempts = arena.attempts(batch)
    assert len(attempts) == 4, "something was assigned twice"
    assert {len(attempt.devices) for attempt in attempts} == {4}


def test_04_a_leader_that_was_stopped_leads_no_more(arena: Arena) -> None:
    leader = arena.stack.scheduler
    with arena.hosts(2) as hosts:
        second = arena.stack.add_scheduler()
        try:
            epoch = _epoch(arena)
            leader.pause()
            wait_until(lambda: _epoch(arena) > epoch, "the second takes over")
            taken = _epoch(arena)
            batch = arena.submit(6, hosts.hardware_class, gpus=2)
            arena.wait_running(batch, 1)
            leader.resume()
            arena.finish(batch)
            later = arena.submit(6, hosts.hardware_class)
            arena.finish(later)
            assert _epoch(arena) >= taken
        finally:
            leader.resume()
            arena.stack.forget(second)
    assert {len(arena.attempts(b)) for b in (batch, later)} == {6}


def _epoch(arena: Arena) -> int:
    return max(arena.column(select(schema.Leader.epoch)), default=0)


def test_05_a_relay_killed_between_sending_and_noting_it(arena: Arena) -> None:
    """The message comes twice; what it announces is done once."""
    with arena.hosts(1) as hosts:
        with arena.killed_at(arena.stack.api, "relay-sent"):
            batch = arena.submit(3, hosts.hardware_class)
        arena.finish(batch)
    assert len(arena.attempts(batch)) == 3


@pytest.mark.parametrize("away", [0.0, LEASE + 1.0])
def test_13_postgres_dies_and_nothing_that_ran_is_lost(arena: Arena, away: float) -> None:
    """Also when it is away for longer than a lease: nobody could report, so nobody is blamed."""
    with arena.hosts(2, held=True) as hosts:
        batch = arena.submit(6, hosts.hardware_class, gpus=2)
        arena.wait_running(batch, 6)
        arena.cluster.kill()
        assert not arena.cluster.answers()
        time.sleep(away / 2)
        hosts.release()
        time.sleep(away / 2)
        arena.cluster.start()
        arena.finish(batch)
        away_syncs = hosts.fleet.stats["syncs_away"] + hosts.fleet.stats["reports_failed"]
    assert away_syncs > 0, "nobody noticed"
    assert [a.state for a in arena.attempts(batch)] == ["succeeded"] * 6


def test_14_commits_whose_answer_is_lost(arena: Arena) -> None:
    """Who commits cannot know whether it did: all of them ask again and nothing is doubled."""
    lost = arena.db_proxy.counts["answers_lost"]
    with arena.hosts(2) as hosts:
        batch = arena.submit(8, hosts.hardware_class)
        for _ in range(6):
            _lose_an_answer(arena)
            if sum(arena.states(batch)[s] for s in ("succeeded", "failed")) == 8:
                batch = arena.submit(8, hosts.hardware_class)
        arena.finish(batch)
    assert arena.db_proxy.counts["answers_lost"] - lost >= 6
    assert arena.states(batch) == {"succeeded": 8}


def _lose_an_answer(arena: Arena) -> None:
    before = arena.db_proxy.counts["answers_lost"]
    arena.db_proxy.lose_answer(lambda data: b"COMMIT" in data)
    wait_until(lambda: arena.db_proxy.counts["answers_lost"] > before, "an answer is lost")


def test_15_a_database_that_takes_no_writes(arena: Arena) -> None:
    """What is refused is refused with 503; what was acknowledged is finished."""
    with arena.hosts(2, held=True) as hosts:
        batch = arena.submit(4, hosts.hardware_class)
        arena.wait_running(batch, 1)
        _set_read_only(arena, "on")
        try:
            wait_until(
                lambda: _refusal(arena, hosts.hardware_class) is not None, "writes are refused"
            )
            assert _refusal(arena, hosts.hardware_class) == (503, "database_read_only")
            hosts.release()
        finally:
            _set_read_only(arena, "off")
        wait_until(lambda: _refusal(arena, hosts.hardware_class) is None, "it takes writes again")
        arena.finish(batch)
        arena.finish_all()
    assert arena.states(batch) == {"succeeded": 4}


def _set_read_only(arena: Arena, value: str) -> None:
    # The superuser's own session must be able to end it.
    arena.cluster.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    arena.cluster.execute("SELECT pg_reload_conf()")


def _refusal(arena: Arena, hardware_class: str) -> tuple[int, str] | None:
    """How a batch is refused; None if it is not (then it is remembered as accepted)."""
    answer = httpx2.post(
        f"{arena.stack.api_url}/v1/batches",
        content=arena.request(1, hardware_class).model_dump_json(),
        headers={
            "Authorization": f"Bearer {arena.stack.key}",
            "Content-Type": "application/json",
        },
        timeout=30,
    )
    if answer.status_code == 202:
        arena.took(answer.json()["id"])
        return None
    return answer.status_code, answer.json()["code"]


def test_26_the_clock_of_the_database_steps(arena: Arena) -> None:
    """With everything running: nothing expires for it."""
    with arena.hosts(2, held=True) as hosts:
        batch = arena.submit(4, hosts.hardware_class)
        arena.wait_running(batch, 4)
        with _stepped(arena, LEASE * 0.3):
            time.sleep(1)
            hosts.release()
            arena.finish(batch)
    assert [a.state for a in arena.attempts(batch)] == ["succeeded"] * 4


class _stepped:
    """The database's clock is ahead of what it was, for every session."""

    def __init__(self, arena: Arena, seconds: float) -> None:
        self._arena, self._seconds = arena, seconds

    def __enter__(self) -> None:
        run = self._arena.cluster.execute
        run("CREATE SCHEMA skew")
        run(
            "CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
            f"$$ SELECT pg_catalog.clock_timestamp() + interval '{self._seconds} seconds' $$"
        )
        run("ALTER SYSTEM SET search_path = 'skew', 'pg_catalog', 'public'")
        run("SELECT pg_reload_conf()")
        wait_until(lambda: self.offset() > self._seconds / 2, "the clock has stepped")

    def __exit__(self, *_: object) -> None:
        run = self._arena.cluster.execute
        run("ALTER SYSTEM RESET search_path")
        run("SELECT pg_reload_conf()")
        wait_until(lambda: self.offset() < self._seconds / 2, "the clock is right again")
        run("DROP SCHEMA skew CASCADE")

    def offset(self) -> float:
        """By how much sessions see the clock ahead."""
        with self._arena.db.read() as session:
            now = self._arena.db.now(session).timestamp()
        return now - time.time()
