"""A worker while a plan is made: what is free, what ends when, what is held back."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from assay.domain.placement.types import Demand, Occupancy, Supply, when_free


class Need(NamedTuple):
    """What measurements of one kind take, where they may run, and for how long at most."""

    hardware_class: str
    gpus: int
    cpus: int
    memory_bytes: int
    isolation: bool
    seconds: float
    setting: str = ""


def need_of(demand: Demand) -> Need:
    """The kind of a measurement."""
    return Need(
        demand.hardware_class,
        demand.gpus,
        demand.cpus,
        demand.memory_bytes,
        demand.needs_isolation,
        demand.bound_seconds if demand.bound_seconds > 0 else math.inf,
        demand.setting,
    )


@dataclass(frozen=True)
class Hold:
    """A reservation on a host: possible from `at`, and not to be later than `limit`."""

    need: Need
    at: float
    limit: float


def suits(need: Need, supply: Supply) -> bool:
    """Whether the kind may run on this worker at all, whatever is free."""
    return (
        need.hardware_class == supply.hardware_class
        and (supply.isolated or not need.isolation)
        and (not need.setting or need.setting in supply.settings)
    )


def has_room(need: Need, supply: Supply) -> bool:
    """Whether what is free now suffices."""
    return (
        need.gpus <= supply.gpus
        and need.cpus <= supply.cpus
        and need.memory_bytes <= supply.memory_bytes
        and suits(need, supply)
    )


def earliest(need: Need, supply: Supply, now: float) -> float | None:
    """`Host.earliest` for a worker that nothing was decided about."""
    if not suits(need, supply):
        return None
    if supply.ends and supply.ends[0].until < now:
        return Host(supply, now).earliest(need)
    at = supply.free_at(need.gpus, need.cpus, need.memory_bytes)
    return now if at == 0.0 else at


class Host:
    """What is left of a supply as decisions are made."""

    __slots__ = ("_ends", "cpus", "gpus", "holds", "memory_bytes", "now", "starting", "supply")

    def __init__(self, supply: Supply, now: float) -> None:
        self.supply = supply
        self.now = now
        self.cpus = supply.cpus
        self.gpus = supply.gpus
        self.memory_bytes = supply.memory_bytes
        self.starting = supply.starting
        self.holds: list[Hold] = []
        self._ends: list[Occupancy] | tuple[Occupancy, ...] = _expected(supply.ends, now)

    def has_room(self, need: Need) -> bool:
        """Whether what is free suffices, reserved or not."""
        return (
            need.gpus <= self.gpus
            and need.cpus <= self.cpus
            and need.memory_bytes <= self.memory_bytes
            and suits(need, self.supply)
        )

    def admits(self, need: Need) -> bool:
        """Whether the kind can start here now without making a reservation late."""
        if not self.has_room(need):
            return False
        if not self.holds:
            return True
        end = self.now + need.seconds
        return all(end <= hold.limit or self._spares(need, hold) for hold in self.holds)

    def _spares(self, need: Need, hold: Hold) -> bool:
        """Whether the kind may still be running when the reserved measurement starts."""
        taken = [need, *(other.need for other in self.holds if other.at <= hold.at)]
        free_at = when_free(self._lack(taken), self._ends, self.now)
        return free_at is not None and free_at <= hold.at

    def earliest(self, need: Need) -> float | None:
        """When the kind can start here at the latest; None if it never can."""
        if not suits(need, self.supply):
            return None
        return when_free(
            self._lack([need, *(hold.need for hold in self.holds)]), self._ends, self.now
        )

    def _lack(self, taken: Iterable[Need]) -> tuple[int, int, int]:
        """GPUs, CPUs and memory that all these take beyond what is free now; may be negative."""
        gpus, cpus, memory = -self.gpus, -self.cpus, -self.memory_bytes
        for need in taken:
            gpus += need.gpus
            cpus += need.cpus
            memory += need.memory_bytes
        return gpus, cpus, memory

    def start(self, need: Need) -> None:
        """Take what the kind needs, from now until its bound."""
        self.gpus -= need.gpus
        self.cpus -= need.cpus
        self.memory_bytes -= need.memory_bytes
        self.starting += 1
        until = self.now + need.seconds
        ends = list(self._ends)
        insort(
            ends,
            Occupancy(need.cpus, need.gpus, need.memory_bytes, until),
            key=attrgetter("until"),
        )
        self._ends = ends

    def extension(self, need: Need) -> int:
        """By how much the kind, started now, would outlast all that runs here, in eighths.

        What ends together leaves a whole host.
        """
        if not self._ends:
            return 8
        beyond = self.now + need.seconds - self._ends[-1].until
        if math.isinf(need.seconds):
            return 0 if math.isnan(beyond) else 8
        return max(0, min(8, int(8 * beyond / need.seconds)))


def _expected(ends: tuple[Occupancy, ...], now: float) -> tuple[Occupancy, ...]:
    """When what runs is expected to end, for what is past its bound too.

    Something keeps it alive; the longer it has been overdue, the longer it may go on. So nobody
    waits for ever for a host that never lets go.
    """
    if not ends or ends[0].until >= now:
        return ends
    late = [
        each
        if each.until >= now
        else Occupancy(each.cpus, each.gpus, each.memory_bytes, 2 * now - each.until)
        for each in ends
    ]
    return tuple(sorted(late, key=attrgetter("until")))
