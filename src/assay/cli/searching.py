"""What a person sees of a search while it is driven."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from assay.analysis.text import format_number
from assay.cli.alike import say_alike
from assay.cli.output import Output
from assay.cli.watch import follow
from assay.client import Client
from assay.contracts.batch import BatchBody, EventBody, IdeaRequest
from assay.contracts.environment import BaselineBody
from assay.contracts.search import SearchBody
from assay.search import Ask, Observer


class LineObserver(Observer):
    """A line for every step."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._pending = -1

    def asking(self, number: int, asks: Sequence[Ask]) -> None:
        """How the epoch is split between operators."""
        wanted = ", ".join(f"{ask.count} {ask.operator}" for ask in asks)
        self._out.say(f"epoch {number}: asking for {wanted}")

    def stored(self, number: int, ideas: Sequence[IdeaRequest]) -> None:
        """How many ideas came."""
        self._out.say(f"epoch {number}: {len(ideas)} ideas stored")

    def submitted(self, number: int, batch: str) -> None:
        """Which batch to look at."""
        self._out.say(f"epoch {number}: {batch}")

    def epoch_finished(self, search: SearchBody, number: int) -> None:
        """The best so far."""
        for entry in search.best:
            if entry.epoch == number:
                self._out.say(
                    f"epoch {number}: {entry.scored}/{entry.total} scored, best "
                    f"{format_number(entry.metric)}, best so far "
                    f"{format_number(entry.best_so_far)}"
                )

    def waiting_for_baseline(self, baseline: BaselineBody) -> None:
        """Said once for every measurement that comes in."""
        if baseline.pending != self._pending:
            self._pending = baseline.pending
            self._out.say(f"waiting for the baseline: {baseline.pending} measurements to come")

    def confirming(self, batch: str) -> None:
        """Which batch to look at."""
        self._out.say(f"confirming the best results: {batch}")


def follow_batch(
    out: Output,
    client: Client,
    batch: str,
    on_event: Callable[[EventBody], None],
    left: Callable[[int], float] | None = None,
) -> BatchBody:
    """Wait for an epoch's batch with a live view; `left` as in `follow`."""
    say_alike(client, out, batch)
    return follow(client, batch, out, on_event=on_event, left=left)
