"""The clock: leases, placement, reconciliation."""
