"""Who is told how a search goes on: `assay.cli.searching` shows it."""

from __future__ import annotations

from collections.abc import Sequence

from assay.contracts.batch import EventBody, IdeaRequest
from assay.contracts.environment import BaselineBody
from assay.contracts.search import SearchBody
from assay.search.plan import Ask, Remeasure


class Observer:
    """Told how a search goes on. Every method does nothing here."""

    def epoch_started(self, search: SearchBody, number: int) -> None:
        """The loop has come to an epoch, new or stored."""

    def asking(self, number: int, asks: Sequence[Ask]) -> None:
        """The ideator is about to be asked."""

    def remeasuring(self, number: int, again: Remeasure) -> None:
        """Codebases are about to be measured on more seeds, as an epoch of their own."""

    def stored(self, number: int, ideas: Sequence[IdeaRequest]) -> None:
        """The ideas of an epoch are in the service's record."""

    def submitted(self, number: int, batch: str) -> None:
        """An epoch's ideas are a batch."""

    def event(self, number: int, event: EventBody) -> None:
        """Something changed in the batch of an epoch."""

    def epoch_finished(self, search: SearchBody, number: int) -> None:
        """The batch of an epoch is finished; `search.best` tells of it."""

    def waiting_for_baseline(self, baseline: BaselineBody) -> None:
        """The baseline is being measured; nothing that builds on results starts before."""

    def confirming(self, batch: str) -> None:
        """The best results are measured again, as a batch of their own."""
