"""Read the settings of a strategy from a search's record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from assay.domain.errors import InvalidInput
from assay.domain.hashing import derive_seed
from assay.search.plan import Situation

S = TypeVar("S")


def from_config(kind: type[S], config: Mapping[str, Any]) -> S:
    """Return the strategy with these settings. Raises InvalidInput: one is unknown or wrong."""
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    for name in config:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidInput.field(f"/config/{name}", f"unknown setting; known: {listed}")
    return kind(**config)


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises InvalidInput: a setting is not a whole number from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput.field(
            f"/config/{name}", f"must be a whole number from {low} to {high}, not {value!r}"
        )


def question_seed(situation: Situation, operator: str) -> int:
    """Return the seed of a question: it follows from the search, the epoch and the operator."""
    return derive_seed(situation.seed, situation.epoch, operator)
