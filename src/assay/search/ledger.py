"""What an ideator has cost since this process started, and a stop before it costs too much."""

from __future__ import annotations

from decimal import Decimal

from assay.llm.interface import Try
from assay.llm.names import ModelName, Provider
from assay.llm.prices import price
from assay.search.ask import SearchError


class Ledger:
    """Adds up the prices of calls. A call is refused once the limit is spent."""

    def __init__(self, ideator: str) -> None:
        self._model = ModelName.parse(ideator)
        self._left: Decimal | None = None
        self.spent = Decimal(0)

    def limit(self, left: Decimal | None) -> None:
        """From now on at most this much more; None: no limit."""
        self._left = left

    async def on_try(self, attempt: Try) -> None:
        """Take note of a call.

        Raises:
            SearchError: the limit is spent and the call would start.
        """
        spent_up = self._left is not None and self._left <= 0
        if attempt.phase == "started" and spent_up and self._model.provider != Provider.OFFLINE:
            raise SearchError("the cap on cost is reached (--max-cost)", code="cost_cap")
        if attempt.completion is not None:
            cost = price(self._model, attempt.completion.usage) or Decimal(0)
            self.spent += cost
            if self._left is not None:
                self._left -= cost
