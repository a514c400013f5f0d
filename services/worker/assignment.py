"""What a worker holds: attempts on their way from assignment to their end."""

from __future__ import annotations

import threading
from enum import StrEnum

from assay.contracts.worker import AttemptSpec, HeldAttempt
from services.worker.journal import Journal


class StopReason(StrEnum):
    """Why an attempt is ended early, weakest first."""

    STOPPING = "stopping"  # this worker ends; the attempt is tried again elsewhere
    CANCELLED = "cancelled"  # nobody wants the result any more
    FENCED = "fenced"  # the attempt is somebody else's: discard, report nothing


_STRENGTH = {reason: place for place, reason in enumerate(StopReason)}


class Assignment:
    """An attempt and the way to end it from another thread.

    `cancel` ends what runs; `abandon` also ends the tries to report. With a `journal` the attempt
    was begun by a worker that is no more.
    """

    def __init__(self, spec: AttemptSpec, journal: Journal | None = None) -> None:
        self.spec = spec
        self.journal = journal
        self.cancel = threading.Event()
        self.abandon = threading.Event()
        self._reason: StopReason | None = None
        self._lock = threading.Lock()

    @property
    def reason(self) -> StopReason | None:
        """Why the attempt is ended early; None as long as it is not."""
        return self._reason

    def stop(self, reason: StopReason) -> None:
        """End the attempt; a stronger reason replaces a weaker one."""
        with self._lock:
            if self._reason is None or _STRENGTH[reason] > _STRENGTH[self._reason]:
                self._reason = reason
        self.cancel.set()
        if reason is StopReason.FENCED:
            self.abandon.set()


class Held:
    """Every attempt this worker holds, queued or running; safe to use from several threads."""

    def __init__(self) -> None:
        self._by_attempt: dict[str, Assignment] = {}
        self._lock = threading.Lock()

    def add(self, spec: AttemptSpec, journal: Journal | None = None) -> Assignment | None:
        """Hold a new attempt; None when it is held already (an assignment may be repeated)."""
        with self._lock:
            if spec.attempt in self._by_attempt:
                return None
            assignment = self._by_attempt[spec.attempt] = Assignment(spec, journal)
            return assignment

    def remove(self, assignment: Assignment) -> None:
        """The attempt is over and nothing of it runs any more."""
        with self._lock:
            self._by_attempt.pop(assignment.spec.attempt, None)

    def stop(self, attempt: str, reason: StopReason) -> None:
        """End one attempt, if it is held."""
        with self._lock:
            assignment = self._by_attempt.get(attempt)
        if assignment is not None:
            assignment.stop(reason)

    def all(self) -> list[Assignment]:
        """A snapshot."""
        with self._lock:
            return list(self._by_attempt.values())

    def report(self) -> list[HeldAttempt]:
        """What a sync tells the API."""
        return [
            HeldAttempt(attempt=a.spec.attempt, lease_token=a.spec.lease_token) for a in self.all()
        ]
