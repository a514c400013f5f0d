"""What will be placed next, and what it waits for.

The API says it to people. The scheduler decides by `plan`; here the same plan is made, and what it
leaves is put in the order in which `plan` would go on if room appeared piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from assay.domain.placement.host import Need, earliest, has_room, need_of
from assay.domain.placement.policy import AtWork, Order, plan, queues_of
from assay.domain.placement.types import Demand, Occupancy, Plan, Policy, Size, Supply


class Reason(StrEnum):
    """Why a measurement has not started."""

    #: It is placed by this decision.
    STARTS = "starts"
    #: As many were placed as one decision may place; the next one follows at once.
    NEXT_DECISION = "next_decision"
    #: What was free went to measurements whose turn came before.
    TURN = "turn"
    #: Nothing that is free suffices; a worker is held back for it.
    RESERVED = "reserved"
    #: What is free is held back for a measurement that was first.
    HELD_BACK = "held_back"
    #: The workers with room start as many attempts as they may.
    STARTING = "starting"
    #: Nothing that is free suffices, until something ends.
    BUSY = "busy"
    #: No worker that gets work could ever hold it.
    NO_WORKER = "no_worker"


@dataclass(frozen=True)
class Outlook:
    """A measurement that comes next: `worker` is where it starts or what is held back for it, `at`
    when it can start at the latest if nothing goes before it, as far as that is known."""

    demand: Demand
    reason: Reason
    worker: str | None = None
    at: float | None = None


def outlook(
    demands: Iterable[Demand],
    supplies: Sequence[Supply],
    now: float,
    policy: Policy,
    served: Mapping[Size, float] | None = None,
    limit: int = 20,
) -> list[Outlook]:
    """Return what is placed now, and then what comes next with the reason why it waits: together
    `limit` at most.

    Arguments are those of `plan`. The order of what waits is that of its turns: each counts as
    placed for those behind it, and nothing that runs ends meanwhile.
    """
    demands = list(demands)
    served = served or {}
    made = plan(demands, supplies, now, policy, served)
    placed = {each.measurement: each.worker for each in made.placements}
    by_id = {demand.measurement: demand for demand in demands}
    running = AtWork(supplies, policy)
    for measurement in placed:
        running.add(by_id[measurement])
    found = [Outlook(by_id[m], Reason.STARTS, worker, now) for m, worker in placed.items()]
    rest = queues_of(demand for demand in demands if demand.measurement not in placed)
    why = _Reasons(made, by_id, supplies, now, policy)
    for queues in (
        [queue for queue in rest if not queue.is_idle],
        [queue for queue in rest if queue.is_idle],
    ):
        for demand in _by_turns(Order(queues, running, now, policy, served)):
            if len(found) >= limit:
                return found[:limit]
            found.append(why.of(demand))
    return found[:limit]


def _by_turns(order: Order) -> Iterator[Demand]:
    while order:
        turn, queue = order.next()
        demand = queue.head
        order.count(turn, demand)
        if not queue.pop():
            order.drop(turn, queue)
        yield demand


class _Reasons:
    """Why a plan did not place what it left."""

    def __init__(
        self,
        made: Plan,
        by_id: Mapping[str, Demand],
        supplies: Sequence[Supply],
        now: float,
        policy: Policy,
    ) -> None:
        self._reserved = {each.measurement: each for each in made.reservations}
        self._is_full = len(made.placements) >= policy.placements
        self._now = now
        self._before = supplies
        self._after = _with_placed(made, by_id, supplies, now)
        self._most = policy.starting_per_worker
        self._known: dict[Need, tuple[Reason, float | None]] = {}

    def of(self, demand: Demand) -> Outlook:
        held = self._reserved.get(demand.measurement)
        if held is not None:
            return Outlook(demand, Reason.RESERVED, held.worker, held.at)
        need = need_of(demand)
        if need not in self._known:
            self._known[need] = self._of_kind(need)
        reason, at = self._known[need]
        return Outlook(demand, reason, at=at)

    def _of_kind(self, need: Need) -> tuple[Reason, float | None]:
        times = [earliest(need, supply, self._now) for supply in self._after]
        at = min((time for time in times if time is not None), default=None)
        if at is None:
            return Reason.NO_WORKER, None
        if self._fits(need, self._after):
            return (Reason.NEXT_DECISION if self._is_full else Reason.HELD_BACK), None
        if self._fits(need, self._before):
            return Reason.TURN, at
        if any(has_room(need, supply) for supply in self._after):
            return Reason.STARTING, None
        return Reason.BUSY, at

    def _fits(self, need: Need, supplies: Sequence[Supply]) -> bool:
        return any(has_room(need, supply) and supply.starting < self._most for supply in supplies)


def _with_placed(
    made: Plan, by_id: Mapping[str, Demand], supplies: Sequence[Supply], now: float
) -> list[Supply]:
    """The workers as they are once the placements of a plan have started."""
    after = {supply.worker: supply for supply in supplies}
    for each in made.placements:
        supply, demand = after[each.worker], by_id[each.measurement]
        need = need_of(demand)
        held = Occupancy(
            *(demand.cpus, demand.gpus, demand.memory_bytes, now + need.seconds),
            owner=demand.owner,
            batch_at=demand.batch_at,
        )
        after[each.worker] = replace(
            supply,
            cpus=supply.cpus - demand.cpus,
            gpus=supply.gpus - demand.gpus,
            memory_bytes=supply.memory_bytes - demand.memory_bytes,
            starting=supply.starting + 1,
            running=(*supply.running, held),
        )
    return list(after.values())
