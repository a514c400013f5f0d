"""Keep every processor busy, as the other experiments of a full worker do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

#: Hashes and copies more than a core's caches hold; ends when the program that started it is gone.
_BURN = """
import hashlib, os, sys
parent, data = int(sys.argv[1]), bytearray(16 << 20)
while os.getppid() == parent:
    hashlib.sha256(bytes(data))
"""


@contextmanager
def burners(count: int | None = None) -> Iterator[None]:
    """Run `count` burners meanwhile; one per processor by default."""
    count = (os.cpu_count() or 1) if count is None else count
    argv = [sys.executable, "-c", _BURN, str(os.getpid())]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started += [subprocess.Popen(argv) for _ in range(count)]
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
