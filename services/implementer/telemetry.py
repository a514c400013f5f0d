"""Read back the logs and curves that workers reported."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from fastapi.responses import PlainTextResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from assay.contracts.batch import CurvePoint
from assay.storage import schema

Stream = Literal["train", "score"]
MAX_LOG_PAGE = 1 << 20
MAX_OFFSET = 1 << 62


class LogReading(NamedTuple):
    """Bytes of a log, where the next ones start, and whether there will be none."""

    data: bytes
    next_offset: int
    ended: bool


def latest_attempt(session: Session, measurement_id: str) -> str | None:
    """The newest attempt of a measurement: the one whose logs and curves are shown."""
    return session.scalars(
        select(schema.Attempt.id)
        .where(schema.Attempt.measurement_id == measurement_id)
        .order_by(schema.Attempt.number.desc())
        .limit(1)
    ).first()


def read_log(
    session: Session, measurement_id: str, stream: Stream, offset: int, limit: int
) -> LogReading:
    """Up to `limit` bytes of a log from `offset` on, as far as they arrived without a gap."""
    attempt = latest_attempt(session, measurement_id)
    table = schema.LogChunk
    start = session.scalars(
        select(func.max(table.byte_offset)).where(
            table.attempt_id == attempt, table.stream == stream, table.byte_offset <= offset
        )
    ).one()
    chunks = session.execute(
        select(table.byte_offset, table.data)
        .where(
            table.attempt_id == attempt,
            table.stream == stream,
            table.byte_offset >= (start or 0),
            table.byte_offset < offset + limit,
        )
        .order_by(table.byte_offset)
    ).all()
    data, position = b"", offset
    for chunk_offset, chunk in chunks:
        if chunk_offset > position:
            break
        new = (chunk or b"")[position - chunk_offset :]
        data, position = data + new, position + len(new)
    data = data[:limit]
    return LogReading(data, offset + len(data), ended=False)


def log_response(reading: LogReading) -> PlainTextResponse:
    """A log as plain text. Terminal escapes are left in: this is the raw log."""
    headers = {"Next-Offset": str(reading.next_offset), "X-Content-Type-Options": "nosniff"}
    text = reading.data.decode("utf-8", "replace")
    return PlainTextResponse(text, headers=headers)


def read_curves(session: Session, measurement_id: str, max_points: int) -> list[CurvePoint]:
    """The curve points of a measurement, thinned evenly; the last one is always there."""
    table = schema.CurvePoint
    attempt = latest_attempt(session, measurement_id)
    total = session.scalars(select(func.count()).where(table.attempt_id == attempt)).one()
    stride = max(1, math.ceil(total / max_points))
    rows = session.scalars(
        select(table).where(table.attempt_id == attempt).order_by(table.seq)
    ).all()
    kept = [row for i, row in enumerate(rows) if i % stride == 0 or i == total - 1]
    return [
        CurvePoint(
            seq=row.seq,
            step=row.step,
            values={name: _number(value) for name, value in row.values.items()},
        )
        for row in kept
    ]


def _number(stored: Any) -> float:
    """A stored number; non-finite ones are stored as text."""
    return float(stored)
