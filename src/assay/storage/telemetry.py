"""What attempts report while they run: log bytes, curve points, system points.

Everything has a key of its own (a byte offset, a sequence number): storing it twice changes
nothing. A worker's token is all it takes to send points, so their number is bounded here: at most
`MAX_POINTS` of each kind per attempt, and so of each metric. Wide points of a curve are thinned in
proportion to their size, which bounds the bytes of a curve too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session

from assay.storage import logs, schema
from assay.storage.logs import Piece, StoredPiece
from assay.storage.rows import insert_missing
from assay.storage.text import clean_json

__all__ = ["Piece", "StoredPiece", "Telemetry", "is_kept", "store"]

#: Points with a smaller number are all stored. Assay's worker sends no more points of a kind.
ALL_POINTS = 20_000
#: From there on, about as many are stored each time that the number doubles.
POINTS_PER_DOUBLING = 1_250
#: Numbers end at 2^31, 17 doublings later: 20,000 + 17 * 1,250 = 41,250, and a few by chance.
MAX_POINTS = 42_000
#: Names of one point: what Assay's worker keeps of a line, and more than 16 GPUs need.
CURVE_VALUES = 64
SYSTEM_VALUES = 256
#: Bytes of a curve's point that are stored whatever its number, and at first. In between, the
#: share of a point falls as its number rises, so that a curve of wide points is at most 18 MB.
LEAST_SHARE, FIRST_SHARE = 256, 4096
_SHARED = 2 << 20
#: 2^32 divided by the golden ratio: multiples of it are spread evenly over 32 bits, so that lines
#: of several kinds that take turns in a file are thinned alike.
_GOLDEN = 0x9E3779B1


def is_kept(seq: int, size: int = 0) -> bool:
    """Whether the point with this number, of `size` bytes, is stored. Later and wider points are
    thinned, without counting what is there: a repeated report stores the same ones."""
    share = max(LEAST_SHARE, min(FIRST_SHARE, _SHARED // max(seq, 1)))
    kept, of = share, max(size, share)
    if seq >= ALL_POINTS:
        kept *= POINTS_PER_DOUBLING
        of *= ALL_POINTS << ((seq // ALL_POINTS).bit_length() - 1)
    return (seq * _GOLDEN) % (1 << 32) * of < kept << 32


@dataclass(frozen=True)
class Telemetry:
    """Log bytes, curve points (seq, step, values) and system points (seq, seconds, values)."""

    logs: tuple[Piece | StoredPiece, ...] = ()
    points: tuple[tuple[int, float | None, dict[str, float]], ...] = ()
    system: tuple[tuple[int, float, dict[str, float]], ...] = ()


def store(session: Session, attempt_id: str, telemetry: Telemetry) -> None:
    """Store what is not stored yet."""
    logs.add(session, attempt_id, telemetry.logs)
    insert_missing(
        session,
        schema.CurvePoint,
        [
            {"attempt_id": attempt_id, "seq": seq, "step": step} | first
            for seq, step, values in telemetry.points
            # What is not stored at any size need not be measured.
            if is_kept(seq)
            and is_kept(seq, len(json.dumps(first := _first(values, CURVE_VALUES))))
        ],
    )
    insert_missing(
        session,
        schema.SystemPoint,
        [
            {"attempt_id": attempt_id, "seq": seq, "seconds": at} | _first(values, SYSTEM_VALUES)
            for seq, at, values in telemetry.system
            if is_kept(seq)
        ],
    )


def _first(values: dict[str, float], most: int) -> dict[str, Any]:
    return {"values": clean_json(dict(islice(values.items(), most)))}
