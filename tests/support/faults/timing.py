"""The intervals of the fault harness: tenths of what they are in production."""

from __future__ import annotations

from assay.domain.states import TERMINAL_EXPERIMENT

#: Hosts renew their leases every second, so a busy machine has five to spare.
LEASE = 6.0
#: How long batches may take to end, and how long slots and messages may take after that.
FINISH_SECONDS = 120.0
SETTLE_SECONDS = 60.0
TERMINAL = tuple(state.value for state in TERMINAL_EXPERIMENT)


def short_leases(lease: float = LEASE) -> dict[str, str]:
    """Return settings by which what died is noticed within a lease of that length."""
    return {
        "ASSAY_SCHEDULER_LEASE_SECONDS": str(lease),
        "ASSAY_SCHEDULER_SUSPECT_SECONDS": str(lease / 2),
        "ASSAY_SCHEDULER_UNCLAIMED_SECONDS": str(lease),
        "ASSAY_IMPLEMENTER_LEASE_SECONDS": str(lease),
        "ASSAY_IMPLEMENTER_RETRY_SECONDS": "0.2",
        "ASSAY_IMPLEMENTER_RESCAN_SECONDS": "1",
    }
