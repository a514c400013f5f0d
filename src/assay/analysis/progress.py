"""How far a search is, in words: for the live view and for `assay search show`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import median

from assay.analysis.standing import Claim, standing
from assay.analysis.text import (
    clean,
    format_effect,
    format_number,
    format_seconds,
    format_verdict,
)
from assay.contracts.batch import BatchBody, ExperimentBody, Usage
from assay.contracts.search import SearchBody
from assay.domain.isolation import is_offline
from assay.domain.states import SearchState


@dataclass(frozen=True)
class SearchProgress:
    """What is known of a search at the moment `now`.

    `batches` are those of its epochs, in order; `best` is the best experiment so far; `workers`
    is the number of workers that take work.
    """

    search: SearchBody
    batches: Sequence[BatchBody]
    best: ExperimentBody | None
    workers: int
    now: datetime

    def lines(self) -> list[str]:
        """Return a line each for the work, the best result, the spending and the time left."""
        lines = [self.work(), self.result()]
        spending = self.spending()
        if spending:
            lines.append(spending)
        if self.search.state == SearchState.RUNNING:
            lines.append(self.time_left())
        return lines

    def work(self) -> str:
        """Return how many epochs and experiments are finished, running and queued."""
        search, counts = self.search, [batch.counts for batch in self.batches]
        done = sum(c.succeeded + c.failed + c.cancelled for c in counts)
        running = sum(c.running for c in counts)
        queued = sum(c.submitted + c.implementing + c.queued for c in counts)
        if search.slots is not None:
            return self._slots(search.slots, done, running, queued)
        under_way = [b.epoch for b in self.batches if b.finished_at is None]
        at = f", {', '.join(map(str, under_way))} under way" if under_way else ""
        return (
            f"epochs: {search.epochs_finished} of {search.epochs} finished{at}; "
            f"experiments: {done} finished, {running} running, {queued} queued"
        )

    def _slots(self, slots: int, done: int, running: int, queued: int) -> str:
        busy = min(running + queued, slots)
        return (
            f"decisions: {self.search.epochs_finished} of {self.search.epochs} finished, "
            f"{len(self.batches)} submitted; slots: {busy} of {slots} busy; "
            f"experiments: {done} finished, {running} running, {queued} queued"
        )

    def result(self) -> str:
        """Return the best result beside the baseline, and what may be said of it."""
        best = self.best
        if best is None:
            return "best so far: no result yet"
        text = f"best so far: {format_number(best.metric)} ({clean(best.id)})"
        compared = best.comparison
        if compared is None:
            return f"{text}; the baseline is not measured yet"
        against = f"baseline {format_number(compared.baseline_mean)}"
        return f"{text}, {against}: {format_verdict(compared)}{_claim(best)}"

    def spending(self) -> str:
        """Return what the calls of models cost, of the caps; empty if no model is asked."""
        if is_offline(self.search.executor) and is_offline(self.search.ideator):
            return ""
        caps = self.search.caps
        parts = [
            _spent("ideator", self.search.ideator_usage, caps.max_ideator_cost_usd),
            _spent("executor", self.search.executor_usage, caps.max_executor_cost_usd),
        ]
        of = "" if caps.max_cost_usd is None else f"; of {caps.max_cost_usd:.2f} USD in all"
        return f"spent: {', '.join(parts)}{of}"

    def time_left(self) -> str:
        """Return the time left, or why it is unknown."""
        if self.search.open_pause is not None:
            return "time left: paused"
        if not self.workers:
            return "time left: unknown, no worker takes work"
        seconds = self.seconds_left()
        if seconds is None:
            return "time left: unknown until experiments have ended"
        return f"time left: about {format_seconds(seconds)}"

    def seconds_left(self) -> float | None:
        """Return the seconds left at the pace so far; None before an experiment has ended.

        The pace is the time in which at least one epoch was under way, per experiment that ended
        then, so it follows from how many ran side by side. Asking the ideator takes as long as
        the median gap between two epochs, which a stop of the loop does not distort.
        """
        ended = sum(_ended(batch) for batch in self.batches)
        if not ended:
            return None
        spans = [(batch.created_at, batch.finished_at or self.now) for batch in self.batches]
        busy, gaps, until = 0.0, [], spans[0][0]
        for begin, end in sorted(spans):
            if begin > until:
                gaps.append((begin - until).total_seconds())
            busy += max(0.0, (end - max(begin, until)).total_seconds())
            until = max(until, end)
        to_ask = max(0, self.search.epochs - len(self.batches))
        under_way = sum(batch.counts.total - _ended(batch) for batch in self.batches)
        to_run = under_way + to_ask * self.search.batch_size
        return to_run * busy / ended + to_ask * (median(gaps) if gaps else 0.0)


def _claim(best: ExperimentBody) -> str:
    """What may be said of the best, beside what the search measured."""
    found = standing(best)
    if found.is_fresh:
        return (
            f"; {found.claim}: {format_number(found.metric)} on fresh seeds, "
            f"{format_effect(found.comparison)}"
        )
    if found.claim is Claim.NOT_CONFIRMED:
        return "; not confirmed"
    if found.claim is Claim.CONFIRMING:
        return "; its confirmation is under way"
    return "; a lead until it is confirmed" if found.claim is Claim.LEAD else ""


def _ended(batch: BatchBody) -> int:
    return batch.counts.succeeded + batch.counts.failed + batch.counts.cancelled


def _spent(whose: str, usage: Usage, cap: Decimal | None) -> str:
    cost = usage.cost_usd
    said = "an unknown price" if cost is None else f"{Decimal(cost):.2f} USD"
    return f"{said} by the {whose}" + ("" if cap is None else f" of {cap:.2f}")
