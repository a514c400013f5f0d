"""Other optimizers in the same worlds.

A peer runs as it was released, with the mutator in place of its model and a `Lab` in place of its
workers:

    class Mine:
        name = "mine"

        def run(self, world: World, budget: float, seed: int) -> Outcome:
            lab = Lab(Draw(world, seed), budget)
            mutator = Mutator(world.factors, seed)
            …                                   # lab.measure(point) until it raises OverBudget
            return lab.finish(best_points)      # confirms three of them, from the same budget

OpenEvolve, GEPA and SkyDiscover use `assay.adapters` and the parts that they share: `program.py`
writes a point as a program, `service.py` measures programs in place of Assay's service, `model.py`
answers prompts with the mutator, and `alone.py` gives each draw a process.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from benchmarks.search.lab import Outcome
from benchmarks.search.peers.alone import IsolatedPeer
from benchmarks.search.worlds import World

_HERE = "benchmarks.search.peers"
#: Peers that can be named without their path.
KNOWN = {
    "openevolve": IsolatedPeer("openevolve", f"{_HERE}.openevolve:search"),
    "gepa": IsolatedPeer("gepa", f"{_HERE}.gepa:search"),
    "skydiscover-topk": IsolatedPeer("skydiscover topk", f"{_HERE}.skydiscover:topk"),
    "skydiscover-adaevolve": IsolatedPeer(
        "skydiscover adaevolve", f"{_HERE}.skydiscover:adaevolve"
    ),
}


class Peer(Protocol):
    """An optimizer that is not Assay's."""

    @property
    def name(self) -> str:
        """How tables call it."""
        ...

    def run(self, world: World, budget: float, seed: int) -> Outcome:
        """Search in a world with the luck of a seed, for so many core-seconds."""
        ...


def open_peer(name: str) -> Peer:
    """Return a known peer, or `module:attribute`: an object, or a class without arguments.

    Raises:
        ValueError: there is none.
    """
    if name in KNOWN:
        return KNOWN[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        known = ", ".join(KNOWN)
        raise ValueError(f"--peer {name}: {error}; give {known} or module:attribute") from error
    return cast(Peer, found() if isinstance(found, type) else found)
