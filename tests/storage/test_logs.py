"""Log bytes are what was written, wherever they lie and however often they arrive."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from assay.domain.errors import Unavailable
from assay.domain.states import AttemptState
from assay.environments.catalog import Catalog
from assay.storage import attempts, garbage, logs, schema
from assay.storage.attempts import Outcome
from assay.storage.database import Database
from assay.storage.logs import HEAD, OBJECT, Piece
from assay.storage.objects import LocalStore, ObjectStore
from assay.storage.s3 import S3Store
from assay.storage.telemetry import Telemetry
from tests.storage.lifecycle import World
from tests.support.s3_server import FaultyS3

PREFIX = "attempts/m/a-1"


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


@pytest.fixture
def attempt(world: World) -> schema.Attempt:
    experiment = world.experiments(world.submit("an idea"))[0].id
    attempt = world.assign(world.implement(experiment, "a = 1\n"))
    assert attempt is not None
    world.claim(attempt)
    return attempt


def send(
    world: World,
    store: ObjectStore,
    attempt: schema.Attempt,
    *pieces: Piece,
    compacts: bool = True,
) -> None:
    """What a report does; with `compacts=False`, up to the moment at which it moves rows."""
    with world.db.read() as session:
        ends = {p.stream: logs.stream_end(session, attempt.id, p.stream) for p in pieces}
    moved = logs.move_large(store, PREFIX, pieces, ends)
    with world.db.write() as session:
        attempts.progress(
            world.db,
            session,
            attempt.id,
            world.worker,
            attempt.lease_token,
            Telemetry(tuple(moved)),
        )
    for stream in logs.wants_compaction(moved) if compacts else ():
        logs.compact(world.db, store, PREFIX, attempt.id, stream)


def read(
    world: World, store: ObjectStore, attempt: schema.Attempt, offset: int, limit: int
) -> bytes:
    with world.db.read() as session:
        parts = logs.find(session, attempt.id, "train", offset, limit)
    return logs.read(store, parts, offset, limit)


def whole(world: World, store: ObjectStore, attempt: schema.Attempt, page: int = HEAD) -> bytes:
    out = b""
    while data := read(world, store, attempt, len(out), page):
        out += data
    return out


def in_rows(world: World) -> int:
    """How many bytes of logs the database holds."""
    with world.db.read() as session:
        return session.scalars(select(func.sum(func.length(schema.LogChunk.data)))).one() or 0


@pytest.mark.parametrize("seed", range(4))
def test_bytes_are_those_that_were_written(
    world: World, store: LocalStore, attempt: schema.Attempt, seed: int
) -> None:
    chance = random.Random(seed)
    content = chance.randbytes(9 << 20)
    sent = 0
    while sent < len(content):
        size = chance.choice([chance.randrange(1, 5000), 200 << 10, 900 << 10, 3 << 20])
        back = chance.choice([0, 0, min(sent, 100), min(sent, 300 << 10)])
        start = sent - back  # an answer got lost: the same again, with more
        piece = Piece("train", start, content[start : sent + size])
        for _ in range(chance.choice([1, 1, 2])):
            send(world, store, attempt, piece)
        sent = min(len(content), sent + size)
        assert in_rows(world) < HEAD + 2 * OBJECT
    assert whole(world, store, attempt) == content
    assert whole(world, store, attempt, 300_007) == content
    for _ in range(20):
        offset, limit = chance.randrange(len(content)), chance.randrange(1, HEAD)
        assert read(world, store, attempt, offset, limit) == content[offset : offset + limit]
    assert read(world, store, attempt, len(content), HEAD) == b""


def test_a_short_log_needs_no_object(
    world: World, store: LocalStore, attempt: schema.Attempt
) -> None:
    send(world, store, attempt, Piece("train", 0, b"x" * HEAD), Piece("score", 0, b"y"))
    assert list(store.list(PREFIX)) == []
    assert whole(world, store, attempt) == b"x" * HEAD


def test_a_slow_log_is_seen_at_once_and_gathers_in_objects(
    world: World, store: LocalStore, attempt: schema.Attempt
) -> None:
    content = os.urandom(HEAD + 3 * OBJECT)
    send(world, store, attempt, Piece("train", 0, content[:HEAD]))
    for start in range(HEAD, len(content), 100_000):
        send(world, store, attempt, Piece("train", start, content[start : start + 100_000]))
        shown = min(len(content), start + 100_000)
        assert read(world, store, attempt, start, HEAD) == content[start:shown]
    objects = list(store.list(PREFIX))
    assert len(objects) in (2, 3)
    assert all(OBJECT <= item.size < 2 * OBJECT for item in objects)
    assert whole(world, store, attempt) == content


def test_rows_between_objects_are_moved_too(
    world: World, store: LocalStore, attempt: schema.Attempt
) -> None:
    content, sent = os.urandom(24 << 20), 0
    for size in [HEAD, *[300 << 10, 2 << 20] * 10]:
        send(world, store, attempt, Piece("train", sent, content[sent : sent + size]))
        sent += size
    assert in_rows(world) < HEAD + (1 << 20)
    assert whole(world, store, attempt) == content[:sent]


def test_a_log_that_is_moved_by_two_is_moved_once(
    world: World, store: LocalStore, attempt: schema.Attempt
) -> None:
    content = os.urandom(HEAD + OBJECT + 5)
    for start in range(0, len(content), 200_000):
        piece = Piece("train", start, content[start : start + 200_000])
        send(world, store, attempt, piece, compacts=False)

    class Overtaken(LocalStore):
        """A store in which another process puts the object first, and records it."""

        def put(self, key: str, data: bytes) -> bool:
            assert logs.compact(world.db, store, PREFIX, attempt.id, "train") > 0
            return super().put(key, data)

    slow = Overtaken(store.folder)
    assert logs.compact(world.db, slow, PREFIX, attempt.id, "train") == 0
    assert whole(world, store, attempt) == content


def test_a_large_piece_that_was_overtaken_is_sent_again(
    world: World, store: LocalStore, attempt: schema.Attempt
) -> None:
    content = os.urandom(HEAD + 2 * OBJECT)
    send(world, store, attempt, Piece("train", 0, content[:HEAD]))
    late = logs.move_large(store, PREFIX, [Piece("train", HEAD, content[HEAD:])], {"train": HEAD})
    send(world, store, attempt, Piece("train", HEAD, content[HEAD : HEAD + 10]))
    with pytest.raises(Unavailable, match="again"), world.db.write() as session:
        logs.add(session, attempt.id, late)
    send(world, store, attempt, Piece("train", HEAD, content[HEAD:]))
    assert whole(world, store, attempt) == content


def test_a_store_that_is_away_costs_no_byte(
    world: World, attempt: schema.Attempt, faulty_s3: FaultyS3, tmp_path: Path
) -> None:
    store = S3Store("bucket", tmp_path.name, faulty_s3.url)
    content = os.urandom(6 << 20)
    send(world, store, attempt, Piece("train", 0, content[: 3 << 20]))
    faulty_s3.intercept = lambda method, path: 503
    with pytest.raises(Unavailable):
        send(world, store, attempt, Piece("train", 3 << 20, content[3 << 20 :]))
    faulty_s3.intercept = lambda method, path: None
    send(world, store, attempt, Piece("train", 3 << 20, content[3 << 20 :]))
    assert whole(world, store, attempt) == content
    reads = [r for r in faulty_s3.requests if r[0] == "GET"]
    assert all("range" in headers for _, _, headers in reads)


def test_what_nobody_can_reach_is_removed(
    world: World, store: LocalStore, attempt: schema.Attempt
) -> None:
    prefix = f"attempts/{attempt.measurement_id}/{attempt.id}-{attempt.lease_token}"
    fenced = f"attempts/{attempt.measurement_id}/att_gone-1"
    content = os.urandom(HEAD + OBJECT)
    store.put(f"{prefix}/artifact.zip", b"weights")
    moved = logs.move_large(store, prefix, [Piece("train", 0, content)], {"train": 0})
    store.put(f"{prefix}/logs/train-0-nobody", b"a piece that no row names")
    store.put(f"{fenced}/artifact.zip", b"of a zombie")
    store.put("codebases/" + "0" * 64 + ".zip", b"never recorded")
    store.put("bundles/" + "0" * 64 + ".zip", b"never recorded")
    (store.folder / "codebases" / ".new-cut-off").write_bytes(b"half")

    def keys() -> set[str]:
        return {i.key for top in ("attempts/", "codebases/", "bundles/") for i in store.list(top)}

    before = keys()
    assert garbage.collect(world.db, store, timedelta(days=1)) == garbage.Collected()
    assert keys() == before
    # A live attempt keeps all it wrote: it may still name it.
    assert garbage.collect(world.db, store, timedelta(days=-1)).objects == 4
    outcome = Outcome(
        AttemptState.SUCCEEDED,
        metric=1.0,
        prefix=prefix,
        artifacts=({"name": "artifact.zip", "bytes": 7, "sha256": "0" * 64},),
    )
    world.finish(attempt, outcome, Telemetry(tuple(moved)))
    assert garbage.collect(world.db, store, timedelta(days=-1)).objects == 1
    left = keys()
    assert before - left == {
        f"{prefix}/logs/train-0-nobody",
        f"{fenced}/artifact.zip",
        "codebases/" + "0" * 64 + ".zip",
        "bundles/" + "0" * 64 + ".zip",
        "codebases/.new-cut-off",
    }
    assert whole(world, store, attempt) == content


@pytest.mark.postgres
def test_the_command_that_removes_what_nobody_can_reach(
    postgres: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = LocalStore(tmp_path / "objects")
    store.put("codebases/" + "0" * 64 + ".zip", b"12345")
    monkeypatch.setenv("ASSAY_SERVER_DATABASE_URL", postgres.url)
    monkeypatch.setenv("ASSAY_SERVER_OBJECTS_URL", str(store.folder))
    large = "; 0 large artifacts removed, 0 bytes\n"
    assert garbage.main(["--days", "1"]) == 0
    assert capsys.readouterr().out == f"0 objects removed, 0 bytes{large}"
    assert garbage.main(["--days", "-1"]) == 0
    assert capsys.readouterr().out == f"1 objects removed, 5 bytes{large}"
