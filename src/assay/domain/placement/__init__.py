"""Which queued measurement goes to which worker: pure functions of state."""

from assay.domain.placement.policy import place, plan, queue_order
from assay.domain.placement.types import (
    Demand,
    Occupancy,
    Placement,
    Plan,
    Policy,
    Reservation,
    Size,
    Supply,
    size_of,
)

__all__ = [
    "Demand",
    "Occupancy",
    "Placement",
    "Plan",
    "Policy",
    "Reservation",
    "Size",
    "Supply",
    "place",
    "plan",
    "queue_order",
    "size_of",
]
