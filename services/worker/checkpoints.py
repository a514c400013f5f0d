"""Record, while a training runs, when each of its checkpoints was there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from assay.evaluation.checkpoints import MOST, Checkpoint, Reader, names

_POLL_SECONDS = 0.2


class CheckpointWatch:
    """Looks at the artifact folder, open as a descriptor, until it is told to stop.

    A checkpoint's time is taken when its hash is known: whatever has that hash was there by then.
    At most `most_bytes` are read, and as many again to see that nothing has changed; both end
    when `cancel` is set. `known` are those that were recorded before, by a worker that is no more;
    what appeared while nobody looked gets the time at which it is found. `on_new` hears of each.
    """

    def __init__(
        self,
        artifact: int,
        most_bytes: int,
        cancel: threading.Event | None = None,
        *,
        poll_seconds: float = _POLL_SECONDS,
        known: Iterable[Checkpoint] = (),
        on_new: Callable[[Checkpoint], object] = lambda _: None,
    ) -> None:
        self._artifact = artifact
        self._most_bytes = most_bytes
        self._cancel = cancel or threading.Event()
        self._reader = Reader(most_bytes, lambda: not self._cancel.is_set())
        self._poll_seconds = poll_seconds
        self._recorded: dict[str, Checkpoint | None] = {c.name: c for c in known}
        self._on_new = on_new
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._since: float | None = None

    def start(self, since: float | None = None, *, stands: bool = False) -> None:
        """Begin, with the clock at 0, or started at `since` (monotonic), or standing at 0 until
        `start_clock` is called."""
        if not stands:
            self._since = time.monotonic() if since is None else since
        self._thread.start()

    def start_clock(self, at: float) -> None:
        """The clock was started at `at`; what was there before has the time 0."""
        self._since = at

    def stop(self) -> tuple[Checkpoint, ...]:
        """Look a last time; by name, the checkpoints that are still what was recorded.

        To be called when the training has ended and nothing of it runs any more.
        """
        self.close()
        self._look()
        again = Reader(self._most_bytes, self._reader.is_wanted)
        found = [c for c in self._recorded.values() if c is not None]
        return tuple(
            c
            for c in sorted(found, key=lambda c: c.name)
            if again.hash_of(self._artifact, c.name) == c.sha256
        )

    def close(self) -> None:
        """Stop looking; nothing happens if that was done before."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            self._look()

    def _look(self) -> None:
        for name in names(self._artifact):
            if name in self._recorded or len(self._recorded) >= MOST:
                continue
            sha256 = self._reader.hash_of(self._artifact, name)
            seconds = 0.0 if self._since is None else max(0.0, time.monotonic() - self._since)
            # What cannot be read is not looked at again: it was to be complete.
            found = None if sha256 is None else Checkpoint(name, seconds, sha256)
            self._recorded[name] = found
            if found is not None:
                self._on_new(found)
