"""What attempts report while they run: log bytes, curve points, system points.

Everything has a key of its own (a byte offset, a sequence number): storing it twice changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from assay.storage import logs, schema
from assay.storage.logs import Piece, StoredPiece
from assay.storage.rows import insert_missing
from assay.storage.text import clean_json

__all__ = ["Piece", "StoredPiece", "Telemetry", "store"]

#: SQLite bounds the variables of a statement.
_ROWS = 500


@dataclass(frozen=True)
class Telemetry:
    """Log bytes, curve points (seq, step, values) and system points (seq, seconds, values)."""

    logs: tuple[Piece | StoredPiece, ...] = ()
    points: tuple[tuple[int, float | None, dict[str, float]], ...] = ()
    system: tuple[tuple[int, float, dict[str, float]], ...] = ()


def store(session: Session, attempt_id: str, telemetry: Telemetry) -> None:
    """Store what is not stored yet."""
    logs.add(session, attempt_id, telemetry.logs)
    _insert(
        session,
        schema.CurvePoint,
        [
            {"attempt_id": attempt_id, "seq": seq, "step": step, "values": clean_json(values)}
            for seq, step, values in telemetry.points
        ],
    )
    _insert(
        session,
        schema.SystemPoint,
        [
            {"attempt_id": attempt_id, "seq": seq, "seconds": at, "values": clean_json(values)}
            for seq, at, values in telemetry.system
        ],
    )


def _insert(session: Session, model: type[schema.Base], rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS):
        insert_missing(session, model, rows[start : start + _ROWS])
