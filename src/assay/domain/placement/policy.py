"""Which queued measurement goes to which worker: a pure function of state.

Order: priority, longest budget first within a batch, age. Each worker offers free CPU and GPU
slots; a measurement goes to the fitting worker it fills most (best fit) or waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from assay.domain.placement.types import Demand, Placement, Supply


def _fits(demand: Demand, supply: Supply) -> bool:
    return (
        demand.hardware_class == supply.hardware_class
        and demand.cpus <= supply.cpus
        and demand.gpus <= supply.gpus
        and demand.memory_bytes <= supply.memory_bytes
        and (supply.isolated or not demand.needs_isolation)
    )


def queue_order(demand: Demand) -> tuple[float, float, float, str]:
    """Sort key: higher priority, then longer budget, then older, then id."""
    return (-demand.priority, -demand.budget_seconds, demand.queued_at, demand.measurement)


def place(demands: Sequence[Demand], supplies: Sequence[Supply]) -> list[Placement]:
    """Match queued measurements to free resources.

    A worker in `avoid_workers` (it lost this measurement before) is used only if no other fits.
    """
    free = {s.worker: s for s in supplies}
    placements: list[Placement] = []
    for demand in sorted(demands, key=queue_order):
        fitting = [s for s in free.values() if _fits(demand, s)]
        if not fitting:
            continue
        chosen = min(
            fitting, key=lambda s: (s.worker in demand.avoid_workers, s.gpus, s.cpus, s.worker)
        )
        placements.append(Placement(demand.measurement, chosen.worker))
        free[chosen.worker] = replace(
            chosen,
            cpus=chosen.cpus - demand.cpus,
            gpus=chosen.gpus - demand.gpus,
            memory_bytes=chosen.memory_bytes - demand.memory_bytes,
        )
    return placements
