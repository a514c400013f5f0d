"""What a strategy is, and which there are.

A strategy is pure: from what is known it decides what to ask an ideator for, or what to measure
again. It never sees the service or the ideator, so the same record gives the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from assay.domain.errors import InvalidInput
from assay.search.controls import BestOfN, Greedy, Random
from assay.search.evolution import Evolution
from assay.search.plan import Ask, Decision, Remeasure, Situation
from assay.search.thompson import Thompson

__all__ = [
    "Ask",
    "Decision",
    "Remeasure",
    "Situation",
    "Strategy",
    "open_strategy",
    "strategy_names",
]


class Strategy(Protocol):
    """Decides what to ask an ideator for, or what to measure again."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Every setting with its value, as kept in the search's record."""
        ...

    @property
    def needs_baseline(self) -> bool:
        """Whether epochs after the first wait for the baseline."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether an epoch may be asked for while the one before runs: it looks at no results."""
        ...

    @property
    def slots(self) -> int | None:
        """How many experiments an asynchronous strategy keeps under way.

        None: it works in epochs, and decides when all experiments of the one before have ended.
        """
        ...

    def plan(self, situation: Situation) -> Decision:
        """What to do now."""
        ...


_STRATEGIES: dict[str, Callable[[Mapping[str, Any]], Strategy]] = {
    "evolution": Evolution.from_config,
    "best-of-n": BestOfN.from_config,
    "random": Random.from_config,
    "greedy": Greedy.from_config,
    "thompson": Thompson.from_config,
}


def strategy_names() -> list[str]:
    """Names of the strategies there are."""
    return sorted(_STRATEGIES)


def open_strategy(name: str, config: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of that name with its settings.

    Raises:
        InvalidInput: there is no such strategy, or a setting is unknown or out of range.
    """
    if name not in _STRATEGIES:
        known = ", ".join(strategy_names())
        raise InvalidInput.field("/strategy", f"there is no strategy {name!r}; known: {known}")
    return _STRATEGIES[name](config or {})
