"""Grades pairs of answer and reference; runs inside a sandbox and imports nothing of ours.

    python -I grade_server.py GRADER SECONDS MEMORY_BYTES

GRADER is a file that defines `grade(answer, reference)`. For every question (see `frames`) a child
is forked, reads the pair itself, grades it and is killed. So this process never holds a pair, and
a child, whose answer may have taken it over, finds its own pair and no other one: the memory and
the descriptors of this process are closed to it, and it cannot leave a process behind.

An answer that takes over its child can still claim any mark. Who judges the marks knows that.
"""

import contextlib
import ctypes
import json
import math
import os
import resource
import runpy
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import NoReturn

_PREFIX = struct.Struct("<4sI")
_MARK = struct.Struct("<d")
_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36
Grade = Callable[[str, str], float]

#: So many times the time of a pair may pass while the host is busy with others.
_PATIENCE = 4.0
_READ = b"r"  # a child's word that it has read its pair: now its time runs


def main() -> None:
    path, seconds, memory = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever the grader prints is no answer
    sys.path.insert(0, os.path.dirname(path))
    grade = runpy.run_path(path)["grade"]
    _close_to_others()
    seq = 0
    while _another():
        seq += 1
        _answer(answers, seq, _judge(grade, answers, seconds, memory))


def _close_to_others() -> None:
    """Nobody of the same user may open our memory or descriptors by way of /proc."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for option, value in ((_SET_DUMPABLE, 0), (_SET_CHILD_SUBREAPER, 1)):
            if libc.prctl(option, value, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


def _another() -> bool:
    """Wait for a question without reading it; False at the end of the questions."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll())


def _judge(grade: Grade, answers: int, seconds: float, memory: int) -> float | None:
    """The child's mark; None if there is none in time, or it is no number from 0 to 1."""
    inward, outward = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(inward)
        os.close(answers)
        _child(grade, outward, seconds, memory)
    os.close(outward)
    try:
        if _receive(inward, len(_READ)) != _READ:
            return None
        raw = _receive(inward, _MARK.size, _Time(pid, seconds))
    finally:
        os.close(inward)
        _end(pid)
    if len(raw) != _MARK.size:
        return None
    (mark,) = _MARK.unpack(raw)
    return float(mark) if 0.0 <= mark <= 1.0 else None  # NaN is not either


class _Time:
    """What is left to a child: while it waits for a processor no time passes, for as many times
    `seconds` as `_PATIENCE` says."""

    def __init__(self, pid: int, seconds: float) -> None:
        self._wait = f"/proc/{pid}/schedstat"
        self._seconds = seconds
        self._known = 0.0
        self._before = self._waited()
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, at most; 0 when there are none."""
        waited = min(self._waited() - self._before, _PATIENCE * self._seconds)
        return max(0.0, self._end + waited - time.monotonic())

    def _waited(self) -> float:
        try:
            with open(self._wait) as file:
                self._known = int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):  # not Linux, or it has ended
            pass
        return self._known


def _receive(descriptor: int, size: int, limit: _Time | None = None) -> bytes:
    """Up to `size` bytes: fewer at the end of the stream or of the time."""
    data = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(data) < size:
        if not _readable(poll, limit):
            break
        got = os.read(descriptor, size - len(data))
        if not got:
            break
        data += got
    return data


def _readable(poll: select.poll, limit: _Time | None) -> bool:
    """Wait; False when the time is up."""
    if limit is None:
        return bool(poll.poll())
    while (left := limit.left()) > 0:
        if poll.poll(1000 * left):
            return True
    return False


def _end(pid: int) -> None:
    """Kill the child and whatever it started."""
    for victim in (-pid, pid):
        with contextlib.suppress(OSError):
            os.kill(victim, signal.SIGKILL)
    os.waitpid(pid, 0)
    if sys.platform == "linux":
        own = f"/proc/self/task/{os.getpid()}/children"
        for _ in range(100):  # orphans become our children
            with contextlib.suppress(OSError), open(own) as file:
                orphans = file.read().split()
                if not orphans:
                    return
                for orphan in orphans:
                    os.kill(int(orphan), signal.SIGKILL)
                    os.waitpid(int(orphan), 0)


def _child(grade: Grade, outward: int, seconds: float, memory: int) -> NoReturn:
    code = 1
    try:
        answer, reference = _read_pair()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.dup2(outward, 3)
        os.closerange(4, 4096)
        os.setsid()
        _limit(seconds, memory)
        os.write(3, _READ)
        os.write(3, _MARK.pack(float(grade(answer, reference))))
        code = 0
    finally:
        os._exit(code)  # an exception has no way out either: there is no mark


def _limit(seconds: float, memory: int) -> None:
    own = 0
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * resource.getpagesize()
    cpu = math.ceil(seconds) + 1
    for what, most in (
        (resource.RLIMIT_AS, own + memory),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


def _read_pair() -> tuple[str, str]:
    _, length = _PREFIX.unpack(_read(_PREFIX.size))
    header = json.loads(_read(length))
    texts = {a["name"]: _read(a["shape"][0]).decode() for a in header["arrays"]}
    return texts["answer"], texts["reference"]


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = os.read(0, size - len(data))
        if not got:
            raise EOFError
        data += got
    return data


def _answer(answers: int, seq: int, mark: float | None) -> None:
    described = {"name": "mark", "dtype": "float64", "shape": [1]}
    header = json.dumps({"seq": seq, "arrays": [described]}).encode()
    # -1: there is no mark.
    frame = (
        _PREFIX.pack(b"ASSY", len(header)) + header + _MARK.pack(-1.0 if mark is None else mark)
    )
    while frame:
        frame = frame[os.write(answers, frame) :]


if __name__ == "__main__":
    main()
