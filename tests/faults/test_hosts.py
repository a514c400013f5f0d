"""Hosts that die, stop, are cut off, cheat, or cannot start anything."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable

import httpx2
import pytest
from sqlalchemy import select

from assay.storage import schema
from tests.support.faults.arena import Arena, Batch
from tests.support.faults.hosts import journal
from tests.support.faults.hosts.journal import Interval
from tests.support.faults.hosts.work import Mischief, Work
from tests.support.faults.timing import LEASE
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres


def containers(arena: Arena, attempts: Iterable[schema.Attempt]) -> dict[str, Interval]:
    """What hosts did with attempts, by their own journals."""
    wanted = {attempt.id for attempt in attempts}
    return {one.attempt: one for one in journal.intervals(arena.journals) if one.attempt in wanted}


def test_07_a_killed_supervisor_adopts_what_runs(arena: Arena) -> None:
    """Runs end while it is away: none is repeated, no byte is lost."""
    flags = ("--adopt", "--seconds", "0.3", "--log-bytes", "5000", "--points", "9")
    with arena.fleet_process(1, *flags) as (hosts, hold):
        batch = arena.submit(6, hosts.label)
        before = arena.wait_running(batch, 6)
        hosts.kill()
        hold.unlink()
        hosts.start()
        arena.finish(batch)
    after = arena.attempts(batch)
    adopted = {line["attempt"] for line in journal.events(arena.journals, "adopt")}
    assert {attempt.id for attempt in before} <= adopted
    assert {attempt.id for attempt in after} == {attempt.id for attempt in before}
    deadlines = {attempt.id: attempt.deadline_at for attempt in before}
    assert {attempt.id: attempt.deadline_at for attempt in after} == deadlines
    assert {attempt.state for attempt in after} == {"succeeded"}


def test_09_a_supervisor_that_stays_away_is_replaced_and_fenced(arena: Arena) -> None:
    """Its containers end by themselves meanwhile; when it returns it learns that it came late."""
    with arena.fleet_process(1, "--adopt", "--seconds", "0.2") as (away, hold):
        batch = arena.submit(2, away.label)
        first = arena.wait_running(batch, 2)
        away.kill()
        hold.unlink()
        with arena.hosts(1, hardware_class=away.label):
            arena.finish(batch)
        lost = arena.attempts(batch, state="lost")
        assert {attempt.id for attempt in lost} == {attempt.id for attempt in first}
        held = [attempt for attempt in lost if attempt.released_at is None]
        assert held, "its slots were freed without its word"
        away.start()
        wait_until(lambda: not _held(arena, lost), "the host's word frees its slots")
    assert {one.reason for one in containers(arena, lost).values()} <= {"ended", "fenced"}
    assert Counter(a.state for a in arena.attempts(batch)) == {"lost": 2, "succeeded": 2}


def _held(arena: Arena, attempts: list[schema.Attempt]) -> list[str]:
    table = schema.Attempt
    ids = [attempt.id for attempt in attempts]
    return arena.column(select(table.id).where(table.id.in_(ids), table.released_at.is_(None)))


def test_16_a_host_without_power_keeps_its_slots_until_it_speaks(arena: Arena) -> None:
    with arena.hosts(2, held=True) as hosts:
        name, dead = next(iter(hosts.ids.items()))
        batch = arena.submit(8, hosts.hardware_class, gpus=2)
        arena.wait_running(batch, 2, worker_id=dead)
        hosts.fleet.power_off(name)
        began = time.monotonic()
        wait_until(lambda: bool(arena.attempts(batch, worker_id=dead, state="lost")), "it is lost")
        assert time.monotonic() - began > LEASE / 2, "lost before its lease ran out"
        hosts.release()
        arena.finish(batch)
        lost = arena.attempts(batch, worker_id=dead, state="lost")
        # One that was never claimed runs nowhere, and holds nothing.
        assert all(attempt.released_at is None for attempt in lost if attempt.started_at)
        again = [a for a in arena.attempts(batch, state="succeeded") if a.number > 0]
        assert {a.measurement_id for a in again} == {a.measurement_id for a in lost}
        assert dead not in {attempt.worker_id for attempt in again}
        hosts.fleet.power_on(name)
        wait_until(lambda: not _held(arena, lost), "the host's word frees its slots")


@pytest.mark.parametrize("how", ["cut", "frozen"])
def test_17_a_host_behind_a_cut_network_is_fenced(arena: Arena, how: str) -> None:
    """Its containers succeed, and so do their replacements: one result each."""
    with arena.hosts(1, held=True) as cut:
        batch = arena.submit(2, cut.hardware_class)
        first = arena.wait_running(batch, 2)
        cut.proxy.cut() if how == "cut" else cut.proxy.freeze()
        cut.release()
        with arena.hosts(1, hardware_class=cut.hardware_class):
            arena.finish(batch)
            cut.proxy.heal()
            wait_until(lambda: not _held(arena, first), "the host learns that it was replaced")
    happened = containers(arena, first)
    assert len(happened) == 2
    assert {one.reason for one in happened.values()} <= {"ended", "fenced"}
    assert "ended" in {one.reason for one in happened.values()}, "nothing succeeded behind the cut"
    assert cut.proxy.counts["cut" if how == "cut" else "held"] > 0
    assert Counter(a.state for a in arena.attempts(batch)) == {"lost": 2, "succeeded": 2}


def test_18_a_supervisor_stopped_past_its_lease_commits_nothing(arena: Arena) -> None:
    with arena.fleet_process(1, "--seconds", "0.2", "--log-bytes", "3000") as (zombie, hold):
        batch = arena.submit(2, zombie.label)
        first = arena.wait_running(batch, 2)
        zombie.pause()
        hold.unlink()
        with arena.hosts(1, hardware_class=zombie.label):
            arena.finish(batch)
            results = _results(arena, batch.experiments)
            assert {a.state for a in arena.attempts(batch) if a.id in _ids(first)} == {"lost"}
            zombie.resume()
            wait_until(lambda: not _held(arena, first), "the zombie learns that it was replaced")
        wait_until(
            lambda: all(one.stop for one in containers(arena, first).values()),
            "the zombie's containers have ended",
        )
    assert _results(arena, batch.experiments) == results
    assert not _ids(first) & set(results.values())


def _ids(attempts: list[schema.Attempt]) -> set[str]:
    return {attempt.id for attempt in attempts}


def _results(arena: Arena, experiments: tuple[str, ...]) -> dict[str, str]:
    link, table = schema.ExperimentMeasurement, schema.Result
    query = (
        select(table.measurement_id, table.attempt_id)
        .join(link, link.measurement_id == table.measurement_id)
        .where(link.experiment_id.in_(experiments))
    )
    with arena.db.read() as session:
        return {row.measurement_id: row.attempt_id for row in session.execute(query)}


def test_22_a_host_that_starts_nothing_is_avoided_and_cordoned(arena: Arena) -> None:
    """As when images cannot be pulled: tried again elsewhere, and no budget is used up."""
    with arena.hosts(2, mischief=Mischief(bad_hosts=("-0",))) as hosts:
        bad = next(iter(hosts.ids.values()))
        batch = arena.submit(10, hosts.hardware_class)
        arena.finish(batch)
        failed = arena.attempts(batch, worker_id=bad)
        assert len(failed) >= 3, "the bad host was not tried"
        assert {(a.state, a.infrastructure, a.started_at) for a in failed} == {
            ("failed", True, None)
        }
        assert arena.states(batch) == {"succeeded": 10}
        with arena.db.read() as session:
            worker = session.get_one(schema.Worker, bad)
        assert worker.cordons > 0
        assert worker.cordon_reason
    assert not containers(arena, failed)


def test_25_cancelling_races_with_success(arena: Arena) -> None:
    """Each ends in exactly one of the two, and its slots are free."""
    ended: Counter[str] = Counter()
    with arena.hosts(2, work=Work(low=0.05, high=0.8, log_bytes=300)) as hosts:
        batches = []
        for started, succeeded in ((1, 0), (4, 0), (7, 1)):
            batch = arena.submit(8, hosts.hardware_class)
            _wait_started(arena, batch, started)
            wait_until(lambda b=batch, n=succeeded: _succeeded(arena, b) >= n, "one has succeeded")
            with arena.client() as client:
                client.batches.cancel(batch.id)
            batches.append(batch)
        for batch in batches:
            arena.finish(batch)
            ended += arena.states(batch)
            _wait_released(arena, batch)
    assert set(ended) == {"succeeded", "cancelled"}, ended
    assert sum(ended.values()) == 24


def _succeeded(arena: Arena, batch: Batch) -> int:
    return arena.states(batch)["succeeded"]


def _wait_started(arena: Arena, batch: Batch, count: int) -> None:
    def started() -> bool:
        return sum(a.started_at is not None for a in arena.attempts(batch)) >= count

    wait_until(started, f"{count} attempts have started")


def _wait_released(arena: Arena, batch: Batch) -> None:
    wait_until(lambda: not _held(arena, arena.attempts(batch)), "slots are free")


def test_30_a_host_cannot_report_for_another(arena: Arena) -> None:
    with arena.hosts(2, held=True) as hosts:
        batch = arena.submit(2, hosts.hardware_class)
        victim = arena.wait_running(batch, 2)[0]
        thief = next(
            host for host in hosts.fleet.fleet.hosts.values() if host.worker_id != victim.worker_id
        )
        proof = {"lease_token": victim.lease_token}
        failure = {"stage": "start", "code": "x", "message": "stolen"}
        stolen = {
            "claim": proof,
            "progress": proof | {"state": "finalizing"},
            "finish": proof | {"state": "failed", "failure": failure},
        }
        for what, body in stolen.items():
            answer = httpx2.post(
                f"{arena.stack.api_url}/internal/v1/attempts/{victim.id}/{what}",
                json=body,
                headers={"Authorization": f"Bearer {thief.token}"},
            )
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
        hosts.release()
        arena.finish(batch)
    assert arena.states(batch) == {"succeeded": 2}
    audited = [line for line in arena.stack.api.tail(20_000).splitlines() if victim.id in line]
    assert any(logging.getLevelName(logging.WARNING).lower() in line.lower() for line in audited)
    assert thief.token not in arena.stack.api.log.read_text()
