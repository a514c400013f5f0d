"""Which queued measurement goes to which worker: a pure function of state.

Sizes take turns: the size that runs least goes first. Within a size, the owner that runs least
for its weight goes first. Of an owner, the highest priority goes first, then the batch that runs
least; of a batch, what has the longest budget. A measurement takes the worker it fills most. One
that fits nowhere now holds back the worker that can hold it earliest, and others go there only if
they have ended by then, or take nothing that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from assay.domain.placement.host import Hold, Host, Need, earliest, has_room, need_of
from assay.domain.placement.types import (
    LEAST_OF_BATCHES,
    Batch,
    Demand,
    Placement,
    Plan,
    Policy,
    Reservation,
    Size,
    Supply,
    size_of,
)

_Key: TypeAlias = tuple[float, float, float, float, str]
_Turn: TypeAlias = tuple[float, int, int, _Key]
_Rank: TypeAlias = tuple[float, str, Supply]


def queue_order(demand: Demand) -> _Key:
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
    queues = queues_of(demands)
    # Nearly always nearly everything is busy: look closer only at workers with something free.
    fewest = min((queue.need.gpus for queue in queues), default=0)
    open_ = [s for s in supplies if s.gpus >= fewest and s.starting < policy.starting_per_worker]
    if not any(has_room(queue.need, supply) for queue in queues for supply in open_):
        return Plan()
    hosts = {supply.worker: Host(supply, now) for supply in open_}
    making = _Making(queues, supplies, hosts, now, policy, served or {})
    making.serve([queue for queue in queues if not queue.is_idle])
    making.serve([queue for queue in queues if queue.is_idle])
    return Plan(tuple(making.placements), tuple(making.reservations))


class Queue:
    """Waiting measurements of one batch, priority and kind, first first."""

    __slots__ = ("_next", "batch", "demands", "is_idle", "need", "order", "owner", "priority")

    def __init__(self, demands: list[Demand]) -> None:
        self.demands = sorted(demands, key=queue_order)
        self.priority = self.demands[0].priority
        self.need = need_of(self.demands[0])
        self.batch = self.demands[0].batch
        self.owner = self.demands[0].owner
        self.is_idle = self.priority < LEAST_OF_BATCHES
        self._next = 0
        self.order = queue_order(self.demands[0])

    @property
    def head(self) -> Demand:
        return self.demands[self._next]

    def precedes(self, other: Queue) -> bool:
        """Whether all of it comes before the other's, whatever runs."""
        if self.owner == other.owner:
            return other.priority < self.priority
        return other.is_idle and not self.is_idle

    def pop(self) -> bool:
        """Go on to the next; false at the end."""
        self._next += 1
        if self._next == len(self.demands):
            return False
        self.order = queue_order(self.demands[self._next])
        return True


def _levels(queues: Iterable[Queue]) -> dict[str, list[list[Queue]]]:
    """By owner, the queues of each priority, the highest first."""
    levels: dict[str, dict[int, list[Queue]]] = {}
    for queue in queues:
        levels.setdefault(queue.owner, {}).setdefault(queue.priority, []).append(queue)
    return {
        owner: [found[priority] for priority in sorted(found, reverse=True)]
        for owner, found in levels.items()
    }


def queues_of(demands: Iterable[Demand]) -> list[Queue]:
    """Waiting measurements by batch, priority and kind."""
    kinds: dict[tuple[object, ...], list[Demand]] = {}
    for d in demands:
        key = (
            d.batch,
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
    return [Queue(each) for each in kinds.values()]


class _Running:
    """What runs on the workers of a hardware class, what is placed there included."""

    def __init__(self, supplies: Iterable[Supply], policy: Policy) -> None:
        self._policy = policy
        self._sizes: dict[int, int] = {}
        self._batches: dict[Batch, int] = {}
        self._owners: dict[str, int] = {}
        self.cpus = self.gpus = 0
        for supply in supplies:
            self.cpus += supply.total[0]
            self.gpus += supply.total[1]
            for size, amount in supply.held.items():
                self._sizes[size] = self._sizes.get(size, 0) + amount
            for batch, amount in supply.held_by.items():
                self._count(batch, amount)

    def _count(self, batch: Batch, amount: int) -> None:
        owner = batch[0]
        self._batches[batch] = self._batches.get(batch, 0) + amount
        self._owners[owner] = self._owners.get(owner, 0) + amount

    def add(self, demand: Demand) -> None:
        """Count a measurement that was placed."""
        size = size_of(demand)
        self._sizes[size] = self._sizes.get(size, 0) + abs(size)
        self._count(demand.batch, abs(size))

    def of_size(self, size: int) -> int:
        """How much of that size runs."""
        return self._sizes.get(size, 0)

    def turn(self, queue: Queue) -> _Turn:
        """Sort key of what waits for the same size: who runs least goes first."""
        # Divided once: parts that are added up in another order give another sum.
        return (
            self._owners.get(queue.owner, 0) / self._policy.weight(queue.owner),
            -queue.priority,
            self._batches.get(queue.batch, 0),
            queue.order,
        )


class _Turns:
    """Waiting measurements of one size, and what that size has already.

    `sizes` is how many sizes wait for the same hardware, `largest` whether this is the largest.
    """

    def __init__(self, running: _Running, size: int, served_at: float) -> None:
        self.has = running.of_size(size)
        self._running = running
        self._total = max(1, running.gpus if size > 0 else running.cpus)
        self._served_at = served_at
        self.reserved = 0
        self.held_back = 0
        self.sizes = 1
        self.largest = True
        self.queues: list[Queue] = []

    @property
    def first(self) -> Queue:
        return min(self.queues, key=self._running.turn)

    def rank(self, now: float, patience: float) -> tuple[bool, float, float, _Key]:
        """Who runs least goes first, then who was served longest ago, then queue order.

        Smaller ones let the largest go first for a while: they use what larger ones leave, and
        break up a whole host together rather than each its own.
        """
        first = self.first
        # The oldest of them decides, not the next: that may be of a new batch, whose turn it is.
        patient = all(now < q.head.queued_at + patience * q.need.seconds for q in self.queues)
        defers = not self.largest and patient
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


class AtWork:
    """What runs on the workers, what was placed included, by hardware class."""

    def __init__(self, supplies: Sequence[Supply], policy: Policy) -> None:
        self._supplies = supplies
        self._policy = policy
        self._classes: dict[str, _Running] = {}

    def on(self, hardware_class: str) -> _Running:
        """What runs on a hardware class."""
        if hardware_class not in self._classes:
            there = [s for s in self._supplies if s.hardware_class == hardware_class]
            self._classes[hardware_class] = _Running(there, self._policy)
        return self._classes[hardware_class]

    def add(self, demand: Demand) -> None:
        """Count a measurement that was placed."""
        self.on(demand.hardware_class).add(demand)


class Order:
    """Whose turn it is, among queues.

    A priority counts among the measurements of its owner: lower ones wait until none of the higher
    ones is left.
    """

    def __init__(
        self,
        queues: list[Queue],
        running: AtWork,
        now: float,
        policy: Policy,
        served: Mapping[Size, float],
    ) -> None:
        self._running = running
        self._now = now
        self._patience = policy.patience
        self._served = served
        self._levels = _levels(queues)
        self._turns: list[_Turns] = []
        self._add([queue for each in self._levels.values() for queue in each[0]])

    def __bool__(self) -> bool:
        return bool(self._turns)

    def next(self) -> tuple[_Turns, Queue]:
        """The queue whose head comes next, and the size that it takes its turn with."""
        turns = self._turns
        turn = (
            turns[0]
            if len(turns) == 1
            else min(turns, key=lambda turn: turn.rank(self._now, self._patience))
        )
        return turn, turn.first

    def count(self, turn: _Turns, demand: Demand) -> None:
        """Count a measurement of this turn as placed."""
        self._running.add(demand)
        turn.has += abs(demand.size[1])

    def drop(self, turn: _Turns, queue: Queue) -> None:
        """Leave out a queue: it is empty, or nothing more of it can be placed."""
        turn.queues.remove(queue)
        if not turn.queues:
            self._turns.remove(turn)
        own = self._levels[queue.owner]
        own[0].remove(queue)
        if not own[0] and len(own) > 1:
            own.pop(0)
            self._add(own[0])

    def _add(self, queues: list[Queue]) -> None:
        """Let queues take turns with the others of their hardware class and size."""
        by_size = {turn.first.head.size: turn for turn in self._turns}
        for queue in queues:
            size = queue.head.size
            if size not in by_size:
                served = self._served.get(size, -math.inf)
                by_size[size] = _Turns(self._running.on(size[0]), size[1], served)
            by_size[size].queues.append(queue)
        for (where, amount), turn in by_size.items():
            sizes = [other for peer, other in by_size if peer == where]
            turn.sizes = len(sizes)
            # Sizes without a GPU are negative: the largest of them is the least.
            turn.largest = amount == (max(sizes) if max(sizes) > 0 else min(sizes))
        self._turns = list(by_size.values())


class _Making:
    """A plan while it is made."""

    def __init__(
        self,
        queues: list[Queue],
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
        self._running = AtWork(supplies, policy)
        self._blocked: set[Need] = set()
        self._rankings: dict[Need, list[_Rank]] = {}

    @property
    def _full(self) -> bool:
        return len(self.placements) >= self._policy.placements or not self._open

    def serve(self, queues: list[Queue]) -> None:
        """Place or reserve for waiting measurements, by turns."""
        order = Order(queues, self._running, self._now, self._policy, self._served)
        while order and not self._full:
            turn, queue = order.next()
            blocked = queue.need in self._blocked
            host = None if blocked else self._choose(queue.need, queue.head)
            if host is not None:
                self._start(queue, host)
                order.count(turn, queue.head)
                more = queue.pop()
            else:
                self._blocked.add(queue.need)  # nothing that is decided makes more room
                more = self._reserve(turn, queue) and queue.pop()
            if not more:
                order.drop(turn, queue)
                self._waiting.remove(queue)

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

    def _start(self, queue: Queue, host: Host) -> None:
        host.start(queue.need)
        self.placements.append(Placement(queue.head.measurement, host.supply.worker))
        if host.starting >= self._policy.starting_per_worker:
            self._open.remove(host)

    def _reserve(self, turn: _Turns, queue: Queue) -> bool:
        """Hold back the worker that can hold the head of a queue earliest.

        A size may do so against others until it has its share; then for its first alone, against
        its own size and lower priorities.
        """
        limit, rivals = self._policy.reservations, self._waiting
        if turn.has_share:
            limit = 1
            rivals = [q for q in rivals if q in turn.queues or queue.precedes(q)]
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

    def _any_room(self, queues: list[Queue]) -> bool:
        """Whether any of them could take what a reservation would hold back."""
        needs = {queue.need for queue in queues} - self._blocked
        return any(host.has_room(need) for need in needs for host in self._open)


def _closer(host: Host, best: Host) -> bool:
    """Which of two workers with as many free GPUs is filled better."""
    return (host.cpus, host.supply.worker) < (best.cpus, best.supply.worker)
