"""What the baseline uses on this host, which caps are multiples of.

Every baseline measurement that succeeds here adds a run. An idea that comes before there are
three makes `services/worker/usage.py` run the baseline itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from assay.domain.usage import REFERENCE_RUNS, Used, typical
from services.worker.failures import Cancelled

_log = logging.getLogger(__name__)
#: A median of so many does not follow a busy hour, and follows a new kernel within a day.
_KEPT = 20
_WAIT_SECONDS = 0.2


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    about: dict[str, Any]
    runs: list[Used] = []


class References:
    """The baseline's runs on this host for one environment, profile and set of libraries.

    `about` names all that a run's compute depends on; other values are other references.
    """

    def __init__(self, folder: Path, name: str, about: dict[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        self._path = folder / f"{name}-{digest}.json"
        self._about = about

    def get(self) -> Used | None:
        """The typical run; None before the first."""
        runs = self._read().runs
        return typical(runs) if runs else None

    def get_or_run(self, run: Callable[[], Used], cancel: threading.Event) -> Used:
        """The typical run. As long as there are fewer than three, `run` is called, by one attempt
        of this host at a time.

        Raises:
            Cancelled: `cancel` was set while another attempt ran the baseline.
        """
        runs = self._read().runs
        if len(runs) < REFERENCE_RUNS:
            with self._locked("run", cancel):
                runs = self._read().runs
                while len(runs) < REFERENCE_RUNS:
                    runs.append(run())
                    self.add(runs[-1])
        return typical(runs)

    def add(self, run: Used) -> None:
        """Store a run; the oldest ones are dropped.

        A disk that takes no more costs the next attempt a run of the baseline, not this one its
        result.
        """
        try:
            with self._locked("write"):
                runs = [*self._read().runs, run][-_KEPT:]
                self._write(_Stored(about=self._about, runs=runs))
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error)

    def _write(self, stored: _Stored) -> None:
        new = self._path.with_suffix(".new")
        with new.open("w") as file:
            file.write(stored.model_dump_json(indent=1))
            file.flush()
            os.fsync(file.fileno())
        new.rename(self._path)

    def _read(self) -> _Stored:
        try:
            return _Stored.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return _Stored(about=self._about)
        except (OSError, ValidationError) as error:  # a disk or a person: the next run replaces it
            _log.warning("%s cannot be read: %s", self._path, error)
            return _Stored(about=self._about)

    @contextmanager
    def _locked(self, purpose: str, cancel: threading.Event | None = None) -> Iterator[None]:
        """Two locks, for a run takes long and writing does not have to wait for it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(f".{purpose}.lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    pause = cancel or threading.Event()
                    if pause.wait(_WAIT_SECONDS):
                        raise Cancelled("another attempt runs the baseline") from None
            yield
