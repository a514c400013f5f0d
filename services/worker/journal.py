"""What a worker notes about an attempt while it runs, for a worker that goes on with it.

It lies in the attempt's folder, which no sandbox sees, and exists only where running programs
outlive the worker (`Sandbox.adopts`). It is replaced as a whole, so it is never half a journal.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from assay.contracts.worker import AttemptSpec, RescoreReport
from assay.domain.usage import Used
from assay.evaluation.checkpoints import Checkpoint

_log = logging.getLogger(__name__)
NAME = "journal.json"
KEEP, SOURCE = "keep", "codebase.zip"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Phase(StrEnum):
    """How far the attempt is; what is after it may have been begun."""

    PREPARED = "prepared"  # the workspace is there; the training may have been started
    TRAINED = "trained"  # the training ended well; a smoke has passed and is to be ended
    SCORED = "scored"  # the evaluation gave metrics


class Notes(BaseModel):
    """The content of a journal. `began` is of the monotonic clock of the boot `boot`, and so is
    `clock_began`: when a training with a warm-up was given its data.

    `capped` says that `cpu_seconds` (the training's limit) and `reference` (what the baseline uses
    on this host; None for the baseline itself) have been decided, in units of version `probe` of
    the probe of speed.
    """

    model_config = ConfigDict(extra="forbid")

    spec: AttemptSpec
    boot: str
    began: float
    phase: Phase = Phase.PREPARED
    training_began: float | None = None
    clock_began: float | None = None
    capped: bool = False
    cpu_seconds: float | None = None
    reference: Used | None = None
    probe: int = 0
    devices: list[str] = []
    facts: dict[str, Any] = {}
    seconds: float = 0.0
    checkpoints: list[Checkpoint] = []
    metrics: dict[str, float] = {}
    # A worker of an older version that takes the attempt over refuses notes it does not know.
    rescore: RescoreReport | None = Field(None, exclude_if=lambda rescore: rescore is None)
    keep: list[str] = []


class Journal:
    """The journal of one attempt; safe to use from several threads."""

    def __init__(self, folder: Path, notes: Notes, *, stored: bool = True) -> None:
        self._path = folder / NAME
        self._stored = stored
        self._lock = threading.Lock()
        self.notes = notes

    def note(self, **changes: Any) -> None:
        """Change the notes, on disk too."""
        with self._lock:
            self.notes = self.notes.model_copy(update=changes)
            self._write()

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """A checkpoint was seen complete."""
        with self._lock:
            found = [*self.notes.checkpoints, checkpoint]
            self.notes = self.notes.model_copy(update={"checkpoints": found})
            self._write()

    def _write(self) -> None:
        if not self._stored:
            return
        new = self._path.with_suffix(".new")
        try:
            new.write_text(self.notes.model_dump_json())
            new.rename(self._path)
        except OSError as error:  # a full disk: what is running goes on, only not after a restart
            _log.warning("%s: no journal: %s", self.notes.spec.attempt, error)


def new_notes(spec: AttemptSpec, devices: list[str], facts: dict[str, Any]) -> Notes:
    """Notes of an attempt that begins now."""
    return Notes(
        spec=spec, boot=boot_id(), began=time.monotonic(), devices=devices, facts=dict(facts)
    )


def boot_id() -> str:
    """What tells this boot from all others; empty where the system does not say."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def read_journal(folder: Path) -> Journal | None:
    """The journal in an attempt's folder; None when there is none that is worth anything: after a
    reboot nothing runs any more."""
    try:
        notes = Notes.model_validate_json((folder / NAME).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, json.JSONDecodeError) as error:
        _log.warning("%s: its journal cannot be read: %s", folder.name, error)
        return None
    if notes.boot != boot_id() or notes.spec.attempt != folder.name:
        return None
    return Journal(folder, notes)
