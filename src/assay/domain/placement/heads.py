"""How far into the queue of each batch a decision has to look.

The scheduler and its simulator read only so many measurements of a queue: those that `plan` could
place if all that is free went to one owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from assay.domain.placement.types import Batch


@dataclass(frozen=True)
class Line:
    """The measurements of one kind and priority that wait for a batch; `number`: at most so
    many."""

    batch: Batch
    priority: int
    number: int


def look_ahead(
    lines: Iterable[Line], running: Mapping[Batch, int], amount: int, limit: int
) -> dict[Line, int]:
    """Return how many measurements of each line come next, at most `limit` for each owner.

    `running` is what runs of each batch, in GPUs or CPUs, and `amount` what a measurement of these
    lines adds to it. An owner's lines with the highest priority come first, then the batch that
    runs least, as in `plan`.
    """
    owners: dict[str, dict[int, list[Line]]] = {}
    for line in lines:
        owners.setdefault(line.batch[0], {}).setdefault(line.priority, []).append(line)
    found: dict[Line, int] = {}
    for levels in owners.values():
        left = limit
        for priority in sorted(levels, reverse=True):
            left -= _fill(levels[priority], running, amount, left, found)
            if not left:
                break
    return found


def _fill(
    lines: list[Line],
    running: Mapping[Batch, int],
    amount: int,
    limit: int,
    found: dict[Line, int],
) -> int:
    """Take from whichever batch runs least, until so many are taken. Returns how many are."""
    heap = [(running.get(line.batch, 0), line.batch, place) for place, line in enumerate(lines)]
    heapify(heap)
    taken = 0
    while heap and taken < limit:
        has, batch, place = heap[0]
        line = lines[place]
        found[line] = found.get(line, 0) + 1
        taken += 1
        if found[line] < line.number:
            heapreplace(heap, (has + amount, batch, place))
        else:
            heappop(heap)
    return taken
