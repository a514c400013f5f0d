"""The scheduler's tick with a long queue, in this process: all of it, and its SQL alone."""

from __future__ import annotations

import random
import statistics
from typing import Any

from sqlalchemy import func, select

from assay.domain.states import AttemptState
from assay.storage import attempts, schema
from assay.storage.attempts import Outcome, Telemetry
from assay.storage.database import Database
from benchmarks.execution.database import World
from benchmarks.execution.timing import SqlTime, elapsed, milliseconds
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings

DONE = Outcome(
    AttemptState.SUCCEEDED, metric=0.5, metrics={"score": 0.5}, started=True, seconds=1.0
)
SETTINGS = SchedulerSettings(starting_per_worker=8, suspect_seconds=1e6, lease_seconds=1e6)


def measure(world: World, ticks: int) -> dict[str, Any]:
    """Fill every GPU, then ticks without and with work that ends before each."""
    clock = Scheduler(world.db, SETTINGS, lambda: None, holder="benchmark")
    sql = SqlTime(world.db.engine)
    drawn = random.Random(0)
    found: dict[str, Any] = {"cold": _stretch(world.db, clock, sql, 200, until_full=True)}
    _start_all(world.db)
    found["full"] = _stretch(world.db, clock, sql, ticks)
    for ended in (4, 32):
        found[f"ended_{ended}"] = _stretch(
            world.db, clock, sql, ticks, before=lambda n=ended: _finish(world.db, drawn, n)
        )
    return found


def occupy(world: World) -> None:
    """Give every GPU something that runs."""
    clock = Scheduler(world.db, SETTINGS, lambda: None, holder="benchmark")
    while clock.tick():
        _start_all(world.db)


def _stretch(
    db: Database,
    clock: Scheduler,
    sql: SqlTime,
    ticks: int,
    *,
    before: Any = None,
    until_full: bool = False,
) -> dict[str, Any]:
    whole, database, made, statements = [], [], [], []
    for _ in range(ticks):
        if before is not None:
            before()
        sql.reset()
        with elapsed() as taken:
            made.append(clock.tick())
        whole.extend(taken)
        database.append(sql.seconds)
        statements.append(sql.statements)
        if before is not None:
            _start_all(db)
        if until_full and not made[-1]:
            break
    return {
        "ticks": len(whole),
        "assigned": sum(made),
        "tick_ms": milliseconds(whole),
        "sql_ms": milliseconds(database),
        "ratio": round(statistics.median(whole) / statistics.median(database), 2),
        "statements": statistics.median(statements),
    }


def _start_all(db: Database) -> None:
    """Everything that was assigned is claimed and runs."""
    with db.write() as session:
        now = db.now(session)
        rows = session.scalars(select(schema.Attempt).where(schema.Attempt.state == "assigned"))
        for row in rows:
            row.state, row.started_at = AttemptState.RUNNING.value, now
            row.deadline_at = row.lease_expires_at


def _finish(db: Database, drawn: random.Random, number: int) -> None:
    table = schema.Attempt
    with db.read() as session:
        running = session.execute(
            select(table.id, table.worker_id, table.lease_token)
            .where(table.released_at.is_(None))
            .order_by(func.md5(table.id))
        ).all()
    for attempt, worker, token in drawn.sample(list(running), min(number, len(running))):
        with db.write() as session:
            attempts.finish(db, session, attempt, worker, token, DONE, Telemetry())
