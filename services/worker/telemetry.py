"""What an attempt prints and logs, read while hostile code is still writing it.

Logs are shipped by byte offset and curve points by line number, so that a report may be repeated
and nothing is lost or counted twice. Nothing in these files is trusted: they may hold binary
data, be truncated, be replaced by a link or a FIFO, or grow without end.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from assay.contracts.worker import LogPiece, Point, SystemPoint

log = logging.getLogger(__name__)
LOG_TAIL = 64 << 10
LOG_PER_REPORT = 256 << 10
BULK_LEAST = 1 << 20
BULK_MOST = 4 << 20
_MARKER = 64
POINTS_CAP = 20_000
POINTS_PER_REPORT = 2_000
LINES_CAP = 200_000
LINE_CAP = 16 << 10
VALUES_CAP = 64
KEY_CAP = 128
#: Of a curve: different names, and bytes of its points as JSON.
NAMES_CAP = 256
CURVE_CAP = 8 << 20
_READ = 1 << 20


def open_regular(name: str, folder: int | None = None) -> int | None:
    """A descriptor of a regular file, or None. Never follows a link and never blocks on a FIFO."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:  # not there (yet), a link, or unreadable: nothing to read
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def read_tail(path: Path, size: int = LOG_TAIL) -> bytes:
    """The last `size` bytes of a file; empty if there is none."""
    descriptor = open_regular(str(path))
    if descriptor is None:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


@dataclass(frozen=True)
class Bulk:
    """So many bytes of a log that they travel by themselves."""

    stream: str
    offset: int
    data: bytes


class LogFollower:
    """The bytes of a log file that are still to be shipped.

    At most `cap` bytes are shipped: the beginning as it comes, and at the end, if the file is
    longer, a line saying how much was left out and the last `LOG_TAIL` bytes, where the traceback
    stands.
    """

    def __init__(self, path: Path, stream: str, cap: int) -> None:
        self._path = path
        self._cap = cap
        self.stream = stream
        self._taken = 0  # bytes of the file that were shipped or skipped
        self._shipped = 0  # bytes of the stream the API has
        self._ending: bytes | None = None

    def pending(self, *, final: bool = False) -> LogPiece | None:
        """The next piece, the same one until `shipped` is called; None when there is none."""
        data = self._next(final, LOG_PER_REPORT)
        if not data:
            return None
        text = base64.b64encode(data).decode()
        return LogPiece.model_validate(
            {"stream": self.stream, "offset": self._shipped, "data": text}
        )

    def bulk(self) -> Bulk | None:
        """A large piece, if that much has gathered."""
        if self._ending is not None:
            return None
        data = self._next(False, BULK_MOST, BULK_LEAST)
        return Bulk(self.stream, self._shipped, data) if data else None

    def shipped(self, piece: LogPiece | Bulk) -> None:
        """The API has this piece."""
        data = piece.data if isinstance(piece, Bulk) else base64.b64decode(piece.data)
        size = len(data)
        self._shipped += size
        if self._ending is not None:
            self._ending = self._ending[size:]
        else:
            self._taken += size

    def _next(self, final: bool, most: int, least: int = 1) -> bytes:
        if self._ending is not None:
            return self._ending[:most]
        descriptor = open_regular(str(self._path))
        if descriptor is None:
            return b""
        try:
            rest = os.fstat(descriptor).st_size - self._taken
            left = self._cap - self._shipped
            if not final or rest > left:
                left -= LOG_TAIL + _MARKER  # kept for the ending
            if final and left <= 0 < rest:
                self._ending = self._make_ending(descriptor, rest)
                return self._ending[:most]
            if min(rest, left) < least:
                return b""
            return os.pread(descriptor, min(left, most), self._taken)
        finally:
            os.close(descriptor)

    def _make_ending(self, descriptor: int, rest: int) -> bytes:
        skipped = max(0, rest - LOG_TAIL)
        tail = os.pread(descriptor, LOG_TAIL, self._taken + skipped)
        return f"\n[... {skipped} bytes left out ...]\n".encode() + tail


class CurveFollower:
    """The points of `metrics.jsonl` that are still to be shipped; `seq` is the line's number.

    Lines that are not a JSON object of finite numbers, or are longer than `LINE_CAP`, are counted
    and left out. It ends after `points_cap` points, `lines_cap` lines or `bytes_cap` bytes of
    points as JSON. Only the first `names_cap` different names are kept.
    """

    def __init__(
        self,
        folder: int,
        name: str = "metrics.jsonl",
        *,
        points_cap: int = POINTS_CAP,
        lines_cap: int = LINES_CAP,
        bytes_cap: int = CURVE_CAP,
        names_cap: int = NAMES_CAP,
    ) -> None:
        self._folder = folder
        self._name = name
        self._points_cap = points_cap
        self._lines_cap = lines_cap
        self._bytes_left = bytes_cap
        self._names_cap = names_cap
        self._names: set[str] = set()
        self._has_more_names = False
        self._is_full = False
        self._offset = 0
        self._line = 0
        self._points = 0
        self._skipping = False
        self._buffer: list[Point] = []

    def pending(self, *, final: bool = False) -> list[Point]:
        """The next points, the same ones until `shipped` is called."""
        if self._wants_more():
            self._read(final)
        return self._buffer[:POINTS_PER_REPORT]

    def shipped(self, points: list[Point]) -> None:
        """The API has these points."""
        del self._buffer[: len(points)]

    def _wants_more(self) -> bool:
        return (
            len(self._buffer) < POINTS_PER_REPORT
            and not self._is_full
            and self._points < self._points_cap
            and self._line < self._lines_cap
        )

    def _read(self, final: bool) -> None:
        descriptor = open_regular(self._name, self._folder)
        if descriptor is None:
            return
        try:
            while self._wants_more():
                data = os.pread(descriptor, _READ, self._offset)
                if not data or not self._consume(data, final and len(data) < _READ):
                    return
        finally:
            os.close(descriptor)

    def _consume(self, data: bytes, last: bool) -> bool:
        """Take the complete lines of `data`; False when there was none."""
        end = data.rfind(b"\n") + 1
        if end == 0 and (last or len(data) > LINE_CAP):
            return self._consume_unfinished(data, last)
        for line in data[:end].split(b"\n")[:-1]:
            self._take(line)
        self._offset += end
        return end > 0

    def _consume_unfinished(self, data: bytes, last: bool) -> bool:
        self._offset += len(data)
        if last:
            self._take(data)
        else:
            self._skipping = True  # the beginning of a line that is too long
        return True

    def _take(self, line: bytes) -> None:
        skipping, self._skipping = self._skipping, False
        seq, self._line = self._line, self._line + 1
        is_over = self._points >= self._points_cap or seq >= self._lines_cap or self._is_full
        if skipping or is_over:
            return
        point = parse_point(line, seq)
        if point is None or not (values := self._named(point.values)):
            return
        size = len(json.dumps(values))
        if size > self._bytes_left:
            self._is_full = True
            log.warning("%s holds too much: the curve ends at line %d", self._name, seq)
            return
        self._bytes_left -= size
        self._points += 1
        self._buffer.append(point.model_copy(update={"values": values}))

    def _named(self, values: dict[str, float]) -> dict[str, float]:
        """The values whose names are among the first `names_cap` of the curve."""
        for name in values:
            if len(self._names) < self._names_cap:
                self._names.add(name)
        kept = {name: value for name, value in values.items() if name in self._names}
        if len(kept) < len(values) and not self._has_more_names:
            self._has_more_names = True
            most = self._names_cap
            log.warning("%s has more than %d names: others are left out", self._name, most)
        return kept


def parse_point(line: bytes, seq: int) -> Point | None:
    """The point a line stands for, or None for anything that is not one."""
    if len(line) > LINE_CAP:
        return None
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    step = _finite(raw.pop("step", None))
    values: dict[str, float] = {}
    for key, value in raw.items():
        number = _finite(value)
        # isprintable also keeps out NUL and lone surrogates, which no database takes.
        if number is not None and 0 < len(key) <= KEY_CAP and key.isprintable():
            values[key] = number
        if len(values) == VALUES_CAP:
            break
    return Point(seq=seq, step=step, values=values) if values else None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


class Samples(Protocol):
    """What looks at the resources an attempt uses."""

    def pending(self) -> list[SystemPoint]:
        """The next points, the same ones until `shipped` is called."""
        ...

    def shipped(self, count: int) -> None:
        """The API has the first `count` of the pending points."""
        ...


class Report(NamedTuple):
    """What goes into one message."""

    logs: list[LogPiece]
    points: list[Point]
    system: list[SystemPoint]

    @property
    def is_full(self) -> bool:
        """Whether it is as large as one gets, so that there may be more."""
        longest = max((len(p.data) for p in self.logs), default=0)
        return longest * 3 >= LOG_PER_REPORT * 4 or len(self.points) >= POINTS_PER_REPORT


class Telemetry:
    """Logs, curves and system metrics of an attempt; used by one thread at a time."""

    def __init__(
        self,
        logs: dict[str, Path],
        out: int,
        *,
        log_bytes: int = 256 << 20,
        samples: Samples | None = None,
    ) -> None:
        """`log_bytes`: what `OutputPipe` stores of the beginning, before a marker and the end."""
        cap = log_bytes + 2 * (LOG_TAIL + _MARKER)
        self._logs = [LogFollower(path, stream, cap) for stream, path in logs.items()]
        self._curve = CurveFollower(out)
        self._samples = samples

    def bulk(self) -> Bulk | None:
        """Log bytes that are too many for a message."""
        for log in self._logs:
            if (piece := log.bulk()) is not None:
                return piece
        return None

    def pending(self, *, final: bool = False, logs: bool = True) -> Report:
        """What is to be shipped next; none of it is lost until `shipped` is called."""
        pieces = [log.pending(final=final) for log in self._logs] if logs else []
        return Report(
            [piece for piece in pieces if piece is not None],
            self._curve.pending(final=final),
            [] if self._samples is None else self._samples.pending(),
        )

    def shipped(self, sent: Report | Bulk) -> None:
        """The API has this."""
        for piece in [sent] if isinstance(sent, Bulk) else sent.logs:
            for log in self._logs:
                if log.stream == piece.stream:
                    log.shipped(piece)
        if isinstance(sent, Report):
            self._curve.shipped(sent.points)
            if self._samples is not None:
                self._samples.shipped(len(sent.system))
