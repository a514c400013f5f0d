"""How many ideas a process implements at once: of all, of one batch or owner, and ahead of
measuring.

The pool takes ideas up by this, and the API says by it why an idea waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from assay.storage.implementations import Ahead

#: A batch may have so many times as many ideas under way as there are places left. One alone gets
#: three quarters of them, two get three sevenths each: something is left for the next batch,
#: however long the ideas of the others take.
CROWD = 3
#: The same for all batches of an owner: one alone gets seven eighths of the places.
CROWD_OF_OWNER = 7
#: A batch that was implemented as far ahead as it may goes on when there is room for this share of
#: it: each look for ideas costs something.
ROOM = 0.25


class Places:
    """The ideas that a process has under way, by batch and owner, of `most` at once.

    `ahead`: while so many ideas of a batch are under way or implemented and wait to be measured,
    no further one is begun. More would be measured no earlier, would take processor time from
    measuring, and would have been paid for in vain if the batch is cancelled.
    """

    def __init__(self, most: int, ahead: int) -> None:
        self.most = most
        self._ahead = ahead
        self._implemented: Mapping[str, Ahead] = {}
        self.of_batch: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()

    @property
    def free(self) -> int:
        """The places left for ideas."""
        return self.most - self._of_owner.total()

    def add(self, owner: str, batch: str, ideas: int = 1) -> None:
        """Count ideas that were taken up, or, if negative, that have ended."""
        for counter, name in ((self._of_owner, owner), (self.of_batch, batch)):
            counter[name] += ideas
            if not counter[name]:
                del counter[name]

    def is_full(self, batch: str) -> bool:
        """Whether the places left are for other batches."""
        return self.of_batch[batch] >= CROWD * self.free

    def is_full_of(self, owner: str) -> bool:
        """Whether the places left are for other owners."""
        return self._of_owner[owner] >= CROWD_OF_OWNER * self.free

    def see(self, implemented: Mapping[str, Ahead]) -> None:
        """Take in how many implemented ideas each batch has."""
        self._implemented = implemented

    def is_ahead(self, batch: str, room: float = 0.0) -> bool:
        """Whether a batch is implemented as far ahead of measuring as it may be.

        `room`: also if it may go on, but by no more than this share.
        """
        waiting, running = self._implemented.get(batch, Ahead(0, 0))
        # What runs may all end at once, and is then followed by as many.
        most = max(self._ahead, running)
        return waiting + self.of_batch[batch] >= (1 - room) * most

    def ahead(self) -> list[str]:
        """The batches that are implemented far enough ahead for now."""
        known = dict.fromkeys([*self._implemented, *self.of_batch])
        return [batch for batch in known if self.is_ahead(batch, ROOM)]

    def full(self) -> list[str]:
        """The batches and owners that get no more places for now."""
        batches = [batch for batch in self.of_batch if self.is_full(batch)]
        return batches + [owner for owner in self._of_owner if self.is_full_of(owner)]
