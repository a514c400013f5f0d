"""Logs of attempts: bytes at an offset of a stream, stored once wherever they lie.

The first MiB of a stream lies in the database, so that most logs need no object at all. What
follows lies in the object store, in objects of a MiB and more below the attempt's own prefix;
bytes that arrive in smaller pieces wait in the database until there are enough of them.

A report may be repeated, also with more bytes at the same offset: only what is new is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, func, select
from sqlalchemy.orm import Session

from assay.domain.errors import Unavailable
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import ObjectStore
from assay.storage.rows import changed, insert_missing, run

HEAD = 1 << 20
OBJECT = 1 << 20
#: Rows that an object follows are few bytes and stay; more than this is moved.
_SMALL = 64 << 10
_COMPACTED = 8 << 20

_table = schema.LogChunk
_SIZE: ColumnElement[int] = func.coalesce(func.length(_table.data), _table.size)
_LAST = (
    select(_table.byte_offset, _SIZE.label("size"))
    .where(_table.attempt_id == bindparam("attempt"), _table.stream == bindparam("of"))
    .order_by(_table.byte_offset.desc())
    .limit(1)
)


@dataclass(frozen=True)
class Piece:
    """Log bytes at an offset of a stream."""

    stream: str
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    def after(self, offset: int) -> Piece:
        """What of it lies at `offset` and beyond."""
        skipped = max(0, offset - self.offset)
        return replace(self, offset=self.offset + skipped, data=self.data[skipped:])

    def before(self, offset: int) -> Piece:
        """What of it lies before `offset`."""
        return replace(self, data=self.data[: max(0, offset - self.offset)])


@dataclass(frozen=True)
class StoredPiece:
    """Log bytes that are in the object store."""

    stream: str
    offset: int
    size: int
    key: str

    @property
    def end(self) -> int:
        return self.offset + self.size


def is_for_objects(piece: Piece) -> bool:
    """Whether some of a piece goes to the object store at once."""
    return piece.end - max(piece.offset, HEAD) >= OBJECT


def move_large(
    store: ObjectStore, prefix: str, pieces: Iterable[Piece], ends: Mapping[str, int]
) -> list[Piece | StoredPiece]:
    """What is new of the pieces, given what is recorded, with the large ones in the store."""
    moved: list[Piece | StoredPiece] = []
    for piece in pieces:
        known, new = piece.before(ends[piece.stream]), piece.after(ends[piece.stream])
        if known.data:  # perhaps it fills a gap
            moved.append(known)
        if not is_for_objects(new):
            moved.append(new)
            continue
        if new.offset < HEAD:
            moved.append(new.before(HEAD))
        moved.append(_put(store, prefix, new.after(HEAD)))
    return moved


def _put(store: ObjectStore, prefix: str, piece: Piece) -> StoredPiece:
    # The hash: a piece that is repeated with more bytes is another object.
    digest = hashlib.sha256(piece.data).hexdigest()[:16]
    key = f"{prefix}/logs/{piece.stream}-{piece.offset}-{digest}"
    store.put(key, piece.data)
    return StoredPiece(piece.stream, piece.offset, len(piece.data), key)


def add(session: Session, attempt_id: str, pieces: Iterable[Piece | StoredPiece]) -> None:
    """Record what of the pieces is not there yet. The attempt is held by the transaction.

    Raises:
        Unavailable: a part of a piece was recorded by another request at this moment.
    """
    for piece in pieces:
        end = stream_end(session, attempt_id, piece.stream)
        of: dict[str, Any] = {"attempt_id": attempt_id, "stream": piece.stream}
        if isinstance(piece, Piece):
            rows = [
                {"byte_offset": new.offset, "size": len(new.data), "data": new.data}
                for new in _missing(session, attempt_id, piece, end)
            ]
        elif piece.end <= end:
            continue
        elif piece.offset < end:
            raise Unavailable("these log bytes arrive twice at once; send them again")
        else:
            rows = [{"byte_offset": piece.offset, "size": piece.size, "key": piece.key}]
        insert_missing(session, _table, [of | row for row in rows])


def _missing(session: Session, attempt_id: str, piece: Piece, end: int) -> list[Piece]:
    """What of a piece is not recorded: what lies beyond the end, and gaps before it, since
    reports may arrive out of order."""
    found, position = [], piece.offset
    if position < end:
        recorded = session.execute(
            select(_table.byte_offset, _SIZE)
            .where(
                _table.attempt_id == attempt_id,
                _table.stream == piece.stream,
                _table.byte_offset < piece.end,
                _table.byte_offset + _SIZE > position,
            )
            .order_by(_table.byte_offset)
        ).all()
        for offset, size in recorded:
            found.append(piece.after(position).before(offset))
            position = max(position, offset + size)
    found.append(piece.after(position))
    return [new for new in found if new.data]


def stream_end(session: Session, attempt_id: str, stream: str) -> int:
    """How many bytes of a stream are recorded."""
    last = run(session, _LAST, attempt=attempt_id, of=stream).mappings().one_or_none()
    return 0 if last is None else last["byte_offset"] + last["size"]


def wants_compaction(pieces: Iterable[Piece | StoredPiece]) -> set[str]:
    """Streams in whose rows enough may have gathered to be moved."""
    return {
        piece.stream
        for piece in pieces
        if piece.end > HEAD
        and (isinstance(piece, StoredPiece) or piece.offset // OBJECT != piece.end // OBJECT)
    }


def compact(db: Database, store: ObjectStore, prefix: str, attempt_id: str, stream: str) -> int:
    """Move gathered rows beyond the first MiB into the object store. Returns how many."""
    with db.read() as session:
        adjacent = _first_run(session, attempt_id, stream)
        if not adjacent:
            return 0
        rows = session.scalars(
            select(_table.data)
            .where(*_rows(attempt_id, stream, adjacent))
            .order_by(_table.byte_offset)
        )
        data = b"".join(row or b"" for row in rows)
    piece = _put(store, prefix, Piece(stream, adjacent[0], data))
    with db.write() as session:
        gone = changed(session, delete(_table).where(*_rows(attempt_id, stream, adjacent)))
        if gone != len(adjacent):  # another process moves them, too
            session.rollback()
            return 0
        row = {"byte_offset": piece.offset, "size": piece.size, "key": piece.key}
        insert_missing(
            session, _table, [{"attempt_id": attempt_id, "stream": stream, "data": None, **row}]
        )
    return len(adjacent)


def _rows(attempt_id: str, stream: str, offsets: Sequence[int]) -> tuple[ColumnElement[bool], ...]:
    return (
        _table.attempt_id == attempt_id,
        _table.stream == stream,
        _table.byte_offset >= offsets[0],
        _table.byte_offset <= offsets[-1],
        _table.data.is_not(None),
    )


def _first_run(session: Session, attempt_id: str, stream: str) -> list[int]:
    """Offsets of the first adjacent rows that are worth an object."""
    end = stream_end(session, attempt_id, stream)
    found = session.execute(
        select(_table.byte_offset, _SIZE)
        .where(
            _table.attempt_id == attempt_id,
            _table.stream == stream,
            _table.byte_offset >= HEAD,
            _table.data.is_not(None),
        )
        .order_by(_table.byte_offset)
    ).all()
    adjacent: list[int] = []
    position = total = 0
    for offset, size in found:
        if adjacent and (offset != position or total >= _COMPACTED):
            if total >= (OBJECT if position == end else _SMALL):
                return adjacent
            adjacent, total = [], 0
        adjacent.append(offset)
        position, total = offset + size, total + size
    return adjacent if total >= (OBJECT if position == end else _SMALL) else []


@dataclass(frozen=True)
class Part:
    """Where some bytes of a stream lie."""

    offset: int
    size: int
    data: bytes | None
    key: str | None


def find(session: Session, attempt_id: str, stream: str, offset: int, limit: int) -> list[Part]:
    """Where up to `limit` bytes from `offset` on lie. One statement: rows may be moved."""
    mine = (_table.attempt_id == attempt_id, _table.stream == stream)
    start = (
        select(func.max(_table.byte_offset))
        .where(*mine, _table.byte_offset <= offset)
        .scalar_subquery()
    )
    rows = session.execute(
        select(_table.byte_offset, _SIZE, _table.data, _table.key)
        .where(
            *mine,
            _table.byte_offset >= func.coalesce(start, 0),
            _table.byte_offset < offset + limit,
        )
        .order_by(_table.byte_offset)
    ).all()
    return [Part(*row) for row in rows]


def read(store: ObjectStore, parts: Iterable[Part], offset: int, limit: int) -> bytes:
    """Up to `limit` bytes from `offset` on, as far as they arrived without a gap."""
    found: list[bytes] = []
    position = offset
    for part in parts:
        if part.offset > position:
            break
        skipped = position - part.offset
        length = min(part.size - skipped, offset + limit - position)
        if length <= 0:
            continue
        if part.key is None:
            data = (part.data or b"")[skipped : skipped + length]
        else:
            data = store.get_range(part.key, skipped, length)
        found.append(data)
        position += len(data)
    return b"".join(found)
