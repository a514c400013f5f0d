"""What workers hand in: log bytes, and files with the manifest that makes them count."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from assay.contracts.worker import LogPiece, ManifestEntry, Point, SystemPoint
from assay.domain.errors import AssayError, Conflict, Fenced, InvalidInput
from assay.domain.states import AttemptState
from assay.storage import attempts, logs, schema
from assay.storage.attempts import Outcome
from assay.storage.logs import Piece, StoredPiece
from assay.storage.objects import attempt_prefix
from assay.storage.telemetry import Telemetry
from services.implementer.context import Context
from services.implementer.streams import decode_piece

_log = logging.getLogger(__name__)
FILE_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Lease:
    """What a worker says to hold."""

    attempt: str
    worker: str
    token: int


def prefix_of(context: Context, lease: Lease) -> str:
    """Where an attempt's files lie. Raises NotFound, Forbidden or Fenced."""
    with context.db.read() as session:
        found = attempts.subject(session, lease.attempt, lease.worker, lease.token)
    return attempt_prefix(found.measurement, lease.attempt, lease.token)


def live_prefix(context: Context, lease: Lease) -> str:
    """Where a live attempt's files lie. Raises NotFound, Forbidden or Fenced."""
    prefix = prefix_of(context, lease)
    with context.db.read() as session:
        state = session.get_one(schema.Attempt, lease.attempt).state
    if not AttemptState(state).is_live:
        raise Fenced(f"attempt {lease.attempt} is {state}")
    return prefix


def telemetry_of(
    context: Context,
    lease: Lease,
    pieces: Sequence[Piece],
    points: Sequence[Point] = (),
    system: Sequence[SystemPoint] = (),
) -> Telemetry:
    """A report as it is stored; what is large of its logs lies in the object store already."""
    return Telemetry(
        tuple(_keep(context, lease, pieces)),
        tuple((point.seq, point.step, point.values) for point in points),
        tuple((point.seq, point.seconds, point.values) for point in system),
    )


def log_pieces(logs: Iterable[LogPiece]) -> list[Piece]:
    """The log bytes of a message."""
    return [Piece(piece.stream, piece.offset, decode_piece(piece.data)) for piece in logs]


def _keep(
    context: Context, lease: Lease, pieces: Sequence[Piece]
) -> Sequence[Piece | StoredPiece]:
    most = context.settings.max_log_bytes
    kept = [piece.before(most) for piece in pieces if piece.offset < most]
    if not any(logs.is_for_objects(piece) for piece in kept):
        return kept
    prefix = prefix_of(context, lease)
    with context.db.read() as session:
        ends = {p.stream: logs.stream_end(session, lease.attempt, p.stream) for p in kept}
    return logs.move_large(context.store, prefix, kept, ends)


def compact(context: Context, lease: Lease, pieces: Iterable[Piece | StoredPiece]) -> None:
    """Move log bytes that have gathered into the object store, or leave them for later."""
    for stream in logs.wants_compaction(pieces):
        try:
            prefix = prefix_of(context, lease)
            logs.compact(context.db, context.store, prefix, lease.attempt, stream)
        except AssayError as error:
            _log.warning("%s: its log stays in the database: %s", lease.attempt, error)


def store_files(context: Context, prefix: str, entries: Iterable[ManifestEntry]) -> None:
    """Store the files that a message carries, and see whether the others are stored.

    Raises:
        Conflict: a file is not there as announced (`artifact_missing`): upload it again.
    """
    for entry in entries:
        if entry.name == MANIFEST or not re.fullmatch(FILE_NAME, entry.name):
            raise InvalidInput(f"{entry.name!r} is not a name for a file of an attempt")
        if entry.data is not None:
            _store_inline(context, prefix, entry)
        else:
            _verify(context, f"{prefix}/{entry.name}", entry)


def _store_inline(context: Context, prefix: str, entry: ManifestEntry) -> None:
    data = decode_piece(entry.data or "")
    if hashlib.sha256(data).hexdigest() != entry.sha256 or len(data) != entry.bytes:
        raise InvalidInput(f"{entry.name}: its bytes are not those of its hash")
    context.store.put(f"{prefix}/{entry.name}", data)


def _verify(context: Context, key: str, entry: ManifestEntry) -> None:
    stat = context.store.stat(key)
    if stat is not None and stat.size == entry.bytes and stat.sha256 in (None, entry.sha256):
        return
    if stat is not None:
        context.store.remove(key)  # a key is written once: this one is in the way
    raise Conflict(
        f"{entry.name} is not stored with {entry.bytes} bytes and hash {entry.sha256[:12]}…; "
        "upload it again",
        code="artifact_missing",
    )


def write_manifest(context: Context, lease: Lease, measurement: str, outcome: Outcome) -> None:
    """Say what an attempt has stored. Written last: an attempt with a manifest is complete."""
    if outcome.artifacts:
        manifest = json.dumps(
            {
                "attempt": lease.attempt,
                "measurement": measurement,
                "files": list(outcome.artifacts),
            },
            sort_keys=True,
        )
        context.store.put(f"{outcome.prefix}/{MANIFEST}", manifest.encode())
