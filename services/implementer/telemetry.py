"""Read back the logs and curves that workers reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from fastapi.responses import PlainTextResponse
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from assay.contracts.batch import CurvePoint, SystemSample
from assay.storage import logs, schema
from assay.storage.objects import ObjectStore

Stream = Literal["train", "score"]
MAX_LOG_PAGE = 1 << 20
MAX_OFFSET = 1 << 62
Row = TypeVar("Row", schema.CurvePoint, schema.SystemPoint)


class LogReading(NamedTuple):
    """Bytes of a log, where the next ones start, and whether there will be none.

    `measurement`: whose log it is, once that is known.
    """

    data: bytes
    next_offset: int
    ended: bool
    measurement: str | None = None


@dataclass(frozen=True)
class LogPlace:
    """Where the bytes of a log from `offset` on lie: known within a transaction, read after it."""

    measurement: str
    offset: int
    limit: int
    parts: list[logs.Part] = field(default_factory=list)

    def read(self, store: ObjectStore, *, ended: bool = False) -> LogReading:
        """Up to `limit` bytes, as far as they arrived without a gap.

        `ended`: the writer had ended when the place was found, so that no bytes means no more.
        """
        data = logs.read(store, self.parts, self.offset, self.limit)
        return LogReading(data, self.offset + len(data), ended and not data, self.measurement)


def latest_attempt(session: Session, measurement_id: str) -> str | None:
    """The newest attempt of a measurement: the one whose logs and curves are shown."""
    return session.scalars(
        select(schema.Attempt.id)
        .where(schema.Attempt.measurement_id == measurement_id)
        .order_by(schema.Attempt.number.desc())
        .limit(1)
    ).first()


def find_log(
    session: Session, measurement_id: str, stream: Stream, offset: int, limit: int
) -> LogPlace:
    """Where up to `limit` bytes of a measurement's log are."""
    attempt = latest_attempt(session, measurement_id)
    parts = logs.find(session, attempt, stream, offset, limit) if attempt else []
    return LogPlace(measurement_id, offset, limit, parts)


def log_response(reading: LogReading) -> PlainTextResponse:
    """A log as plain text. Terminal escapes are left in: this is the raw log."""
    headers = {"Next-Offset": str(reading.next_offset), "X-Content-Type-Options": "nosniff"}
    text = reading.data.decode("utf-8", "replace")
    return PlainTextResponse(text, headers=headers)


def read_curves(session: Session, measurement_id: str, max_points: int) -> list[CurvePoint]:
    """The curve points of a measurement, thinned evenly; the last one is always there."""
    rows = _thinned(session, schema.CurvePoint, measurement_id, max_points)
    return [CurvePoint(seq=row.seq, step=row.step, values=_numbers(row.values)) for row in rows]


def read_system(session: Session, measurement_id: str, max_points: int) -> list[SystemSample]:
    """What the worker saw a measurement use, thinned evenly; the last one is always there."""
    rows = _thinned(session, schema.SystemPoint, measurement_id, max_points)
    return [
        SystemSample(seq=row.seq, seconds=row.seconds, values=_numbers(row.values)) for row in rows
    ]


def _thinned(session: Session, table: type[Row], measurement_id: str, most: int) -> Sequence[Row]:
    """Return every n-th point and the last one. The database counts: others are not loaded."""
    place = (func.row_number().over(order_by=table.seq) - 1).label("place")
    total = func.count().over().label("total")
    counted = (
        select(table.attempt_id, table.seq, place, total)
        .where(table.attempt_id == latest_attempt(session, measurement_id))
        .subquery()
    )
    stride = (counted.c.total + most - 1) // most
    same = (table.attempt_id == counted.c.attempt_id) & (table.seq == counted.c.seq)
    return session.scalars(
        select(table)
        .join(counted, same)
        .where(or_(counted.c.place % stride == 0, counted.c.place == counted.c.total - 1))
        .order_by(table.seq)
    ).all()


def _numbers(stored: dict[str, Any]) -> dict[str, float]:
    """Stored numbers; non-finite ones are stored as text."""
    return {name: float(value) for name, value in stored.items()}
