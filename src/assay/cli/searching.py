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


def follow_search(
    client: Client,
    search: str,
    out: Output,
    show_event: Callable[[EventBody], None] | None = None,
) -> bool:
    """Show a search by its events, whoever drives it. Returns whether it is paused, else it ended.

    `show_event` is called with each event instead.
    """
    observer = LineObserver(out)
    for event in client.searches.follow(search):
        if show_event is not None:
            show_event(event)
        elif event.type == "search.epoch_stored":
            out.say(f"epoch {event.data['epoch']}: {event.data['ideas']} ideas stored")
        elif event.type == "search.epoch_submitted":
            number, batch = int(event.data["epoch"]), str(event.data["batch"])
            observer.submitted(number, batch)
            if client.batches.get(batch).finished_at is None:
                follow_batch(out, client, batch, lambda _: None)
            observer.epoch_finished(client.searches.get(search), number)
        if event.type == "search.paused" and _is_paused(client.searches.get(search)):
            return True
    return False


def _is_paused(search: SearchBody) -> bool:
    return any(pause.resumed_at is None for pause in search.pauses)
