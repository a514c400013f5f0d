"""Which queued measurement goes to which worker: pure functions of state."""

from assay.domain.placement.heads import Line, look_ahead
from assay.domain.placement.outlook import Outlook, Reason, outlook
from assay.domain.placement.policy import place, plan, queue_order
from assay.domain.placement.types import (
    Batch,
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
    "Batch",
    "Demand",
    "Line",
    "Occupancy",
    "Outlook",
    "Placement",
    "Plan",
    "Policy",
    "Reason",
    "Reservation",
    "Size",
    "Supply",
    "look_ahead",
    "outlook",
    "place",
    "plan",
    "queue_order",
    "size_of",
]
