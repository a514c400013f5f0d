"""The pool of implement loops: what goes wrong around them, and what becomes of the ideas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.storage import schema
from assay.storage.objects import LocalStore, codebase_key
from services.implementer.context import Context
from services.implementer.pool import ImplementPool
from tests.implementer.test_loop import submit


@pytest.fixture
def pool(context: Context) -> Iterator[ImplementPool]:
    """A pool that looks for work many times a second; the test starts it."""
    context.settings.rescan_seconds = 0.02
    pool = ImplementPool(context)
    yield pool
    pool.stop()


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def state(context: Context, experiment: str) -> str:
    with context.db.read() as session:
        return session.get_one(schema.Experiment, experiment).state


def baseline_path(context: Context, experiment: str) -> Path:
    assert isinstance(context.store, LocalStore)
    with context.db.read() as session:
        batch = session.get_one(
            schema.Batch, session.get_one(schema.Experiment, experiment).batch_id
        )
        environment = session.get_one(schema.Environment, batch.environment_id)
    return context.store.folder / codebase_key(environment.codebase)


def test_an_idea_is_given_up_when_its_baseline_is_gone(
    context: Context, pool: ImplementPool
) -> None:
    experiment = submit(context, executor="offline:literal")
    baseline_path(context, experiment).unlink()
    pool.start()
    wait(lambda: state(context, experiment) == "failed")
    with context.db.read() as session:
        failure = session.get_one(schema.Experiment, experiment).failure
    assert failure is not None
    assert (failure["code"], failure["retryable"]) == ("infrastructure", True)


def test_an_idea_waits_for_a_store_that_cannot_be_written(
    context: Context, pool: ImplementPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "[Experiment] Fours.\n[Code Changes]\nIn `train.py`:\n<<<<<<< SEARCH\nSTEP = 1\n"
        "=======\nSTEP = 4\n>>>>>>> REPLACE\n[End]"
    )
    experiment = submit(context, executor="offline:literal")
    with context.db.write() as session:
        row = session.get_one(schema.Experiment, experiment)
        session.get_one(schema.Idea, row.idea_id).text = text
    failures = 0

    def full(*args: object, **kwargs: object) -> None:
        nonlocal failures
        failures += 1
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("assay.storage.objects.tempfile.mkstemp", full)
        pool.start()
        wait(lambda: failures > 10)
        assert state(context, experiment) == "implementing"
    wait(lambda: state(context, experiment) == "queued")
