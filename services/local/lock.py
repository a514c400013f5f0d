"""One process per data folder."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from assay.domain.errors import Conflict


class DataLock:
    """An exclusive lock on a data folder, held until the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "service.lock"
        self._file = self._path.open("a+")

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            Conflict: another process serves this folder; the message says which.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            raise Conflict(
                f"another process already serves {self._path.parent}: "
                f"{self._file.read().strip() or 'unknown'}. "
                "Stop it, or choose another folder with --data-dir.",
                code="already_served",
            ) from None

    def describe(self, **facts: Any) -> None:
        """Note who serves, for the message that the next process prints."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps({"pid": os.getpid(), **facts}))
        self._file.flush()

    def release(self) -> None:
        """Give the lock up."""
        self._file.close()
