"""Which queued measurement goes to which worker: a pure function of state.

Queue order is priority, age of the batch, longest budget first within a batch. At equal priority
sizes take turns: the size that runs least goes first. A measurement takes the worker it fills
most. One that fits nowhere now holds back the worker that can hold it earliest, and others go
there only if they have ended by then, or take nothing that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TypeAlias

from assay.domain.placement.host import Hold, Host, Need, earliest, has_room, need_of
from assay.domain.placement.types import (
    Demand,
    Placement,
    Plan,
    Policy,
    Reservation,
    Size,
    Supply,
)

Order: TypeAlias = tuple[float, float, float, float, str]
_Rank: TypeAlias = tuple[float, str, Supply]


def queue_order(demand: Demand) -> Order:
    """Sort key: priority, older batch, longer budget, older, id."""
    return (
        -demand.priority,
        demand.batch_at,
        -demand.budget_seconds,
        demand.queued_at,
        demand.measurement,
    )


def place(
    demands: Iterable[Demand],
    supplies: Sequence[Supply],
    now: float,
    policy: Policy | None = None,
    served: Mapping[Size, float] | None = None,
) -> list[Placement]:
    """Match queued measurements to free resources, first decision first.

    `demands` need only hold the first few of each kind, in queue order. `served` says when a
    measurement of a size was last placed, as far as anybody remembers; it decides ties.
    """
    return list(plan(demands, supplies, now, policy, served).placements)


def plan(
    demands: Iterable[Demand],
    supplies: Sequence[Supply],
    now: float,
    policy: Policy | None = None,
    served: Mapping[Size, float] | None = None,
) -> Plan:
    """`place`, with the reservations that it respected.

    Reservations are made only where somebody else could take what they hold back.
    """
    policy = policy or Policy()
    queues = _queues(demands)
    # Nearly always nearly everything is busy: look closer only at workers with something free.
    fewest = min((queue.need.gpus for queue in queues), default=0)
    open_ = [s for s in supplies if s.gpus >= fewest and s.starting < policy.starting_per_worker]
    if not any(has_room(queue.need, supply) for queue in queues for supply in open_):
        return Plan()
    hosts = {supply.worker: Host(supply, now) for supply in open_}
    making = _Making(queues, supplies, hosts, now, policy, served or {})
    for priority in sorted({queue.priority for queue in queues}, reverse=True):
        making.serve([queue for queue in queues if queue.priority == priority])
    return Plan(tuple(making.placements), tuple(making.reservations))


class _Queue:
    """Waiting measurements of one priority and kind, first first."""

    __slots__ = ("_next", "blocked", "demands", "need", "order", "priority")

    def __init__(self, demands: list[Demand]) -> None:
        self.demands = sorted(demands, key=queue_order)
        self.priority = self.demands[0].priority
        self.need = need_of(self.demands[0])
        self.blocked = False
        self._next = 0
        self.order = queue_order(self.demands[0])

    @property
    def head(self) -> Demand:
        return self.demands[self._next]

    def pop(self) -> bool:
        """Go on to the next; false at the end."""
        self._next += 1
        if self._next == len(self.demands):
            return False
        self.order = queue_order(self.demands[self._next])
        return True


def _queues(demands: Iterable[Demand]) -> list[_Queue]:
    kinds: dict[tuple[object, ...], list[Demand]] = {}
    for d in demands:
        key = (
            d.priority,
            d.gpus,
            d.cpus,
            d.memory_bytes,
            d.bound_seconds,
            d.needs_isolation,
            d.hardware_class,
            d.setting,
        )
        kinds.setdefault(key, []).append(d)
    return [_Queue(each) for each in kinds.values()]


class _Turns:
    """Waiting measurements of one size, and what that size has already.

    `sizes` is how many sizes wait for the same hardware, `largest` whether this is the largest.
    """

    def __init__(self, has: int, total: int, served_at: float) -> None:
        self.has = has
        self._total = max(1, total)
        self._served_at = served_at
        self.reserved = 0
        self.held_back = 0
        self.sizes = 1
        self.largest = True
        self.queues: list[_Queue] = []

    @property
    def first(self) -> _Queue:
        return min(self.queues, key=attrgetter("order"))

    def rank(self, now: float, patience: float) -> tuple[bool, float, float, Order]:
        """Who runs least goes first, then who was served longest ago, then queue order.

        Smaller ones let the largest go first for a while: they use what larger ones leave, and
        break up a whole host together rather than each its own.
        """
        first = self.first
        defers = not self.largest and now < first.head.queued_at + patience * first.need.seconds
        share = (self.has + self.held_back) / self._total
        return (defers, share, self._served_at, first.order)

    @property
    def has_share(self) -> bool:
        """Whether this size has what it would have if all that wait had equally much."""
        return (self.has + self.held_back) * self.sizes >= self._total

    def limit(self, demand: Demand, at: float, grain: float) -> float:
        """How late a reservation for `at` may become."""
        if grain <= 0 or self._served_at <= demand.queued_at or math.isinf(at):
            return at
        return math.ceil(at / grain) * grain


class _Making:
    """A plan while it is made."""

    def __init__(
        self,
        queues: list[_Queue],
        supplies: Sequence[Supply],
        hosts: dict[str, Host],
        now: float,
        policy: Policy,
        served: Mapping[Size, float],
    ) -> None:
        self.placements: list[Placement] = []
        self.reservations: list[Reservation] = []
        self._policy = policy
        self._served = served
        self._now = now
        self._supplies = supplies
        self._hosts = hosts
        self._open = list(hosts.values())
        self._waiting = list(queues)
        self._classes: dict[str, tuple[dict[int, int], tuple[int, int]]] = {}
        self._rankings: dict[Need, list[_Rank]] = {}

    @property
    def _full(self) -> bool:
        return len(self.placements) >= self._policy.placements or not self._open

    def serve(self, queues: list[_Queue]) -> None:
        """Place or reserve for waiting measurements of one priority, by turns."""
        turns = self._turns(queues)
        while turns and not self._full:
            turn = self._next(turns)
            queue = turn.first
            host = None if queue.blocked else self._choose(queue.need, queue.head)
            if host is not None:
                self._start(turn, queue, host)
                more = queue.pop()
            else:
                queue.blocked = True
                more = self._reserve(turn, queue) and queue.pop()
            if not more:
                turn.queues.remove(queue)
                self._waiting.remove(queue)
                if not turn.queues:
                    turns.remove(turn)

    def _next(self, turns: list[_Turns]) -> _Turns:
        if len(turns) == 1:
            return turns[0]
        patience = self._policy.patience
        return min(turns, key=lambda turn: turn.rank(self._now, patience))

    def _turns(self, queues: list[_Queue]) -> list[_Turns]:
        """The queues by hardware class and size."""
        turns: dict[Size, _Turns] = {}
        for queue in queues:
            size = queue.head.size
            if size not in turns:
                held, total = self._running(size[0])
                has = held.get(size[1], 0)
                turns[size] = _Turns(has, total[size[1] > 0], self._served.get(size, -math.inf))
            turns[size].queues.append(queue)
        for (where, amount), turn in turns.items():
            sizes = [other for peer, other in turns if peer == where]
            turn.sizes = len(sizes)
            # Sizes without a GPU are negative: the largest of them is the least.
            turn.largest = amount == (max(sizes) if max(sizes) > 0 else min(sizes))
        return list(turns.values())

    def _running(self, hardware_class: str) -> tuple[dict[int, int], tuple[int, int]]:
        """What the sizes have on a hardware class, placed here too; its CPUs and GPUs."""
        if hardware_class not in self._classes:
            held: dict[int, int] = {}
            cpus = gpus = 0
            for supply in self._supplies:
                if supply.hardware_class == hardware_class:
                    cpus += supply.total[0]
                    gpus += supply.total[1]
                    for size, amount in supply.held.items():
                        held[size] = held.get(size, 0) + amount
            self._classes[hardware_class] = (held, (cpus, gpus))
        return self._classes[hardware_class]

    def _choose(self, need: Need, demand: Demand) -> Host | None:
        """The worker that the measurement fills most, and keeps busy least longer than it is.

        CPUs beside GPUs are the last to be taken by what needs no GPU.
        """
        best: Host | None = None
        best_key: tuple[bool, int, int] = (True, 0, 0)
        for host in self._open:
            if host.gpus < need.gpus:
                continue
            key = (
                host.supply.worker in demand.avoid_workers,
                host.extension(need) if need.gpus else host.supply.total[1],
                host.gpus,
            )
            if (best is not None and key > best_key) or not host.admits(need):
                continue
            if best is None or key < best_key or _closer(host, best):
                best, best_key = host, key
        return best

    def _start(self, turn: _Turns, queue: _Queue, host: Host) -> None:
        host.start(queue.need)
        where, size = queue.head.size
        held, _ = self._running(where)
        held[size] = held.get(size, 0) + abs(size)
        turn.has += abs(size)
        self.placements.append(Placement(queue.head.measurement, host.supply.worker))
        if host.starting >= self._policy.starting_per_worker:
            self._open.remove(host)

    def _reserve(self, turn: _Turns, queue: _Queue) -> bool:
        """Hold back the worker that can hold the head of a queue earliest.

        A size may do so against others until it has its share; then for its first alone, against
        its own size and lower priorities.
        """
        limit, rivals = self._policy.reservations, self._waiting
        if turn.has_share:
            limit = 1
            rivals = [q for q in rivals if q in turn.queues or q.priority < queue.priority]
        if turn.reserved >= limit or not self._any_room(rivals):
            return False
        found = self._earliest(queue.need, queue.head)
        if found is None:
            return False
        at, host = found
        by = turn.limit(queue.head, at, self._policy.grain_seconds)
        host.holds.append(Hold(queue.need, at, by))
        turn.reserved += 1
        turn.held_back += abs(queue.head.size[1])
        self.reservations.append(Reservation(queue.head.measurement, host.supply.worker, by))
        return True

    def _earliest(self, need: Need, demand: Demand) -> tuple[float, Host] | None:
        """The worker that can hold the measurement earliest, and when that is at the latest."""
        ranking = self._rankings.get(need)
        if ranking is None:
            ranking = self._rankings[need] = self._ranking(need)
        for avoided in (False, True):
            found = self._first(need, ranking, demand.avoid_workers, avoided)
            if found is not None:
                return found
        return None

    def _first(
        self, need: Need, ranking: list[_Rank], avoid: frozenset[str], avoided: bool
    ) -> tuple[float, Host] | None:
        """The first of a ranking that is, or is not, to be avoided.

        Decisions only make a worker later, so its rank is looked at again when its turn comes.
        """
        passed: list[_Rank] = []
        found: tuple[float, Host] | None = None
        while ranking and found is None:
            at, worker, supply = heappop(ranking)
            host = self._hosts.get(worker)
            again = host.earliest(need) if host else at
            if again is None:
                continue
            if again > at:
                heappush(ranking, (again, worker, supply))
                continue
            passed.append((at, worker, supply))
            if (worker in avoid) == avoided:
                found = at, self._hosts.setdefault(worker, host or Host(supply, self._now))
        for rank in passed:
            heappush(ranking, rank)
        return found

    def _ranking(self, need: Need) -> list[_Rank]:
        """Workers by when they can hold a kind, as a heap."""
        ranking = []
        for supply in self._supplies:
            at = earliest(need, supply, self._now)
            if at is not None:
                ranking.append((at, supply.worker, supply))
        heapify(ranking)
        return ranking

    def _any_room(self, queues: list[_Queue]) -> bool:
        """Whether any of them could take what a reservation would hold back."""
        return any(
            not queue.blocked and any(host.has_room(queue.need) for host in self._open)
            for queue in queues
        )


def _closer(host: Host, best: Host) -> bool:
    """Which of two workers with as many free GPUs is filled better."""
    return (host.cpus, host.supply.worker) < (best.cpus, best.supply.worker)
