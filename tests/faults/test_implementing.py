"""An implement worker that is killed while it turns ideas into codebases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from assay.storage import schema
from tests.support.faults.arena import Arena
from tests.support.provider.counting import CountingProvider
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def provider(arena: Arena) -> Iterator[CountingProvider]:
    """A provider that counts its calls."""
    arena.provider.begin()
    yield arena.provider
    arena.provider.release()


def _recorded(arena: Arena, provider: CountingProvider) -> tuple[int, int]:
    """Return the number of finished calls on record, and of interrupted ones."""
    with arena.db.read() as session:
        rows = session.scalars(
            select(schema.ModelCall.state).where(schema.ModelCall.model == provider.model)
        ).all()
    interrupted = rows.count("interrupted")
    return len(rows) - interrupted, interrupted


def test_02_killed_in_the_middle_of_a_call(arena: Arena, provider: CountingProvider) -> None:
    """The call is made once more, and no other one is."""
    implementer = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        provider.hold()
        batch = arena.submit(3, hosts.hardware_class, executor=provider.model)
        wait_until(lambda: provider.calls == 3, "every idea waits for the model")
        implementer.kill()
        arena.crashes += 1
        provider.release()
        implementer.start()
        arena.finish(batch)
    recorded, interrupted = _recorded(arena, provider)
    assert arena.states(batch) == {"succeeded": 3}
    assert interrupted == 3
    assert provider.calls == recorded + interrupted == 6


@pytest.mark.parametrize("point", ["codebase-before-upload", "codebase-after-upload"])
def test_02_killed_around_the_upload_of_a_codebase(
    arena: Arena, provider: CountingProvider, point: str
) -> None:
    """The answers are on record: at most those that were on their way are asked for again."""
    implementer = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        with arena.killed_at(implementer, point):
            batch = arena.submit(3, hosts.hardware_class, executor=provider.model)
        arena.finish(batch)
    recorded, interrupted = _recorded(arena, provider)
    assert arena.states(batch) == {"succeeded": 3}
    assert interrupted <= 2, "an answer that was on record was asked for again"
    assert provider.calls <= recorded + interrupted


def test_02_killed_between_an_answer_and_its_verdict(
    arena: Arena, provider: CountingProvider
) -> None:
    """What is on record is judged by the next process, and not asked for again."""
    implementer = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        with arena.killed_at(implementer, "answer-recorded"):
            batch = arena.submit(3, hosts.hardware_class, executor=provider.model)
        arena.finish(batch)
    recorded, interrupted = _recorded(arena, provider)
    assert arena.states(batch) == {"succeeded": 3}
    assert (recorded, interrupted <= 2) == (3, True), "each idea is answered once"
    assert provider.calls <= recorded + interrupted


def test_02_killed_while_a_codebase_is_tried(arena: Arena, provider: CountingProvider) -> None:
    """The smoke goes on without the implement worker; the next one waits for the same."""
    implementer = arena.stack.implementers[0]
    table = schema.Measurement
    with arena.hosts(1, held=True) as hosts:
        mine = table.hardware_class == hosts.hardware_class
        smokes = select(table.state).where(mine, table.kind == "smoke")
        request = arena.request(2, hosts.hardware_class, executor=provider.model)
        request.options.preflight = "smoke"
        with arena.client() as client:
            batch = arena.took(client.batches.create(request).id)
        wait_until(lambda: arena.column(smokes) == ["running"] * 2, "both codebases are tried")
        implementer.kill()
        arena.crashes += 1
        implementer.start()
        hosts.release()
        arena.finish(batch)
    assert arena.states(batch) == {"succeeded": 2}
    assert arena.column(smokes) == ["succeeded"] * 2
    assert (*_recorded(arena, provider), provider.calls) == (2, 0, 2)


def test_02_another_implement_worker_takes_over(arena: Arena, provider: CountingProvider) -> None:
    """One that is stopped and comes back finds that its ideas are somebody else's."""
    first = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        provider.hold()
        batch = arena.submit(2, hosts.hardware_class, executor=provider.model)
        wait_until(lambda: provider.calls == 2, "every idea waits for the model")
        first.pause()
        second = arena.stack.add_implementer()
        try:
            wait_until(lambda: provider.calls == 4, "the other one asks again")
            arena.crashes += 1
            first.resume()
            provider.release()
            arena.finish(batch)
        finally:
            first.resume()
            arena.stack.forget(second)
    recorded, interrupted = _recorded(arena, provider)
    assert (recorded, interrupted, provider.calls) == (2, 2, 4)
    assert arena.states(batch) == {"succeeded": 2}
    assert len(arena.attempts(batch)) == 2
