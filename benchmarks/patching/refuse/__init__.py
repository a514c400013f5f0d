"""Answers that only a refusal is right for: one maker per reason, over real trees."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from benchmarks.patching.model import Case
from benchmarks.patching.refuse import ambiguous, content, escapes, guarded, state

Maker = Callable[[Random], Case | None]

REFUSALS: dict[str, Maker] = {
    **ambiguous.MAKERS,
    **content.MAKERS,
    **state.MAKERS,
    **guarded.MAKERS,
}
ESCAPES: dict[str, Maker] = escapes.MAKERS
