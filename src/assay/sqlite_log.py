"""Whether SQLite's write-ahead log can be read to its end.

SQLite reads a log up to the first frame whose checksum is wrong, and says nothing: that is how it
ends after a crash. So a damaged log loses committed transactions without an error. `assay serve`
asks before it opens its database, and `assay doctor` when it is asked to look.

The format: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER, _FRAME = 32, 24
_MAGIC = 0x377F0682
_VERSION = 3007000
_PAGE_SIZES = frozenset(1 << n for n in range(9, 17))
_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class LogDamage:
    """What is wrong with a log.

    Where it is not `certain`, only the last transaction is damaged. Losing power while it was
    written leaves the same, and then it was never committed.
    """

    message: str
    certain: bool = True


def log_path(database: Path) -> Path:
    """Return where SQLite keeps the log of a database."""
    return database.with_name(database.name + "-wal")


def find_damage(database: Path) -> LogDamage | None:
    """Return what is wrong with the log of a database; None if it is whole, empty or missing.

    Nobody may have the database open.

    Raises:
        OSError: a file cannot be read.
    """
    try:
        log = log_path(database).read_bytes()
    except FileNotFoundError:
        return None
    if len(log) < _HEADER + _FRAME or not any(log):  # a crash before anything was synced
        return None
    header = struct.unpack(">8I", log[:_HEADER])
    order = "<" if header[0] == _MAGIC else ">"
    size = header[2]
    whole = header[0] | 1 == _MAGIC | 1 and header[1] == _VERSION and size in _PAGE_SIZES
    if not whole or _checksum(order, log[:24], (0, 0)) != header[6:]:
        return LogDamage("its header is damaged, so SQLite would drop all that it holds")
    return _foreign(database, size) or _broken_frame(log, order, header)


def _foreign(database: Path, size: int) -> LogDamage | None:
    """Whether the log cannot be this database's, whose header is its first 100 bytes."""
    try:
        with database.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        head = b""
    if not head:
        return LogDamage("the database itself is missing or empty, so SQLite would delete it")
    if len(head) < 100:
        return None  # opening the database says so
    (own,) = struct.unpack(">H", head[16:18])
    if (own if own != 1 else 1 << 16) != size:  # 65536 does not fit, and is written as 1
        return LogDamage("it belongs to another database: its pages have another size")
    return None


def _broken_frame(log: bytes, order: str, header: tuple[int, ...]) -> LogDamage | None:
    size, salts, sums = header[2], header[4:6], header[6:8]
    starts = range(_HEADER, len(log) - _FRAME - size + 1, _FRAME + size)
    for number, start in enumerate(starts):
        frame = struct.unpack(">6I", log[start : start + _FRAME])
        page = log[start + _FRAME : start + _FRAME + size]
        sums = _checksum(order, page, _checksum(order, log[start : start + 8], sums))
        if frame[2:4] != salts or frame[4:6] != sums:
            return _behind(log, starts[number:], salts, number + 1)
    return None


def _behind(log: bytes, starts: range, salts: tuple[int, ...], number: int) -> LogDamage | None:
    """What the frames from the first broken one on say.

    Those of an earlier use of the file have other salts. Commits are synced one by one: what
    follows a commit was written when all before it had reached the disk.
    """
    committed = False
    for start in starts:
        frame = struct.unpack(">6I", log[start : start + _FRAME])
        if frame[2:4] != salts:
            continue
        if committed:
            return LogDamage(
                f"frame {number} is damaged, so SQLite would drop it and all transactions after it"
            )
        committed = frame[1] != 0  # the size of the database after a commit, else 0
    if not committed:
        return None
    return LogDamage(f"its last transaction is damaged, from frame {number} on", certain=False)


def _checksum(order: str, data: bytes, start: tuple[int, ...]) -> tuple[int, ...]:
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second
