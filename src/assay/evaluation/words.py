"""What a program says on stderr before it is shown anything held out, for the worker's log."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator

_KEPT_BYTES = 2000
_CHUNK = 64 << 10


class LastWords:
    """A pipe of which the last bytes are kept, until `freeze`; later ones are read and dropped.

    A pipe and not a file: the program can neither rewrite what it said nor fill a disk with it.
    """

    def __init__(self) -> None:
        self._text = b""
        self._frozen = False
        self._lock = threading.Lock()
        self._reader, self.descriptor = os.pipe()
        os.set_blocking(self._reader, False)
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="stderr", daemon=True)
        self._thread.start()

    def close_writer(self) -> None:
        """The program has a descriptor of its own; may be repeated."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def freeze(self) -> None:
        """Keep what was said until now, and nothing more."""
        with self._lock:
            self._drain()
            self._frozen = True

    @property
    def frozen(self) -> bool:
        """Whether the program has been shown something since."""
        return self._frozen

    def text(self) -> str:
        """What was kept."""
        with self._lock:
            self._drain()
            return self._text.decode(errors="replace").strip()

    def close(self) -> None:
        """End, whoever still writes."""
        self.close_writer()
        os.close(self._stop_writer)
        self._thread.join()
        for descriptor in (self._reader, self._stop_reader):
            os.close(descriptor)

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        poll.register(self._stop_reader, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            with self._lock:
                chunk = self._take() if self._reader in ready else None
            if chunk == b"" or self._stop_reader in ready:
                return

    def _drain(self) -> None:
        for _ in range(64):  # a pipe holds no more; a flood must not keep us here
            if not self._take():
                return

    def _take(self) -> bytes | None:
        """Read once: empty at the end of the stream, None if there is nothing now."""
        try:
            chunk = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return None
        if not self._frozen:
            self._text = (self._text + chunk)[-_KEPT_BYTES:]
        return chunk


@contextlib.contextmanager
def last_words() -> Iterator[LastWords]:
    """`LastWords` that are closed at the end."""
    words = LastWords()
    try:
        yield words
    finally:
        words.close()
