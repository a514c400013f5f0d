"""Which queued measurement goes to which worker: pure functions of state."""

from assay.domain.placement.policy import place, queue_order
from assay.domain.placement.types import Demand, Occupancy, Placement, Supply

__all__ = ["Demand", "Occupancy", "Placement", "Supply", "place", "queue_order"]
