"""Smokes: a training is started as every other, and ended once it has shown that it starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from assay.contracts.environment import Profile
from assay.contracts.worker import AttemptSpec
from assay.domain.states import MeasurementKind
from assay.sandbox import Exit, Handle
from services.worker.cache import CachedBundle
from services.worker.telemetry import CurveFollower

_POLL_SECONDS = 0.05
#: How a smoke passed: steps were taken, the training ended well, or it was alive in the end.
Passed = Literal["stepped", "exited", "alive"]


def smoke_of(spec: AttemptSpec, bundle: CachedBundle) -> Profile | None:
    """The profile cut to a smoke, after whose seconds one that still runs has passed; None for an
    attempt that is no smoke."""
    if spec.kind != MeasurementKind.SMOKE.value:
        return None
    return bundle.environment.manifest.cut_to_smoke(spec.profile)


def shown_to_codebase(profile: Profile, smoke: Profile | None) -> Profile:
    """The profile as its codebase sees it: at the size of a smoke, and with the whole budget, so
    that it plans as it would in a measurement."""
    if smoke is None:
        return profile
    return smoke.model_copy(update={"budget": profile.budget})


class SmokeWatch:
    """Kills a training, without grace, as soon as it has passed or its seconds are over.

    It has passed when its curve, in the open folder `artifact`, has points of two different
    steps: those before may be a header, or stand before the first step. A line without a step
    counts as one of its own. `on_pass` hears of it before the kill.
    """

    def __init__(self, artifact: int, seconds: float, on_pass: Callable[[], object]) -> None:
        self._curve = CurveFollower(artifact)
        self._steps: set[float] = set()
        self._seconds = seconds
        self._on_pass = on_pass
        self._passed: Passed | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, handle: Handle) -> None:
        """Watch a training that has just been started, or adopted."""
        self._thread = threading.Thread(
            target=self._watch, args=(handle,), name="smoke", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; to be called when nothing of the training runs any more."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def passed(self, end: Exit) -> Passed | None:
        """How the smoke passed, after `stop`; None when its end says what went wrong."""
        if end.reason == "exited":
            return "exited" if end.code == 0 else None
        if end.reason == "wall":  # the sandbox was faster, or nobody watched
            return self._passed or "alive"
        return self._passed if end.reason == "cancelled" else None

    def _watch(self, handle: Handle) -> None:
        deadline = time.monotonic() + self._seconds
        while not self._stopped.wait(_POLL_SECONDS):
            if self._has_stepped():
                self._passed = "stepped"
            elif time.monotonic() >= deadline:
                self._passed = "alive"
            else:
                continue
            self._on_pass()
            handle.kill()
            return

    def _has_stepped(self) -> bool:
        points = self._curve.pending()
        self._steps.update(p.seq if p.step is None else p.step for p in points)
        self._curve.shipped(points)
        return len(self._steps) > 1
