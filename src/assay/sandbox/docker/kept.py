"""What is left beside a container whose program outlives its worker, for a later one to read.

The folder (`interface.Keep`) is of the worker's user alone and no container sees it. It holds the
socket at which the init answers (`link.knock`), what the worker noted before it gave the order,
and the init's own record, written through a descriptor that it was handed.
"""

import contextlib
import json
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from assay.sandbox.docker.link import KNOCK, listen
from assay.sandbox.interface import Exit, Keep, Reason
from assay.sandbox.supervise import GUARD_SECONDS

_NOTE, _RECORD = "note.json", "record"
_MOST_RECORD = 1 << 16


@dataclass(frozen=True)
class Note:
    """What the worker knew when it gave the order: `started` is of the monotonic clock, which all
    processes share until the next boot."""

    boot: str
    started: float
    user: int | None

    def write(self, folder: Path) -> None:
        """Store it, complete or not at all."""
        new = folder / f"{_NOTE}.new"
        new.write_text(json.dumps(asdict(self)))
        new.rename(folder / _NOTE)


def read_note(folder: Path) -> Note | None:
    """The note; None when no order was given."""
    try:
        return Note(**json.loads((folder / _NOTE).read_text()))
    except FileNotFoundError:
        return None


@dataclass(frozen=True)
class Record:
    """What the init wrote down: whether it started the program, and how that ended."""

    started: bool = False
    end: Exit | None = None


def read_record(folder: Path) -> Record:
    """The record so far. It was written in the container: nothing in it is taken for granted."""
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError, ValueError):
        with (folder / _RECORD).open("rb") as file:
            text = file.read(_MOST_RECORD)
        for line in text.splitlines():
            found = json.loads(line)
            lines += [found] if isinstance(found, dict) else []
    if not lines:
        return Record((folder / _RECORD).is_file() and (folder / _RECORD).stat().st_size > 0)
    return Record(True, _end_of(lines[1]) if len(lines) > 1 else None)


def _end_of(found: dict[str, Any]) -> Exit | None:
    try:
        code = os.waitstatus_to_exitcode(int(found["status"]))
        wall, cpu, peak = float(found["wall"]), float(found["cpu"]), int(found["peak"])
    except (KeyError, TypeError, ValueError):
        return None
    return Exit("wall" if found.get("late") is True else "exited", code, wall, cpu, peak)


def _before_the_clock(end: Exit) -> Exit:
    """The end of a program whose wall clock nobody has started."""
    reason: Reason = "warm_up" if end.reason == "wall" else end.reason
    return replace(end, reason=reason, wall_seconds=0.0, warm_up_seconds=end.wall_seconds)


def clear(folder: Path) -> None:
    """Remove what a worker left that died before its order arrived."""
    for name in (_NOTE, _RECORD, KNOCK):
        (folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def opened(keep: Keep) -> Iterator[list[int]]:
    """The descriptors that the init of a kept program gets besides the streams, in their order."""
    with contextlib.ExitStack() as stack:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        files = []
        for path in (keep.output, keep.folder / _RECORD):
            descriptor = os.open(path, flags, 0o600)
            stack.callback(os.close, descriptor)
            files.append(descriptor)
        door = stack.enter_context(listen(keep.folder))
        yield [*files, door.fileno(), *keep.descriptors]


def container_name(scope: str, program: str) -> str:
    """The name of the container of a kept program: there is never a second one."""
    return f"assay-{scope}-{program}"


class Ended:
    """The handle of a program that has ended, and whose container is gone.

    `started` is when it was started, of the monotonic clock. With a `warm_up`, what of its time
    was on the wall clock is known when `start_clock` has been told. What was more than `longest`
    ended too late: its init allows warm-up and wall clock together.
    """

    pid = 0

    def __init__(
        self,
        end: Exit,
        started: float = 0.0,
        *,
        warm_up: bool = False,
        longest: float = math.inf,
    ) -> None:
        self._started, self._warm_up, self._longest = started, warm_up, longest
        self._end = _before_the_clock(end) if warm_up else end

    def wait(self, cancel: threading.Event | None = None) -> Exit:
        return self._end

    def start_clock(self, at: float | None = None) -> None:
        end = self._end
        whole = end.wall_seconds + end.warm_up_seconds
        if not self._warm_up or at is None or end.wall_seconds > 0:
            return
        warm_up = min(max(0.0, at - self._started), whole)
        wall = whole - warm_up
        late = end.reason == "exited" and wall > self._longest + GUARD_SECONDS
        reason: Reason = "wall" if late or end.reason == "warm_up" else end.reason
        self._end = replace(end, reason=reason, wall_seconds=wall, warm_up_seconds=warm_up)

    def kill(self) -> None:
        """Nothing of it is left."""

    def gauges(self) -> dict[str, float]:
        return {}

    def starved_seconds(self) -> float:
        return self._end.starved_seconds
