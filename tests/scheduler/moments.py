"""A scheduler over a database, and rows as they are some time later."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from assay.storage import schema
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import World

_TIMES: dict[type[schema.Base], tuple[str, ...]] = {
    schema.Attempt: ("lease_expires_at", "created_at", "rung_at", "deadline_at", "finished_at"),
    schema.Worker: ("last_seen_at", "cordoned_until"),
    schema.Measurement: ("not_before",),
    schema.Leader: ("expires_at",),
}


def scheduler(
    world: World, clock: Callable[[], float] = time.monotonic, **settings: Any
) -> Scheduler:
    """The only scheduler of a world, which leads already: the amnesty is over."""
    chosen = SchedulerSettings.model_validate(settings)
    made = Scheduler(world.db, chosen, lambda: None, holder="local", clock=clock)
    made.tick()
    return made


def pass_time(world: World, seconds: float, *tables: type[schema.Base]) -> None:
    """As if so long ago everything was written that these tables hold."""
    with world.db.write() as session:
        for table in tables:
            for row in session.query(table):
                for name in _TIMES[table]:
                    value = getattr(row, name)
                    if value is not None:
                        setattr(row, name, value - timedelta(seconds=seconds))


def set_attempt(world: World, attempt: str, **values: Any) -> None:
    """Change an attempt behind everybody's back."""
    with world.db.write() as session:
        session.execute(
            update(schema.Attempt).where(schema.Attempt.id == attempt).values(**values)
        )
