"""What a person sees of a search while it is driven."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from assay.analysis import SearchProgress, rank
from assay.analysis.text import (
    counted,
    format_effect,
    format_number,
    format_seconds,
    format_verdict,
    idea_title,
    short_id,
    without_tags,
)
from assay.cli.alike import say_alike
from assay.cli.output import Output
from assay.cli.watch import follow
from assay.client import Client, ClientError, Patience
from assay.contracts.batch import (
    BatchBody,
    BestSummary,
    EventBody,
    ExperimentBody,
    IdeaRequest,
)
from assay.contracts.environment import BaselineBody
from assay.contracts.search import SearchBody
from assay.contracts.worker import WorkerBody
from assay.domain.isolation import is_offline
from assay.domain.metrics import Direction, is_better
from assay.search import Ask, Observer, Remeasure

#: Seconds between two looks at how far a search is.
PROGRESS_SECONDS = 5.0
#: What is shown of the best idea: lines of its text, generations, and parents that are compared.
_IDEA_LINES, _GENERATIONS, _PARENTS = 6, 8, 5


def read_progress(client: Client, search: SearchBody) -> SearchProgress:
    """Read how far a search is."""
    listed = client.batches.list(search=search.id)
    epochs = sorted((b for b in listed if b.epoch is not None), key=lambda b: b.epoch or 0)
    direction = client.environments.get(search.environment).direction
    best: BestSummary | None = None
    for found in (batch.best for batch in epochs if batch.best):
        if best is None or is_better(direction, found.metric, best.metric):
            best = found
    return SearchProgress(
        search,
        epochs,
        None if best is None else client.experiments.get(best.experiment),
        sum(1 for worker in client.workers.list() if _takes_work(worker)),
        datetime.now(UTC),
    )


def _takes_work(worker: WorkerBody) -> bool:
    return worker.state == "active" and not worker.draining and worker.cordoned_until is None


def describe_best(client: Client, progress: SearchProgress) -> list[str]:
    """Return lines about the best experiment: its idea, the baseline, and its line of parents."""
    best = progress.best
    if best is None:
        return []
    lines = ["", f"best idea: {short_id(best.id)}, {best.idea.operator}"]
    lines += [f"  {part}" for part in _description(best.idea.text)]
    measured = next((b.baseline for b in reversed(progress.batches) if b.baseline), None)
    if measured is not None and measured.mean is not None:
        spread = "" if measured.spread is None else f" ± {format_number(measured.spread)}"
        seeds = counted(measured.n, "seed")
        lines.append(f"baseline: {format_number(measured.mean)}{spread} over {seeds}")
    if best.comparison is not None:
        effect = format_effect(best.comparison)
        lines.append(f"effect: {effect}, {format_verdict(best.comparison)}")
    steps = _line_of_parents(client, best)
    if steps:
        lines.append("lineage, the nearest first:")
    return lines + [
        f"  {short_id(e.id)} {format_number(e.metric)}: {idea_title(e.idea.text, 90)}"
        for e in steps
    ]


def _description(text: str) -> list[str]:
    """Return the first lines of what an idea says it is."""
    said = without_tags(text, is_whole=False)
    lines = [line for line in said.splitlines() if line.strip()]
    return [*lines[:_IDEA_LINES], *(["…"] if len(lines) > _IDEA_LINES else [])]


def _line_of_parents(client: Client, experiment: ExperimentBody) -> list[ExperimentBody]:
    """Return the parents of an experiment, of several the best, back to one without parents."""
    direction = _direction(client, experiment)
    found: list[ExperimentBody] = []
    seen = {experiment.id}
    while experiment.idea.parents and len(found) < _GENERATIONS:
        wanted = [p for p in experiment.idea.parents[:_PARENTS] if p not in seen]
        parents = [client.experiments.get(parent) for parent in wanted]
        if not parents:
            break
        experiment = rank(parents, direction)[0]
        seen.add(experiment.id)
        found.append(experiment)
    return found


def _direction(client: Client, experiment: ExperimentBody) -> Direction:
    environment = experiment.environment or client.batches.get(experiment.batch).environment
    return client.environments.get(environment).direction


class LineObserver(Observer):
    """A line for every step, and how far the search is after every epoch."""

    def __init__(self, out: Output, client: Client) -> None:
        self._out = out
        self._client = client
        self._pending = -1

    def asking(self, number: int, asks: Sequence[Ask]) -> None:
        """How the epoch is split between operators."""
        wanted = ", ".join(f"{ask.count} {ask.operator}" for ask in asks)
        self._out.say(f"epoch {number}: asking for {wanted}")

    def remeasuring(self, number: int, again: Remeasure) -> None:
        """Which codebases."""
        ids = ", ".join(past.id for past in again.trajectories)
        self._out.say(f"epoch {number}: measuring on {again.seeds} seeds: {ids}")

    def stored(self, number: int, ideas: Sequence[IdeaRequest]) -> None:
        """How many ideas came."""
        self._out.say(f"epoch {number}: {counted(len(ideas), 'idea')} stored")

    def submitted(self, number: int, batch: str) -> None:
        """Which batch to look at."""
        self._out.say(f"epoch {number}: {batch}")

    def epoch_finished(self, search: SearchBody, number: int) -> None:
        """The best of the epoch, then how far the search is."""
        for entry in search.best:
            if entry.epoch == number:
                self._out.say(
                    f"epoch {number}: {entry.scored}/{entry.total} scored, best "
                    f"{format_number(entry.metric)}"
                )
        if not self._out.quiet:
            for line in read_progress(self._client, search).lines():
                self._out.say(f"  {line}")

    def waiting_for_baseline(self, baseline: BaselineBody) -> None:
        """Said once for every measurement that comes in."""
        if baseline.pending != self._pending:
            self._pending = baseline.pending
            pending = counted(baseline.pending, "measurement")
            self._out.say(f"waiting for the baseline: {pending} to come")

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
    """Wait for a batch of a search with a live view; `left` as in `follow`.

    The view shows the whole search above the batch.
    """
    body = client.batches.get(batch)
    search = body.search
    if body.ideator is None or not is_offline(body.ideator):
        # Offline ideators vary the same few sentences, so all of their ideas are alike.
        say_alike(client, out, batch)
    above = None
    if search is not None and out.live and left is None:
        above = _Above(client, search)
    return follow(client, batch, out, on_event=on_event, left=left, above=above)


class _Above:
    """The lines about the search in a live view, read again every few seconds."""

    def __init__(self, client: Client, search: str) -> None:
        self._client = client
        self._search = search
        self._at: float | None = None
        self._lines: list[str] = []

    def __call__(self) -> list[str]:
        now = time.monotonic()
        if self._at is None or now - self._at >= PROGRESS_SECONDS:
            self._at = now
            body = self._client.searches.get(self._search)
            self._lines = read_progress(self._client, body).lines()
        return self._lines


def patience(out: Output, seconds: float) -> Patience:
    """Wait so long for a service that is away; say once that it is, and once that it is back."""

    def away(error: ClientError) -> None:
        out.say(f"Waiting up to {format_seconds(seconds)} for the service: {error}")

    def back(after: float) -> None:
        out.say(f"The service is back after {format_seconds(after)}; the search continues.")

    return Patience(seconds, on_away=away, on_back=back)


def follow_search(
    client: Client,
    search: str,
    out: Output,
    show_event: Callable[[EventBody], None] | None = None,
) -> bool:
    """Show a search by its events, whoever drives it. Returns whether it is paused, else it ended.

    `show_event` is called with each event instead.
    """
    observer = LineObserver(out, client)
    for event in client.searches.follow(search):
        if show_event is not None:
            show_event(event)
        elif event.type == "search.epoch_decided":
            asked = ", ".join(f"{count} {name}" for name, count in event.data["asked"].items())
            decided = client.searches.get(search)
            out.say(f"decision {event.data['epoch'] + 1} of {decided.epochs}: {asked}")
            out.say(f"  {read_progress(client, decided).work()}")
        elif event.type == "search.epoch_stored":
            ideas = counted(int(event.data["ideas"]), "idea")
            out.say(f"epoch {event.data['epoch']}: {ideas} stored")
        elif event.type == "search.epoch_submitted":
            number, batch = int(event.data["epoch"]), str(event.data["batch"])
            observer.submitted(number, batch)
            if client.searches.get(search).slots is not None:
                continue  # several are under way at once
            if client.batches.get(batch).finished_at is None:
                follow_batch(out, client, batch, lambda _: None)
            observer.epoch_finished(client.searches.get(search), number)
        if event.type == "search.paused" and client.searches.get(search).open_pause:
            return True
    return False
