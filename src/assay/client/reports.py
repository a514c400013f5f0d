"""`client.reports`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from assay.client.resource import Group
from assay.contracts.report import ExecutionReport


class Reports(Group):
    """What many batches show together."""

    path = "/v1/reports"

    def execution(
        self,
        *,
        environment: str | None = None,
        batches: Sequence[str] = (),
        search: str | None = None,
        since: date | None = None,
    ) -> ExecutionReport:
        """How many ideas came to a result, per environment, profile, ideator and executor.

        Without filters, of all batches of one's own. `since`: of those from that day on (UTC).
        """
        query = {
            "environment": environment,
            "batch": list(batches),
            "search": search,
            "since": since.isoformat() if since else None,
        }
        return self._get(ExecutionReport, f"{self.path}/execution", query)
