"""An implement worker that is killed while it turns ideas into codebases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from assay.storage import schema
from tests.faults.arena import Arena, until
from tests.faults.model import Model

pytestmark = pytest.mark.postgres


@pytest.fixture
def model(arena: Arena) -> Iterator[Model]:
    """A model that counts its calls."""
    arena.model.begin()
    yield arena.model
    arena.model.may_answer.set()


def _recorded(arena: Arena, model: Model) -> tuple[int, int]:
    """Calls of that model on record, and how many of them were interrupted."""
    with arena.db.read() as session:
        rows = session.scalars(
            select(schema.ModelCall.state).where(schema.ModelCall.model == model.name)
        ).all()
    interrupted = rows.count("interrupted")
    return len(rows) - interrupted, interrupted


def test_02_killed_in_the_middle_of_a_call(arena: Arena, model: Model) -> None:
    """The call is made once more, and no other one is."""
    implementer = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        model.may_answer.clear()
        batch = arena.submit(3, hosts.hardware_class, executor=model.name)
        until(lambda: model.calls == 3, "every idea waits for the model")
        implementer.kill()
        arena.crashes += 1
        model.may_answer.set()
        implementer.start()
        arena.finish(batch)
    recorded, interrupted = _recorded(arena, model)
    assert arena.states(batch) == {"succeeded": 3}
    assert interrupted == 3
    assert model.calls == recorded + interrupted == 6


@pytest.mark.parametrize("point", ["codebase-before-upload", "codebase-after-upload"])
def test_02_killed_around_the_upload_of_a_codebase(arena: Arena, model: Model, point: str) -> None:
    """The answers are on record: at most those that were on their way are asked for again."""
    implementer = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        with arena.killed_at(implementer, point):
            batch = arena.submit(3, hosts.hardware_class, executor=model.name)
        arena.finish(batch)
    recorded, interrupted = _recorded(arena, model)
    assert arena.states(batch) == {"succeeded": 3}
    assert interrupted <= 2, "an answer that was on record was asked for again"
    assert model.calls <= recorded + interrupted


def test_02_killed_between_an_answer_and_its_verdict(arena: Arena, model: Model) -> None:
    """What is on record is judged by the next process, and not asked for again."""
    implementer = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        with arena.killed_at(implementer, "answer-recorded"):
            batch = arena.submit(3, hosts.hardware_class, executor=model.name)
        arena.finish(batch)
    recorded, interrupted = _recorded(arena, model)
    assert arena.states(batch) == {"succeeded": 3}
    assert (recorded, interrupted <= 2) == (3, True), "each idea is answered once"
    assert model.calls <= recorded + interrupted


def test_02_killed_while_a_codebase_is_tried(arena: Arena, model: Model) -> None:
    """The smoke goes on without the implement worker; the next one waits for the same."""
    implementer = arena.stack.implementers[0]
    table = schema.Measurement
    with arena.hosts(1, held=True) as hosts:
        mine = table.hardware_class == hosts.hardware_class
        smokes = select(table.state).where(mine, table.kind == "smoke")
        request = arena.request(2, hosts.hardware_class, executor=model.name)
        request.options.preflight = "smoke"
        with arena.client() as client:
            batch = arena.took(client.batches.create(request).id)
        until(lambda: arena.column(smokes) == ["running"] * 2, "both codebases are tried")
        implementer.kill()
        arena.crashes += 1
        implementer.start()
        hosts.release()
        arena.finish(batch)
    assert arena.states(batch) == {"succeeded": 2}
    assert arena.column(smokes) == ["succeeded"] * 2
    assert (*_recorded(arena, model), model.calls) == (2, 0, 2)


def test_02_another_implement_worker_takes_over(arena: Arena, model: Model) -> None:
    """One that is stopped and comes back finds that its ideas are somebody else's."""
    first = arena.stack.implementers[0]
    with arena.hosts(1) as hosts:
        model.may_answer.clear()
        batch = arena.submit(2, hosts.hardware_class, executor=model.name)
        until(lambda: model.calls == 2, "every idea waits for the model")
        first.pause()
        second = arena.stack.add_implementer()
        try:
            until(lambda: model.calls == 4, "the other one asks again")
            arena.crashes += 1
            first.resume()
            model.may_answer.set()
            arena.finish(batch)
        finally:
            first.resume()
            arena.stack.forget(second)
    recorded, interrupted = _recorded(arena, model)
    assert (recorded, interrupted, model.calls) == (2, 2, 4)
    assert arena.states(batch) == {"succeeded": 2}
    assert len(arena.attempts(batch)) == 2
