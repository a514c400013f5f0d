"""An object store that fails while results are stored."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import select

from assay.storage import schema
from assay.storage.objects import attempt_prefix
from tests.support.faults.arena import Arena
from tests.support.faults.hosts.work import Work
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

FAILING = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/xml\r\n"
    b"Content-Length: 55\r\nConnection: close\r\n\r\n"
    b"<Error><Code>InternalError</Code><Message/></Error>    "
)


@pytest.mark.parametrize("how", ["errors", "silence"])
def test_24_the_object_store_fails_while_runs_finish(arena: Arena, how: str) -> None:
    """Hosts offer what they have until it is taken; nothing is visible before it is whole."""
    work = Work(low=0.1, high=0.3, log_bytes=2000, artifact_bytes=100_000)
    with arena.hosts(2, work=work, held=True) as hosts:
        batch = arena.submit(4, hosts.hardware_class)
        arena.wait_running(batch, 4)
        before = sum(arena.s3_proxy.counts.values())
        if how == "errors":
            arena.s3_proxy.answer = FAILING
        else:
            arena.s3_proxy.cut()
        hosts.release()
        wait_until(
            lambda: sum(arena.s3_proxy.counts.values()) > before, "somebody meets the fault"
        )
        time.sleep(1)
        unfinished = arena.states(batch)
        assert unfinished["succeeded"] == 0, "something was stored in a store that fails"
        assert _results(arena, batch.experiments) == []
        arena.s3_proxy.heal()
        arena.finish(batch)
    assert [a.state for a in arena.attempts(batch)] == ["succeeded"] * 4


def _results(arena: Arena, experiments: tuple[str, ...]) -> list[str]:
    link = schema.ExperimentMeasurement
    return arena.column(
        select(schema.Result.attempt_id)
        .join(link, link.measurement_id == schema.Result.measurement_id)
        .where(link.experiment_id.in_(experiments))
    )


@pytest.mark.parametrize("point", ["manifest-before", "manifest-after"])
def test_24_killed_between_the_last_object_and_the_manifest(arena: Arena, point: str) -> None:
    with arena.hosts(1, work=Work(low=0.3, high=0.5)) as hosts:
        with arena.killed_at(arena.stack.api, point):
            batch = arena.submit(2, hosts.hardware_class)
        arena.finish(batch)
    attempts = arena.attempts(batch, state="succeeded")
    assert len(attempts) == 2
    for attempt in attempts:
        prefix = attempt_prefix(attempt.measurement_id, attempt.id, attempt.lease_token)
        manifests = [i for i in arena.store.list(f"{prefix}/") if "manifest" in i.key]
        assert len(manifests) == 1
