"""What came of batches that are finished, kept in memory: it never changes again.

A list shows counts and the best result of each batch, and so does a search of every epoch; a
report adds up all batches of an owner. Without this, each look would count all experiments again.
`views/batches.py` and `routers/reports.py` ask it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from assay.contracts.batch import BestSummary, Counts, Funnel, MeasurementCounts, Usage

#: Finished batches that a process remembers, some hundred bytes each.
MOST_KEPT = 50_000


@dataclass(frozen=True)
class BatchCounts:
    """The experiments of a batch by state, and how far they came. `capped`: a cap ended them."""

    counts: Counts
    patched: int = 0
    started: int = 0
    capped: int = 0


@dataclass(frozen=True)
class BatchOutcome:
    """What came of a batch until now. `applied`: how many experiments have a sample whose diff
    fitted."""

    counts: BatchCounts
    applied: int
    measurements: MeasurementCounts
    usage: Usage
    best: BestSummary | None

    @property
    def is_final(self) -> bool:
        """Of a finished batch, whether nothing of this can change: a measurement or a call that
        its experiments no longer wait for may go on."""
        open_ = self.measurements.queued + self.measurements.running
        return not open_ and not self.usage.under_way

    @property
    def funnel(self) -> Funnel:
        """How far the experiments came."""
        scored = self.counts.counts.succeeded
        return Funnel(
            submitted=self.counts.counts.total,
            applied=max(self.applied, self.counts.patched),
            patched=self.counts.patched,
            # A scored experiment that shares a finished measurement was not started itself.
            started=max(self.counts.started, scored),
            scored=scored,
        )


class Countable(Protocol):
    """Something counted per batch."""

    @property
    def is_final(self) -> bool:
        """Of a finished batch, whether nothing of this can change."""
        ...


T = TypeVar("T", bound=Countable)


class FinishedBatches(Generic[T]):
    """What was counted of finished batches; what was not asked for lately is read again."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, T] = OrderedDict()

    def of(
        self,
        batch_ids: Collection[str],
        read: Callable[[Collection[str]], Mapping[str, T]],
        unfinished: Collection[str] = (),
    ) -> dict[str, T]:
        """Return what came of these batches, by id. All but the `unfinished` must be finished.

        `read` is called with those that are not kept, if there are any. What it returns of other
        batches is ignored.
        """
        found: dict[str, T] = {}
        with self._lock:
            for id_ in batch_ids:
                if id_ in self._kept:
                    self._kept.move_to_end(id_)
                    found[id_] = self._kept[id_]
        missing = [id_ for id_ in batch_ids if id_ not in found]
        if missing or unfinished:
            read_now = read([*missing, *unfinished])
            new = {id_: read_now[id_] for id_ in missing if id_ in read_now}
            found |= new
            found |= {id_: read_now[id_] for id_ in unfinished if id_ in read_now}
            with self._lock:
                self._kept |= {id_: of for id_, of in new.items() if of.is_final}
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        return found
