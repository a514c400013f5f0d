"""Files and logs between workers, API and object store, each a real server."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.contracts.worker import FinishRequest, ManifestEntry
from assay.domain.errors import Fenced, InvalidInput, NotFound, Unavailable
from assay.environments.catalog import Catalog
from assay.storage import retention, schema, workers
from assay.storage.objects import LocalStore, ObjectStore, Upload, attempt_prefix
from assay.storage.retention import Retention
from assay.storage.s3 import S3Store
from services.implementer import intake
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from services.worker.api import ApiRefused, WorkerApi
from services.worker.collect import LOG_BYTES, Found, build_archive, fingerprint, opened_folder
from services.worker.settings import WorkerSettings
from services.worker.telemetry import Bulk
from tests.implementer.conftest import WORKER_TOKEN, given_attempt
from tests.support.s3_server import FaultyS3

HEADERS = {"Authorization": f"Bearer {WORKER_TOKEN}"}
MIB = 1 << 20


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def anywhere(request: pytest.FixtureRequest, context: Context, tmp_path: Path) -> Context:
    """A context on each kind of object store."""
    if request.param == "s3":
        faulty: FaultyS3 = request.getfixturevalue("faulty_s3")
        context.store = S3Store("bucket", tmp_path.name, faulty.url)
    return context


@pytest.fixture
def in_s3(context: Context, faulty_s3: FaultyS3, tmp_path: Path) -> Context:
    context.store = S3Store("bucket", tmp_path.name, faulty_s3.url)
    context.store.check()
    return context


def serve(context: Context) -> tuple[uvicorn.Server, threading.Thread, str]:
    config = uvicorn.Config(create_app(context), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    return server, thread, f"http://127.0.0.1:{port}"


@pytest.fixture
def url(context: Context) -> Iterator[str]:
    """The API as a server."""
    server, thread, address = serve(context)
    yield address
    server.should_exit = True
    thread.join()


@pytest.fixture
def worker(url: str) -> Iterator[WorkerApi]:
    with WorkerApi(url, WORKER_TOKEN) as api:
        yield api


def assign(context: Context) -> schema.Attempt:
    """An attempt that the worker was given."""
    with TestClient(create_app(context)) as api:
        return given_attempt(api, context)


def prefix_of(attempt: schema.Attempt) -> str:
    return attempt_prefix(attempt.measurement_id, attempt.id, attempt.lease_token)


def end(attempt: schema.Attempt, *entries: ManifestEntry, **more: Any) -> FinishRequest:
    return FinishRequest(
        lease_token=attempt.lease_token,
        state="succeeded",
        metrics={"score": 1.0},
        artifacts=list(entries),
        **more,
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "artifact.zip"
    path.write_bytes(os.urandom(3 * MIB + 17))
    return path


def test_a_file_reaches_the_store_and_its_reader(
    anywhere: Context, url: str, weights: Path
) -> None:
    attempt = assign(anywhere)
    with WorkerApi(url, WORKER_TOKEN) as worker:
        entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        again = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        assert entry == again
        data = weights.read_bytes()
        assert (entry.bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert worker.finish(attempt.id, end(attempt, entry), patience=20).state == "succeeded"
    with TestClient(create_app(anywhere)) as api:
        path = f"/v1/measurements/{attempt.measurement_id}/artifacts/artifact.zip"
        answer = api.get(path)
        assert answer.content == data
        assert answer.headers["content-length"] == str(len(data))
    manifest = json.loads(anywhere.store.get(f"{prefix_of(attempt)}/manifest.json"))
    assert manifest["files"] == [entry.model_dump(exclude={"data"})]


def test_with_s3_bytes_go_past_the_api_and_the_token_stays(
    in_s3: Context, worker: WorkerApi, faulty_s3: FaultyS3, weights: Path
) -> None:
    attempt = assign(in_s3)
    with in_s3.db.read() as session:
        bundle = session.scalars(select(schema.Environment.bundle)).one()
        codebase = session.scalars(
            select(schema.Codebase.id).join(
                schema.Measurement, schema.Measurement.codebase_id == schema.Codebase.id
            )
        ).one()
    faulty_s3.requests.clear()
    worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
    assert worker.codebase(codebase, patience=20)[:2] == b"PK"
    assert worker.bundle(bundle, patience=20)[:2] == b"PK"
    seen = [
        (method, path.split("?")[0].rpartition("/")[2]) for method, path, _ in faulty_s3.requests
    ]
    assert seen == [
        ("PUT", "artifact.zip"),
        ("GET", f"{codebase}.zip"),
        ("GET", f"{bundle}.zip"),
    ]
    assert all("authorization" not in headers for _, _, headers in faulty_s3.requests)
    assert WORKER_TOKEN not in str(faulty_s3.requests)
    put = faulty_s3.requests[0][1]
    assert f"/{prefix_of(attempt)}/artifact.zip?" in put  # and no other key
    with pytest.raises(NotFound):
        worker.codebase("0" * 64, patience=5)


@pytest.mark.slow
def test_a_store_that_fails_for_a_while_delays_and_loses_nothing(
    in_s3: Context, worker: WorkerApi, faulty_s3: FaultyS3, weights: Path
) -> None:
    attempt = assign(in_s3)
    faults = iter([500, "drop", 503, 403, 409, 500, 400])
    faulty_s3.intercept = lambda method, path: next(faults, None) if method == "PUT" else None
    entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=60)
    assert next(faults, None) is None
    assert in_s3.store.get(f"{prefix_of(attempt)}/artifact.zip") == weights.read_bytes()
    # All of S3 is away while the end is reported.
    faulty_s3.intercept = lambda method, path: 500
    with pytest.raises(Unavailable):
        worker.finish(attempt.id, end(attempt, entry), patience=0.5)
    timer = threading.Timer(1.0, lambda: setattr(faulty_s3, "intercept", lambda m, p: None))
    timer.start()
    assert worker.finish(attempt.id, end(attempt, entry), patience=60).state == "succeeded"
    timer.join()


def test_a_refusal_that_lasts_is_said(
    in_s3: Context, worker: WorkerApi, faulty_s3: FaultyS3, weights: Path
) -> None:
    attempt = assign(in_s3)
    faulty_s3.intercept = lambda method, path: 403 if "artifact.zip" in path else None
    with pytest.raises(ApiRefused, match="HTTP 403") as caught:
        worker.upload(attempt.id, attempt.lease_token, weights, patience=60)
    assert caught.value.code == "object_store_denied"
    assert "Signature" not in str(caught.value)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_an_object_that_is_not_as_announced_is_uploaded_again(
    anywhere: Context, url: str, weights: Path, damage: str
) -> None:
    attempt = assign(anywhere)
    key = f"{prefix_of(attempt)}/artifact.zip"
    with WorkerApi(url, WORKER_TOKEN) as worker:
        entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        anywhere.store.remove(key)
        if damage == "cut":
            anywhere.store.put(key, weights.read_bytes()[:-1])
        with pytest.raises(ApiRefused) as caught:
            worker.finish(attempt.id, end(attempt, entry), patience=20)
        assert caught.value.code == "artifact_missing"
        assert not anywhere.store.exists(f"{prefix_of(attempt)}/manifest.json")
        files = {weights.name: weights}
        done = worker.finish(attempt.id, end(attempt, entry), files=files, patience=20)
    assert done.state == "succeeded"
    assert anywhere.store.get(key) == weights.read_bytes()


def test_s3_bytes_of_the_same_size_but_another_hash_do_not_count(
    in_s3: Context, worker: WorkerApi, weights: Path
) -> None:
    attempt = assign(in_s3)
    key = f"{prefix_of(attempt)}/artifact.zip"
    entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
    in_s3.store.remove(key)
    in_s3.store.put(key, bytes(entry.bytes))
    with pytest.raises(ApiRefused, match="upload it again"):
        worker.finish(attempt.id, end(attempt, entry), patience=20)


def test_an_end_that_is_cut_off_before_its_manifest_shows_nothing(
    anywhere: Context, url: str, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = assign(anywhere)
    path = f"/v1/measurements/{attempt.measurement_id}"
    plain = intake.write_manifest

    def dies(*arguments: object) -> None:
        raise Unavailable("the process was killed here")

    with WorkerApi(url, WORKER_TOKEN) as worker, TestClient(create_app(anywhere)) as api:
        entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        monkeypatch.setattr(intake, "write_manifest", dies)
        with pytest.raises(Unavailable):
            worker.finish(attempt.id, end(attempt, entry), patience=0)
        assert anywhere.store.exists(f"{prefix_of(attempt)}/artifact.zip")
        assert not anywhere.store.exists(f"{prefix_of(attempt)}/manifest.json")
        assert api.get(f"{path}/artifacts/artifact.zip").status_code == 404
        assert api.get(path).json()["state"] == "running"
        monkeypatch.setattr(intake, "write_manifest", plain)
        for _ in range(2):
            worker.finish(attempt.id, end(attempt, entry), patience=20)
        assert api.get(f"{path}/artifacts/artifact.zip").status_code == 200


def test_the_manifest_is_the_last_object_of_an_attempt(
    in_s3: Context, worker: WorkerApi, faulty_s3: FaultyS3, weights: Path
) -> None:
    attempt = assign(in_s3)
    small = weights.with_name("small.txt")
    small.write_bytes(b"few bytes")
    entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
    inline = ManifestEntry(
        name="small.txt",
        bytes=9,
        sha256=hashlib.sha256(b"few bytes").hexdigest(),
        data="ZmV3IGJ5dGVz",
    )
    for _ in range(2):  # the first answer got lost
        worker.finish(attempt.id, end(attempt, entry, inline), patience=20)
    written = [p.split("?")[0].rpartition("/")[2] for m, p, _ in faulty_s3.requests if m == "PUT"]
    mine = [name for name in written if name in ("artifact.zip", "small.txt", "manifest.json")]
    assert mine[:3] == ["artifact.zip", "small.txt", "manifest.json"]
    conditions = [h.get("if-none-match") for m, p, h in faulty_s3.requests if "manifest.json" in p]
    assert set(conditions) == {"*"}


def test_what_was_removed_is_said_with_a_remedy(
    anywhere: Context, url: str, weights: Path
) -> None:
    attempt = assign(anywhere)
    with WorkerApi(url, WORKER_TOKEN) as worker:
        entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        worker.finish(attempt.id, end(attempt, entry), patience=20)
    path = f"/v1/measurements/{attempt.measurement_id}/artifacts/artifact.zip"
    with TestClient(create_app(anywhere)) as api:
        experiment = api.get("/v1/experiments").json()["data"][0]["id"]

        def listed() -> Any:
            return api.get(f"/v1/experiments/{experiment}/result").json()["artifacts"]

        assert [file["removed_at"] for file in listed()] == [None]
        rules = Retention(best=0, large_bytes=MIB, after=timedelta(days=-1))
        assert retention.apply(anywhere.db, anywhere.store, rules).files == 1
        answer = api.get(path)
        assert (answer.status_code, answer.json()["code"]) == (410, "artifact_removed")
        assert "`assay experiment confirm`" in answer.json()["detail"]
        assert "ASSAY_RETENTION_BEST" in answer.json()["detail"]
        (file,) = listed()
        assert datetime.fromisoformat(file["removed_at"]).tzinfo is not None
        assert file["bytes"] == entry.bytes


def test_what_is_lost_is_not_said_to_be_removed(context: Context, url: str, weights: Path) -> None:
    attempt = assign(context)
    with WorkerApi(url, WORKER_TOKEN) as worker:
        entry = worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        worker.finish(attempt.id, end(attempt, entry), patience=20)
    context.store.remove(f"{prefix_of(attempt)}/artifact.zip")
    with TestClient(create_app(context)) as api:
        path = f"/v1/measurements/{attempt.measurement_id}/artifacts/artifact.zip"
        answer = api.get(path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "Restore it from a backup" in answer.json()["detail"]


def announce(attempt: schema.Attempt, **changes: Any) -> dict[str, Any]:
    return {"lease_token": attempt.lease_token, "bytes": 3, "sha256": "0" * 64} | changes


def test_only_the_holder_is_told_where_to_upload(in_s3: Context) -> None:
    attempt = assign(in_s3)
    workers.admit(in_s3.db, "other", "asw_other")
    path = f"/internal/v1/attempts/{attempt.id}/artifacts/a.zip/upload"
    with TestClient(create_app(in_s3)) as api:
        other = api.post(
            path, json=announce(attempt), headers={"Authorization": "Bearer asw_other"}
        )
        assert (other.status_code, other.json()["code"]) == (403, "forbidden")
        stale = api.post(path, json=announce(attempt, lease_token=10**6), headers=HEADERS)
        assert (stale.status_code, stale.json()["code"]) == (409, "fenced")
        large = api.post(path, json=announce(attempt, bytes=1 << 40), headers=HEADERS)
        assert (large.status_code, large.json()["code"]) == (422, "too_large")
        manifest = path.replace("a.zip", "manifest.json")
        assert api.post(manifest, json=announce(attempt), headers=HEADERS).status_code == 422
        assert api.post(path, json=announce(attempt), headers=HEADERS).json()["url"]


def test_an_attempt_that_has_ended_stores_nothing_more(
    anywhere: Context, url: str, weights: Path
) -> None:
    attempt = assign(anywhere)
    with WorkerApi(url, WORKER_TOKEN) as worker:
        worker.finish(attempt.id, end(attempt), patience=20)
        with pytest.raises(Fenced):
            worker.upload(attempt.id, attempt.lease_token, weights, patience=20)
        with pytest.raises(Fenced):
            worker.put_log(attempt.id, attempt.lease_token, Bulk("train", 0, b"x"), patience=20)
    with anywhere.db.read() as session:
        assert session.scalars(select(schema.LogChunk)).all() == []


def test_an_upload_through_the_api_is_not_kept_in_memory(
    context: Context, url: str, store: LocalStore, tmp_path: Path
) -> None:
    attempt = assign(context)
    context.settings = context.settings.model_copy(update={"max_artifact_bytes": 5 * MIB})
    large = tmp_path / "large.zip"
    large.write_bytes(bytes(5 * MIB + 1))
    with WorkerApi(url, WORKER_TOKEN) as worker:
        with pytest.raises(ApiRefused) as caught:
            worker.upload(attempt.id, attempt.lease_token, large, patience=20)
        assert caught.value.code == "too_large"
    assert not any(p.is_file() for p in (store.folder / "attempts").rglob("*"))


class Peak:
    """How far this process, in which worker and service are, grows while a block runs."""

    def __enter__(self) -> Peak:
        self._process, self._done = psutil.Process(), threading.Event()
        self._before = self._most = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.005):
            self._most = max(self._most, self._process.memory_info().rss)

    @property
    def growth(self) -> int:
        return self._most - self._before


@pytest.mark.slow
def test_300_mb_go_through_worker_and_service_in_little_memory(
    context: Context, url: str, tmp_path: Path
) -> None:
    size = 300 * MIB
    out = tmp_path / "out"
    out.mkdir()
    with (out / "model.pt").open("wb") as file:
        file.truncate(size)

    (out / "small").write_bytes(os.urandom(8 * MIB))
    attempt = assign(context)

    def hand_in(name: str, size: int) -> ManifestEntry:
        """What a worker does with what training left."""
        found = [Found(name, size)]
        with opened_folder(str(out)) as folder:
            assert len(fingerprint(folder, found)) == 64
            archive = build_archive(folder, found, [], tmp_path / f"{name}.zip")
        with WorkerApi(url, WORKER_TOKEN) as worker:
            return worker.upload(attempt.id, attempt.lease_token, archive, patience=300)

    hand_in("small", 8 * MIB)  # loads what is loaded once
    with Peak() as peak:
        entry = hand_in("model.pt", size)
        key = f"{prefix_of(attempt)}/{entry.name}"
        assert sum(map(len, context.store.stream(key))) == entry.bytes > size
    assert peak.growth < 64 * MIB


def test_a_large_file_is_stored_and_read_in_pieces(
    context: Context, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = assign(context)
    pieces: list[int] = []
    plain = LocalStore.upload

    @contextmanager
    def counted(store: LocalStore, key: str) -> Iterator[Upload]:
        with plain(store, key) as upload:
            write = upload.write

            def counts(data: bytes) -> None:
                pieces.append(len(data))
                write(data)

            monkeypatch.setattr(upload, "write", counts)
            yield upload

    monkeypatch.setattr(LocalStore, "upload", counted)
    large = tmp_path / "artifact.zip"
    large.write_bytes(os.urandom(9 * MIB + 1))
    with WorkerApi(url, WORKER_TOKEN) as worker:
        entry = worker.upload(attempt.id, attempt.lease_token, large, patience=20)
        worker.finish(attempt.id, end(attempt, entry), patience=20)
    assert sum(pieces) >= large.stat().st_size
    assert max(pieces) <= 2 * MIB
    key = f"{prefix_of(attempt)}/artifact.zip"
    assert max(map(len, context.store.stream(key))) <= MIB


def test_an_upload_ends_when_the_attempt_is_fenced_or_its_time_is_over(
    context: Context, url: str, tmp_path: Path
) -> None:
    attempt = assign(context)
    large = tmp_path / "artifact.zip"
    large.write_bytes(bytes(3 * MIB))
    fenced = threading.Event()
    fenced.set()
    with WorkerApi(url, WORKER_TOKEN) as worker:
        for more in ({"patience": 20, "give_up": fenced}, {"patience": 0}):
            with pytest.raises(Unavailable, match=r"given up|no time"):
                worker.upload(attempt.id, attempt.lease_token, large, **more)
    assert context.store.stat(f"{prefix_of(attempt)}/artifact.zip") is None


def test_the_defaults_of_worker_and_service_let_bundled_environments_store_their_weights() -> None:
    most = WorkerSettings(token="t").artifact_bytes
    assert ImplementerSettings().max_artifact_bytes >= most + 2 * LOG_BYTES
    catalog = Catalog([Path(__file__).parents[2] / "environments"])
    allowed = {
        (name, profile): body.artifact_bytes
        for name in ("grpo", "nanogpt", "toy")
        for profile, body in catalog.get(name).manifest.profiles.items()
    }
    assert max(allowed.values()) <= most
    assert allowed["nanogpt", "paper"] > 2 * 498_000_000  # final weights, and those at the target
    assert allowed["grpo", "paper"] > 3_100_000_000
    assert allowed["nanogpt", "tiny"] == 256 * MIB


def test_a_long_log_is_read_back_as_it_was_written(anywhere: Context, url: str) -> None:
    attempt = assign(anywhere)
    content = os.urandom(11 * MIB).replace(b"\x00", b"\n")
    with WorkerApi(url, WORKER_TOKEN) as worker:
        for offset in range(0, len(content), 4 * MIB):
            bulk = Bulk("train", offset, content[offset : offset + 4 * MIB])
            for _ in range(2):
                worker.put_log(attempt.id, attempt.lease_token, bulk, patience=20)
    with TestClient(create_app(anywhere)) as api:
        path, offset, pages = f"/v1/measurements/{attempt.measurement_id}/logs", 0, 0
        while True:
            answer = api.get(path, params={"offset": offset})
            after = int(answer.headers["next-offset"])
            assert answer.text == content[offset:after].decode("utf-8", "replace")
            if after == offset:
                break
            offset, pages = after, pages + 1
        assert (offset, pages) == (len(content), 11)
    with anywhere.db.read() as session:
        rows = session.scalars(select(schema.LogChunk)).all()
        assert sum(len(row.data or b"") for row in rows) == MIB
    assert [item.size for item in anywhere.store.list("attempts/")] == [3 * MIB, 4 * MIB, 3 * MIB]


def test_a_log_ends_at_the_bound_of_the_service(context: Context, url: str) -> None:
    attempt = assign(context)
    context.settings = context.settings.model_copy(update={"max_log_bytes": 2 * MIB})
    with WorkerApi(url, WORKER_TOKEN) as worker:
        for offset in (0, MIB, 3 * MIB):
            bulk = Bulk("train", offset, bytes(2 * MIB))
            worker.put_log(attempt.id, attempt.lease_token, bulk, patience=20)
        bulk = Bulk("train", 0, bytes(9 * MIB))
        with pytest.raises(ApiRefused) as caught:
            worker.put_log(attempt.id, attempt.lease_token, bulk, patience=20)
    assert caught.value.code == "too_large"
    with context.db.read() as session:
        rows = session.scalars(select(schema.LogChunk)).all()
    assert max(row.byte_offset + row.size for row in rows) == 2 * MIB


def test_system_points_are_stored_once_and_shown(api: TestClient, context: Context) -> None:
    attempt = assign(context)
    points = [
        {"seq": n, "seconds": 10.0 * n, "values": {"cpu_seconds": 9.5 * n}} for n in range(30)
    ]
    path = f"/internal/v1/attempts/{attempt.id}/progress"
    for some in (points[:20], points[10:]):
        body = {"lease_token": attempt.lease_token, "system": some}
        assert api.post(path, json=body, headers=HEADERS).status_code == 204
    shown = api.get(f"/v1/measurements/{attempt.measurement_id}/system").json()["data"]
    assert shown == points
    few = api.get(f"/v1/measurements/{attempt.measurement_id}/system?max_points=5").json()["data"]
    assert len(few) == 6
    assert few[-1] == points[-1]
    assert api.get("/v1/measurements/mea_none/system").status_code == 404


def test_a_small_codebase_comes_along_and_is_read_once(context: Context) -> None:
    assign(context)

    class Counted:
        reads = 0

        def __getattr__(self, name: str) -> Any:
            Counted.reads += name == "get_range"
            return getattr(inner, name)

    inner: ObjectStore = context.store
    counted = replace(context, store=Counted())  # type: ignore[arg-type]
    with context.db.read() as session:
        incarnation = session.scalars(select(schema.Worker.incarnation)).one()
        worker = session.scalars(select(schema.Worker.id)).one()
    with TestClient(create_app(counted)) as api:
        for _ in range(3):
            body = {"incarnation": incarnation, "held": []}
            answer = api.post(f"/internal/v1/workers/{worker}/sync", json=body, headers=HEADERS)
            assert [spec["archive"] is not None for spec in answer.json()["assign"]] == [True]
    assert Counted.reads == 1


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"bytes": 8}, {"data": "RkVXIGJ5dGVz"}])
def test_a_file_that_comes_along_is_stored_only_if_it_is_what_its_hash_says(
    context: Context, change: dict[str, Any]
) -> None:
    sha256 = hashlib.sha256(b"few bytes").hexdigest()
    entry = ManifestEntry(name="small.txt", bytes=9, sha256=sha256, data="ZmV3IGJ5dGVz")
    with pytest.raises(InvalidInput):
        intake.store_files(context, "prefix", [entry.model_copy(update=change)])
    assert context.store.stat("prefix/small.txt") is None
    intake.store_files(context, "prefix", [entry])
    assert context.store.get("prefix/small.txt") == b"few bytes"
