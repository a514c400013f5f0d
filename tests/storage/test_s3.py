"""Both object stores keep the same promises, and S3's faults become errors that say what to do."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from pathlib import Path

import httpx2
import pytest

from assay.domain.errors import InvalidInput, NotFound, Unavailable
from assay.storage.objects import LocalStore, ObjectStore
from assay.storage.s3 import S3Store
from tests.support.s3_server import FaultyS3

DATA = b"bytes of an object"
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.slow),
        pytest.param("s3 without conditions", marks=pytest.mark.slow),
    ]
)
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty object store of each kind."""
    if request.param == "local":
        return LocalStore(tmp_path / "objects")
    faulty: FaultyS3 = request.getfixturevalue("faulty_s3")
    faulty.forget_conditions = "without" in request.param
    store = S3Store("bucket", f"below/{tmp_path.name}", faulty.url)
    store.check()  # makes the bucket, whichever test comes first
    return store


@pytest.fixture
def faulty(faulty_s3: FaultyS3) -> FaultyS3:
    return faulty_s3


@pytest.fixture
def bucket(faulty: FaultyS3, tmp_path: Path) -> S3Store:
    """A store in S3, in use."""
    store = S3Store("bucket", tmp_path.name, faulty.url)
    store.check()
    return store


def test_a_key_is_written_once(objects: ObjectStore) -> None:
    assert objects.put("a/b", DATA) is True
    assert objects.put("a/b", b"others") is False
    with objects.upload("a/b") as upload:
        upload.write(b"others")
        assert upload.commit() is False
    assert objects.get("a/b") == DATA


def test_many_writers_of_a_key_and_one_of_them_wins(objects: ObjectStore) -> None:
    won: list[bytes] = []
    start = threading.Barrier(8)

    def write(number: int) -> None:
        data = b"%d" % number
        start.wait()
        if objects.put("contested", data):
            won.append(data)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if isinstance(objects, S3Store) and not objects.conditional:
        assert objects.get("contested") in won  # which suffices: a key names its content
    else:
        assert won == [objects.get("contested")]


def test_an_object_that_comes_in_parts(objects: ObjectStore) -> None:
    parts = [bytes([n]) * (700_000 + n) for n in range(5)]
    with objects.upload("parts/all") as upload:
        for part in parts:
            upload.write(part)
        assert not objects.exists("parts/all")
        assert upload.commit() is True
    whole = b"".join(parts)
    assert objects.get("parts/all") == whole
    assert b"".join(objects.stream("parts/all")) == whole
    assert objects.get_range("parts/all", 699_990, 20) == whole[699_990:700_010]
    assert objects.get_range("parts/all", len(whole) - 3, 100) == whole[-3:]
    assert objects.get_range("parts/all", len(whole), 100) == b""
    stat = objects.stat("parts/all")
    assert stat is not None
    assert stat.size == len(whole)
    assert stat.sha256 in (None, hashlib.sha256(whole).hexdigest())


def test_an_upload_that_is_given_up_leaves_nothing(objects: ObjectStore) -> None:
    with objects.upload("given/up") as upload:
        upload.write(DATA)
    with contextlib.suppress(ZeroDivisionError), objects.upload("given/up") as upload:
        upload.write(DATA)
        raise ZeroDivisionError
    assert not objects.exists("given/up")
    assert list(objects.list("given/")) == []


def test_what_is_not_there(objects: ObjectStore) -> None:
    assert not objects.exists("none")
    assert objects.stat("none") is None
    for read in (
        lambda: objects.get("none"),
        lambda: objects.get_range("none", 0, 3),
        lambda: list(objects.stream("none")),
    ):
        with pytest.raises(NotFound):
            read()
    objects.remove("none")
    assert list(objects.list("none/")) == []
    for name in ("../out", "/etc/passwd", "a/../../b", ""):
        with pytest.raises(InvalidInput):
            objects.put(name, DATA)


def test_listing_and_removing(objects: ObjectStore) -> None:
    for key in ("x/1", "x/y/2", "z/3"):
        objects.put(key, DATA)
    listed = list(objects.list("x/"))
    assert sorted((item.key, item.size) for item in listed) == [("x/1", 18), ("x/y/2", 18)]
    assert all(item.modified.tzinfo is not None for item in listed)
    objects.remove("x/1")
    assert [item.key for item in objects.list("x/")] == ["x/y/2"]
    objects.check()


def test_a_presigned_url_stores_one_object_without_credentials(bucket: S3Store) -> None:
    target = bucket.upload_url("attempts/a/file", len(DATA), SHA256)
    assert target is not None
    signed = target.url.split("X-Amz-SignedHeaders=")[1].split("&")[0].split("%3B")
    assert set(signed) == {"host"} | {name.lower() for name in target.headers}
    assert "content-length" in signed  # neither more bytes nor others
    assert "x-amz-checksum-sha256" in signed
    with httpx2.Client(trust_env=False) as http:
        first = http.put(target.url, content=DATA, headers=target.headers)
        again = http.put(target.url, content=DATA, headers=target.headers)
        assert (first.status_code, again.status_code) == (200, 412)
        assert bucket.get("attempts/a/file") == DATA
        url = bucket.download_url("attempts/a/file")
        assert url is not None
        assert http.get(url).content == DATA
    stat = bucket.stat("attempts/a/file")
    assert stat is not None
    assert (stat.size, stat.sha256) == (len(DATA), SHA256)


def test_workers_may_reach_the_store_at_another_address(faulty: FaultyS3) -> None:
    store = S3Store("bucket", "", faulty.url, "https://objects.example:9000")
    url = store.download_url("k")
    assert url is not None
    assert url.startswith("https://objects.example:9000/bucket/k?")
    target = store.upload_url("k", 1, SHA256)
    assert target is not None
    assert target.url.startswith("https://objects.example:9000/bucket/k?")


def test_a_store_on_this_machine_has_no_urls(store: LocalStore) -> None:
    assert store.upload_url("k", 1, SHA256) is None
    assert store.download_url("k") is None


def test_an_endpoint_without_conditions_is_found_out(
    faulty: FaultyS3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faulty.forget_conditions = True
    store = S3Store("bucket", tmp_path.name, faulty.url)
    assert store.conditional is False
    assert "ignores If-None-Match" in caplog.text
    target = store.upload_url("k", len(DATA), SHA256)
    assert target is not None
    assert "If-None-Match" not in target.headers
    faulty.forget_conditions = False
    assert S3Store("bucket", f"{tmp_path.name}-2", faulty.url).conditional is True


def test_a_bucket_is_made_where_there_is_none(faulty: FaultyS3) -> None:
    for _ in range(2):
        store = S3Store("made-by-assay", "", faulty.url, region="eu-central-1")
        store.put("k", DATA)
        assert store.get("k") == DATA


def test_a_short_fault_is_not_noticed(bucket: S3Store, faulty: FaultyS3) -> None:
    answers: list[int | str] = [503, "drop", 500]

    def fail(method: str, path: str) -> int | str | None:
        return answers.pop() if answers and path.endswith("/k") else None

    faulty.intercept = fail
    assert bucket.put("k", DATA) is True
    assert answers == []
    assert bucket.get("k") == DATA


def test_a_race_is_run_again(bucket: S3Store, faulty: FaultyS3) -> None:
    answers = [409, 409]

    def fail(method: str, path: str) -> int | None:
        return answers.pop() if answers and path.endswith("/k") else None

    faulty.intercept = fail
    assert bucket.put("k", DATA) is True
    assert answers == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "object_store_unavailable"),
        ("drop", "object_store_unavailable"),
        (507, "disk_full"),
        (403, "object_store_denied"),
    ],
)
def test_a_lasting_fault_says_what_is_wrong(
    faulty: FaultyS3, tmp_path: Path, status: int | str, code: str
) -> None:
    bucket = S3Store("bucket", tmp_path.name, faulty.url, rest_seconds=0.0)
    bucket.check()
    faulty.intercept = lambda method, path: status
    for call in (
        bucket.check,
        lambda: bucket.put("k", DATA),
        lambda: bucket.exists("k"),
        lambda: list(bucket.list("k")),
        lambda: bucket.remove("k"),
        lambda: bucket.get("k"),
    ):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.code == code
        assert "bucket" in str(caught.value)


def test_a_store_that_is_away_at_the_start_is_asked_again(faulty: FaultyS3) -> None:
    faulty.intercept = lambda method, path: 500
    store = S3Store("bucket", "late", faulty.url)
    with pytest.raises(Unavailable):
        store.upload_url("k", 1, SHA256)
    faulty.intercept = lambda method, path: None
    assert store.put("k", DATA) is True


def test_a_store_that_swallows_requests_does_not_hold_everybody_up(
    bucket: S3Store, faulty: FaultyS3
) -> None:
    faulty.intercept = lambda method, path: "drop"
    with pytest.raises(Unavailable):
        bucket.exists("k")
    before = len(faulty.requests)
    with pytest.raises(Unavailable, match="a moment ago"):
        bucket.exists("k")
    assert len(faulty.requests) == before
    assert bucket.download_url("k") is not None  # which takes no request

    faulty.intercept = lambda method, path: None

    def works_again() -> bool:
        with contextlib.suppress(Unavailable):
            return bucket.exists("k") is False
        return False

    deadline = time.monotonic() + 10
    while not works_again():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("url", ["http://bucket/x", "s3://", "bucket", "s3:///prefix"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidInput, match="s3://bucket/prefix"):
        S3Store.from_url(url)


def test_an_address_with_a_prefix(faulty: FaultyS3) -> None:
    S3Store.from_url("s3://bucket/one/two/", endpoint_url=faulty.url).put("k", DATA)
    assert S3Store("bucket", "one/two", faulty.url).get("k") == DATA
