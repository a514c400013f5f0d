"""Reading logs and curves that hostile code is writing."""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.contracts.worker import SystemPoint
from services.worker import telemetry
from services.worker.telemetry import CurveFollower, LogFollower, Telemetry, parse_point

CAP = 1 << 20


def shipped(log: LogFollower, *, final: bool) -> bytes:
    """Everything the follower hands out now, taken piece by piece."""
    out = b""
    while (piece := log.pending(final=final)) is not None:
        assert piece == log.pending(final=final)
        out += base64.b64decode(piece.data)
        log.shipped(piece)
    return out


def test_a_log_arrives_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    log = LogFollower(path, "train", CAP)
    assert log.pending() is None
    content = os.urandom(600_000)
    path.write_bytes(content[:100])
    first = log.pending()
    assert first is not None
    assert (first.offset, base64.b64decode(first.data)) == (0, content[:100])
    path.write_bytes(content)
    assert shipped(log, final=False) == content  # the first piece was never acknowledged
    assert shipped(log, final=True) == b""


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 5 << 20])
def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path, live: bool, size: int) -> None:
    path = tmp_path / "train.log"
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    path.write_bytes(content)
    log = LogFollower(path, "train", CAP)
    out = shipped(log, final=False) if live else b""
    out += shipped(log, final=True)
    assert len(out) <= CAP
    if size <= CAP:
        assert out == content
    else:
        head, _, tail = out.partition(b"\n[... ")
        assert content.startswith(head)
        assert tail.endswith(content[-telemetry.LOG_TAIL :])
        left_out = int(tail.split(b" ", 1)[0])
        assert len(head) + left_out + telemetry.LOG_TAIL == size


def test_many_bytes_travel_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    log = LogFollower(path, "train", 64 << 20)
    assert log.bulk() is None
    content = os.urandom(telemetry.BULK_LEAST - 1)
    path.write_bytes(content)
    assert log.bulk() is None
    small = log.pending()
    assert small is not None
    content += os.urandom(5 << 20)
    path.write_bytes(content)
    first = log.bulk()
    assert first is not None
    assert (first.offset, first.data) == (0, content[: telemetry.BULK_MOST])
    log.shipped(small)  # the report arrived after all
    out = content[: telemetry.LOG_PER_REPORT]
    while (bulk := log.bulk()) is not None:
        assert bulk.offset == len(out)
        assert telemetry.BULK_LEAST <= len(bulk.data) <= telemetry.BULK_MOST
        out += bulk.data
        log.shipped(bulk)
    assert len(content) - len(out) < telemetry.BULK_LEAST
    assert out + shipped(log, final=True) == content


class Samples:
    """Numbers that somebody looked up."""

    def __init__(self, count: int) -> None:
        self.points = [
            SystemPoint(seq=n, seconds=10.0 * n, values={"cpu_seconds": float(n)})
            for n in range(count)
        ]

    def pending(self) -> list[SystemPoint]:
        return self.points[:2]

    def shipped(self, count: int) -> None:
        del self.points[:count]


def test_a_report_holds_everything_until_it_has_arrived(tmp_path: Path, folder: int) -> None:
    log = tmp_path / "train.log"
    log.write_text("hello\n")
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n')
    watched = Telemetry({"train": log}, folder, samples=Samples(3))
    first = watched.pending()
    assert first == watched.pending()
    assert [len(part) for part in first] == [1, 1, 2]
    watched.shipped(first)
    second = watched.pending()
    assert [len(part) for part in second] == [0, 0, 1]
    watched.shipped(second)
    assert not any(watched.pending(final=True))


def test_a_truncated_log_does_not_break_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    log = LogFollower(path, "train", CAP)
    path.write_bytes(b"0123456789")
    assert shipped(log, final=False) == b"0123456789"
    path.write_bytes(b"abc")
    assert shipped(log, final=True) == b""
    path.write_bytes(b"abcdefghijKL")
    assert shipped(log, final=True) == b"KL"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def points(curve: CurveFollower, *, final: bool = False) -> list[tuple[int, dict[str, float]]]:
    out = []
    while taken := curve.pending(final=final):
        assert taken == curve.pending(final=final)
        out += [(p.seq, p.values) for p in taken]
        curve.shipped(taken)
    return out


def test_curves_count_every_line_and_keep_the_good_ones(tmp_path: Path, folder: int) -> None:
    curve = CurveFollower(folder)
    path = tmp_path / "metrics.jsonl"
    assert points(curve) == []
    huge = b'{"a": ' + b" " * telemetry.LINE_CAP + b"1}\n"
    endless = b"x" * (3 << 20) + b"\n"
    lines = [b'{"a": 1}\n', b"\xff\x00\n", huge, b'{"a": 2}\r\n', endless, b"\n", b'{"a": 3}\n']
    path.write_bytes(b"".join(lines) + b'{"a": 4')
    assert points(curve) == [(0, {"a": 1.0}), (3, {"a": 2.0}), (6, {"a": 3.0})]
    with path.open("ab") as file:
        file.write(b'4}\n{"a": 5}')
    assert points(curve) == [(7, {"a": 44.0})]
    assert points(curve, final=True) == [(8, {"a": 5.0})]


def test_points_are_capped(tmp_path: Path, folder: int) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n[]\n' * 100)
    found = points(CurveFollower(folder, points_cap=25, lines_cap=60), final=True)
    assert [seq for seq, _ in found] == list(range(0, 50, 2))
    found = points(CurveFollower(folder, lines_cap=60), final=True)
    assert [seq for seq, _ in found] == list(range(0, 60, 2))


def test_bytes_and_names_of_a_curve_are_capped(
    tmp_path: Path, folder: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    wide = {f"{k:02}" + "k" * 126: 1 / 7 for k in range(64)}
    path.write_text((json.dumps(wide) + "\n") * 2_000)
    found = points(CurveFollower(folder), final=True)
    size = sum(len(json.dumps(values)) for _, values in found)
    assert telemetry.CURVE_CAP - 16_384 < size <= telemetry.CURVE_CAP
    path.write_text("".join(f'{{"loss": 1, "n{n}": 1}}\n' for n in range(1_000)))
    found = points(CurveFollower(folder), final=True)
    assert len(found) == 1_000
    assert len({name for _, values in found for name in values}) == telemetry.NAMES_CAP
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_only_a_regular_file_is_read(tmp_path: Path, folder: int, kind: str) -> None:
    secret, path = tmp_path / "secret", tmp_path / "metrics.jsonl"
    secret.write_text('{"a": 1}\n')
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert points(CurveFollower(folder), final=True) == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"1",
        b"null",
        b'{"step": 1}',
        b'{"a": "1"}',
        b'{"a": true}',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 400 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 10_000,
        b'{"a\\u0000": 1}',
        b'{"\\ud800": 1}',
        b'{"' + b"k" * 200 + b'": 1}',
        b'{"a": {"b": 1}}',
    ],
)
def test_what_is_not_a_point(line: bytes) -> None:
    assert parse_point(line, 0) is None


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_line_is_survived(line: bytes) -> None:
    point = parse_point(line, 3)
    assert point is None or json.loads(point.model_dump_json())["seq"] == 3
