"""Why something waits, in words: of a batch, and of what is next in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from assay.storage.waiting import Pause, Unmet, Want


def waits_for(found: Pause | Want | Unmet, now: datetime) -> str:
    """Return what measurements wait for, apart from their turn."""
    what = "1 measurement" if found.number == 1 else f"{found.number} measurements"
    if isinstance(found, Pause):
        seconds = max(0.0, (found.at - now).total_seconds())
        return f"{what} to be tried again after {found.code}, in {seconds:.0f} s"
    if isinstance(found, Unmet):
        return f"{what} under {found.conditions}: {unmet(found.differences)}"
    return f"{what} for a worker of {found.hardware_class}: none can take work"


def unmet(differences: Sequence[str] | None) -> str:
    """Return how live workers differ from the conditions that are asked for (see `Unmet`)."""
    if differences is None:
        return "controls on hosts with other software come first"
    return f"live workers differ ({'; '.join(differences)})"
