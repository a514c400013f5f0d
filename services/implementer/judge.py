"""The child process that judges answers, and how it is spoken to; `judges` starts it.

It imports nothing but the patcher and the standard library, so that it starts soon and is small.
"""

from __future__ import annotations

import ctypes
import json
import math
import resource
import signal
import struct
import sys
import time
import traceback
from typing import IO, Any

from services.implementer import judging

_HEADER = struct.Struct("!Q")
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Judge what stdin asks, one answer after the other, until it ends."""
    if sys.platform == "linux":
        # While it compiles it would not notice that nobody asks any more.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    baseline: judging.Files = {}
    while True:
        try:
            request = receive(questions)
        except EOFError:
            return
        if request["baseline"] is not None:
            baseline = request["baseline"]
        _limit(request["seconds"], request["memory_bytes"])
        begun = time.process_time()
        try:
            reply = _judged(request, baseline)
        except MemoryError:
            reply = {"memory": True}
        except Exception:
            reply = {"error": traceback.format_exc()}
        _lift_time_limit()
        reply["seconds"] = time.process_time() - begun
        send(answers, reply)


def _judged(request: dict[str, Any], baseline: judging.Files) -> dict[str, Any]:
    found = judging.judge(
        request["answer"], baseline, tuple(request["protected"]), compiles=request["compiles"]
    )
    files, rejected = found.files, found.rejected
    return {
        "changed": files
        and {name: text for name, text in files.items() if baseline.get(name) != text},
        "gone": [name for name in baseline if files is not None and name not in files],
        "rejected": rejected and (rejected.code, rejected.message),
        "diff": found.diff,
        "canonical": found.canonical,
    }


def _limit(seconds: float, memory_bytes: int) -> None:
    """Bound what the next judgement may use. The kernel ends the process when it exceeds this."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    # The kernel counts whole seconds.
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _lift_time_limit() -> None:
    """What is left of an answer's time is not a limit for reading the next one."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def send(file: IO[bytes], message: Any) -> None:
    """Write a message for `receive`."""
    data = json.dumps(message).encode()
    file.write(_HEADER.pack(len(data)) + data)
    file.flush()


def receive(file: IO[bytes]) -> Any:
    """Read a message. Raises EOFError at the end of the file, or in the middle of a message."""
    (size,) = _HEADER.unpack(_read(file, _HEADER.size))
    return json.loads(_read(file, size))


def _read(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data
