"""A program that prints without end: it goes on, nothing is lost, and the API is not flooded."""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.contracts.worker import ProgressRequest
from assay.domain.errors import Unavailable
from services.worker.api import WorkerApi
from services.worker.output import TAIL, OutputPipe, stored_output
from services.worker.reporter import Reporter
from services.worker.telemetry import BULK_MOST, LOG_PER_REPORT, Bulk, Telemetry
from tests.support.fake_worker_api import TOKEN, FakeApi, Record

MIB = 1 << 20


def blocks(size: int) -> Iterator[bytes]:
    """Bytes of which no two MiB are alike."""
    filling = bytes(range(256)) * (MIB // 256 - 1)
    for number in range(size // MIB):
        yield hashlib.sha256(b"%d" % number).digest() * 8 + filling


def flood(pipe: OutputPipe, size: int) -> None:
    for block in blocks(size):
        view = memoryview(block)
        while view:
            view = view[os.write(pipe.descriptor, view) :]


class CountingApi:
    """An API that takes logs at the offset it expects, and hashes them."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.largest = 0
        self.requests = 0
        self.begun: list[float] = []
        self.ended: list[float] = []
        self.seconds = 0.0
        self.lose = lambda: False

    def put_log(self, attempt: str, token: int, bulk: Bulk, **_: object) -> None:
        self.take(bulk.offset, bulk.data)

    def progress(self, attempt: str, body: ProgressRequest, **_: object) -> None:
        for piece in body.logs:
            self.take(piece.offset, base64.b64decode(piece.data))

    def take(self, offset: int, data: bytes) -> None:
        self.begun.append(time.monotonic())
        if self.seconds:
            time.sleep(self.seconds)
        assert offset <= self.size, "a gap in the log"
        new = data[self.size - offset :]
        self.digest.update(new)
        self.size += len(new)
        self.largest = max(self.largest, len(data))
        self.requests += 1
        self.ended.append(time.monotonic())
        if self.lose():
            raise Unavailable("the answer got lost")


@pytest.fixture
def out(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def reporter(api: CountingApi, telemetry: Telemetry, seconds: float = 0.05) -> Reporter:
    return Reporter(
        api,  # type: ignore[arg-type]
        "att_1",
        1,
        telemetry,
        seconds=seconds,
        on_fenced=lambda: None,
    )


@pytest.mark.slow
def test_300_mib_of_output(tmp_path: Path, out: int) -> None:
    log, api, total, cap = tmp_path / "train.log", CountingApi(), 300 * MIB, 256 * MIB
    answers = iter(range(1_000_000))
    api.lose = lambda: next(answers) % 7 == 3  # one answer in seven is lost
    telemetry = Telemetry({"train": log}, out, log_bytes=cap)
    reports = reporter(api, telemetry)
    reports.start()
    with stored_output(log, cap) as pipe:
        flood(pipe, total)
    reports.stop()
    while True:
        try:
            reports.drain(patience=1, give_up=threading.Event())
            break
        except Unavailable:
            continue
    for piece in telemetry.pending(final=True).logs:
        api.take(piece.offset, base64.b64decode(piece.data))

    expected, position, last = hashlib.sha256(), 0, b""
    for block in blocks(total):
        if position < cap:
            expected.update(block)
        position, last = position + MIB, block
    marker = b"\n[... %d bytes left out ...]\n" % (total - cap - TAIL)
    expected.update(marker + last[-TAIL:])
    assert api.size == log.stat().st_size == cap + len(marker) + TAIL
    assert api.digest.digest() == expected.digest()
    assert api.largest <= BULK_MOST
    log.unlink()


def test_a_flood_leaves_the_api_as_much_rest_as_work(tmp_path: Path, out: int) -> None:
    log, api = tmp_path / "train.log", CountingApi()
    log.write_bytes(b"x" * (40 * MIB))
    api.seconds = 0.05
    reports = reporter(api, Telemetry({"train": log}, out), seconds=0.2)
    reports.start()
    deadline = time.monotonic() + 30
    while api.requests < 5:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    reports.stop()
    rests = [b - e for b, e in zip(api.begun[1:], api.ended, strict=False)]
    assert min(rests) >= 0.04, rests
    assert api.largest == BULK_MOST


def test_what_is_left_at_the_end_goes_in_few_requests(tmp_path: Path, out: int) -> None:
    log, api = tmp_path / "train.log", CountingApi()
    log.write_bytes(b"y" * (20 * MIB + 300_000))
    reports = reporter(api, Telemetry({"train": log}, out))
    reports.drain(patience=1, give_up=threading.Event())
    assert 20 * MIB + 300_000 - api.size < LOG_PER_REPORT
    assert api.requests <= 8


def test_bulk_bytes_over_http_while_connections_break(tmp_path: Path, out: int) -> None:
    fake = FakeApi()
    record = fake.records["att_1"] = Record(41)
    content = os.urandom(9 * MIB)
    log = tmp_path / "train.log"
    log.write_bytes(content)
    broken = iter(["drop", 503, None, None, 500])
    fake.intercept = lambda method, path: next(broken, None)
    lost = iter([True, False, True])
    fake.lose_answer = lambda path: next(lost, False)
    try:
        with WorkerApi(fake.url, TOKEN) as api:
            telemetry = Telemetry({"train": log}, out)
            reports = Reporter(api, "att_1", 41, telemetry, seconds=1, on_fenced=lambda: None)
            reports.drain(patience=30, give_up=threading.Event())
            assert not any(telemetry.pending(final=True).points)
            for piece in telemetry.pending(final=True).logs:
                api.progress("att_1", ProgressRequest(lease_token=41, logs=[piece]))
    finally:
        fake.close()
    assert record.bulks >= 3
    assert record.logs["train"] == content
