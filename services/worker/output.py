"""Stores what a program prints, however much it is."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

TAIL = 64 << 10
"""Of an output that is too long, so many last bytes are kept: a traceback stands there."""
_CHUNK = 64 << 10
_PAUSE = 0.001  # per chunk that is dropped: 60 MB/s cost this host next to nothing
END_SECONDS = 5.0


class OutputPipe:
    """A pipe whose content goes to a file: the first `cap` bytes, and in the end the last ones.

    The program gets `descriptor`. It never holds the file: it can neither read, shorten nor
    overwrite what it printed, and memory here stays flat whatever it prints. A writer that is
    still there at the end, and should be dead, gets `end_seconds`.
    """

    def __init__(self, path: Path, cap: int, *, end_seconds: float = END_SECONDS) -> None:
        self._left = cap
        self._end_seconds = end_seconds
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._dropped = 0
        self._reader, self.descriptor = os.pipe()
        self._stop_reader, self._stop_writer = os.pipe()
        self._file = path.open("ab", buffering=0)
        self._thread = threading.Thread(target=self._pump, name="output", daemon=True)
        self._thread.start()

    def close_writer(self) -> None:
        """The program has been started and has a descriptor of its own; may be repeated."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Store the rest and end; waits a moment for a writer that should be dead."""
        self.close_writer()
        self._thread.join(self._end_seconds)
        os.close(self._stop_writer)
        self._thread.join()
        for descriptor in (self._reader, self._stop_reader):
            os.close(descriptor)
        self._file.close()

    def _pump(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._stop_reader, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            chunk = os.read(self._reader, _CHUNK) if self._reader in ready else b""
            self._take(chunk)
            # Told to stop, it ends even if somebody who should be dead goes on writing.
            if not chunk or self._stop_reader in ready:
                break
        self._write_tail()

    def _take(self, chunk: bytes) -> None:
        head, rest = chunk[: self._left], chunk[self._left :]
        if head:
            self._left -= self._store(head)
        if rest:
            self._keep(rest)
            time.sleep(_PAUSE)

    def _store(self, data: bytes) -> int:
        with contextlib.suppress(OSError):  # this host's disk is full; the run goes on
            self._file.write(data)
        return len(data)

    def _keep(self, data: bytes) -> None:
        self._tail.append(data)
        self._kept += len(data)
        while self._kept - len(self._tail[0]) >= TAIL:
            self._kept -= len(self._tail[0])
            self._dropped += len(self._tail.popleft())

    def _write_tail(self) -> None:
        tail = b"".join(self._tail)
        dropped = self._dropped + max(0, len(tail) - TAIL)
        if dropped:
            self._store(f"\n[... {dropped} bytes left out ...]\n".encode())
        self._store(tail[-TAIL:])


@contextlib.contextmanager
def stored_output(path: Path, cap: int) -> Iterator[OutputPipe]:
    """An `OutputPipe` that is closed at the end, when the program is dead."""
    pipe = OutputPipe(path, cap)
    try:
        yield pipe
    finally:
        pipe.close()
