"""Cancelling races with success a thousand times: each ends in one of the two."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from assay.domain.placement import Placement
from assay.domain.states import AttemptState
from assay.environments.catalog import Catalog
from assay.storage import assignments, attempts, batches, environments, implementations, schema
from assay.storage.attempts import Outcome, Telemetry
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.storage.lifecycle import TTL, World

RACES, BATCH = 400, 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_cancel_races_with_success(db: Database, store: LocalStore, catalog: Catalog) -> None:
    world = World.create(db, store, catalog)
    ended: Counter[str] = Counter()
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, RACES, BATCH):
            ended += _race(world, pool, start)
    assert sum(ended.values()) == RACES
    assert set(ended) == {"cancelled", "succeeded"}, "both must win some of the races"


def _race(world: World, pool: ThreadPoolExecutor, start: int) -> Counter[str]:
    """Cancel and finish a batch's experiments, each pair at the same time."""
    held = _running(world, start)
    drawn = random.Random(start)
    jobs: list[Callable[[], None]] = []
    for experiment, attempt in held:
        gate = threading.Barrier(2)
        pair = [
            functools.partial(_cancel, world, gate, experiment),
            # Now and then the host asks a moment later: so that either may be first.
            functools.partial(_finish, world, gate, attempt, drawn.choice([0.0, 0.02, 0.1])),
        ]
        drawn.shuffle(pair)
        jobs += pair
    for done in [pool.submit(job) for job in jobs]:
        done.result(500)
    for _, attempt in held:  # who was cancelled is told so, and says that it has stopped
        _stop(world, attempt)
    with world.db.read() as session:
        ids = [attempt.measurement_id for _, attempt in held]
        states = dict(
            session.execute(
                select(schema.Measurement.id, schema.Measurement.state).where(
                    schema.Measurement.id.in_(ids)
                )
            ).all()
        )
        results = set(
            session.scalars(
                select(schema.Result.measurement_id).where(schema.Result.measurement_id.in_(ids))
            )
        )
        taken = session.scalars(
            select(schema.Attempt.id).where(schema.Attempt.released_at.is_(None))
        ).all()
    assert results == {name for name, state in states.items() if state == "succeeded"}
    assert taken == [], "every slot is free"
    return Counter(states.values())


def _running(world: World, start: int) -> list[tuple[str, schema.Attempt]]:
    batch = world.submit(*map(str, range(BATCH)))
    experiments = [row.id for row in world.experiments(batch)]
    wanted = []
    for number, experiment in enumerate(experiments):
        codebase = environments.put_codebase(world.store, {"train.py": f"{start + number}\n"})
        with world.db.write() as session:
            work = implementations.begin(world.db, session, experiment)
            assert work is not None
            implementations.succeed(world.db, session, work, 0, codebase)
        wanted.append(world.measurements(experiment)[0])
    with world.db.write() as session:
        placements = [Placement(name, world.worker) for name in wanted]
        assignments.assign(world.db, session, placements, TTL)
        rows = session.scalars(
            select(schema.Attempt).where(schema.Attempt.measurement_id.in_(wanted))
        ).all()
        for row in rows:
            row.state = AttemptState.RUNNING.value
    held = {row.measurement_id: row for row in rows}
    return [(e, held[name]) for e, name in zip(experiments, wanted, strict=True)]


def _cancel(world: World, gate: threading.Barrier, experiment: str) -> None:
    gate.wait(300)
    with world.db.write() as session:
        batches.cancel_experiment(world.db, session, experiment)


def _finish(world: World, gate: threading.Barrier, attempt: schema.Attempt, later: float) -> None:
    gate.wait(300)
    time.sleep(later)
    with world.db.read() as session:
        told = session.get_one(schema.Measurement, attempt.measurement_id).cancel_requested
    _end(world, attempt, cancelled=told)


def _stop(world: World, attempt: schema.Attempt) -> None:
    stored = world.attempt(attempt.id)
    if AttemptState(stored.state).is_live:
        _end(world, attempt, cancelled=True)


def _end(world: World, attempt: schema.Attempt, *, cancelled: bool) -> None:
    state = AttemptState.CANCELLED if cancelled else AttemptState.SUCCEEDED
    outcome = Outcome(state, metric=1.0, metrics={"score": 1.0}, started=True, seconds=1.0)
    with world.db.write() as session:
        key = (attempt.id, world.worker, attempt.lease_token)
        attempts.finish(world.db, session, *key, outcome, Telemetry())
