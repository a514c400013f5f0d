"""What strategies have in common: settings from a search's record, and seeds of questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Self

from assay.domain.errors import InvalidInput
from assay.domain.hashing import derive_seed
from assay.search.plan import Situation


class Configured:
    """Base of strategies, which are dataclasses: each field is a setting.

    As it stands, a strategy works in epochs, one after the other, and looks at results. The
    members are described in `assay.search.strategy.Strategy`.
    """

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the strategy with these settings.

        Raises:
            InvalidInput: a setting is unknown or out of range.
        """
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        for name in config:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise InvalidInput.field(f"/config/{name}", f"unknown setting; known: {listed}")
        return cls(**config)

    @property
    def config(self) -> Mapping[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @property
    def needs_baseline(self) -> bool:
        return True

    @property
    def overlaps(self) -> bool:
        return False

    @property
    def slots(self) -> int | None:
        return None


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises InvalidInput: a setting is not a whole number from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput.field(
            f"/config/{name}", f"must be a whole number from {low} to {high}, not {value!r}"
        )


def question_seed(situation: Situation, operator: str) -> int:
    """Return the seed of a question: it follows from the search, the epoch and the operator."""
    return derive_seed(situation.seed, situation.epoch, operator)
