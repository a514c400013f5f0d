"""What came of batches that are finished, kept in memory: it never changes again.

A search shows the best of every epoch. Without this, each look at a list of searches would average
the results of all their experiments. `views/measurements.py` asks it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from assay.contracts.batch import BestSummary

#: Finished batches that a process remembers, some hundred bytes each.
MOST_KEPT = 50_000


@dataclass(frozen=True)
class BatchOutcome:
    """The best experiment of a finished batch, and how many of its experiments succeeded."""

    best: BestSummary | None
    succeeded: int
    total: int


class FinishedBatches:
    """The outcomes of finished batches. Those that were not asked for lately are read again."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, BatchOutcome] = OrderedDict()

    def of(
        self,
        batch_ids: Collection[str],
        read: Callable[[Collection[str]], Mapping[str, BatchOutcome]],
    ) -> dict[str, BatchOutcome]:
        """Return what came of these batches, by id. All of them must be finished.

        `read` is called with those that are not kept, if there are any.
        """
        found: dict[str, BatchOutcome] = {}
        with self._lock:
            for id_ in batch_ids:
                if id_ in self._kept:
                    self._kept.move_to_end(id_)
                    found[id_] = self._kept[id_]
        missing = [id_ for id_ in batch_ids if id_ not in found]
        if missing:
            new = read(missing)
            found |= new
            with self._lock:
                self._kept |= new
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
        return found
