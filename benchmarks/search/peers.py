"""Other optimizers in the same worlds.

A peer runs as it was released, with the mutator in place of its model and a `Lab` in place of its
evaluator:

    class Mine:
        name = "mine"

        def run(self, world: World, budget: float, seed: int) -> Outcome:
            lab = Lab(Draw(world, seed), budget)
            mutator = Mutator(world.factors, seed)
            …                                   # lab.measure(point) until it raises OverBudget
            return lab.finish(best_points)      # confirms three of them, from the same budget
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from benchmarks.search.lab import Outcome
from benchmarks.search.worlds import World


class Peer(Protocol):
    """An optimizer that is not Assay's."""

    @property
    def name(self) -> str:
        """How tables call it."""
        ...

    def run(self, world: World, budget: float, seed: int) -> Outcome:
        """Search in a world with the luck of a seed, for so many core-seconds."""
        ...


def open_peer(path: str) -> Peer:
    """Return the peer `module:attribute`, an object or a class that takes no arguments.

    Raises:
        ValueError: there is none.
    """
    module, _, attribute = path.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--peer {path}: {error}; write it as module:attribute") from error
    return cast(Peer, found() if isinstance(found, type) else found)
