"""How many ideas a process implements at once, and how many of them may be of one batch or owner.

The pool takes ideas up by this, and the API says by it why an idea waits.
"""

from __future__ import annotations

from collections import Counter

#: A batch may have so many times as many ideas under way as there are places left. One alone gets
#: three quarters of them, two get three sevenths each: something is left for the next batch,
#: however long the ideas of the others take.
CROWD = 3
#: The same for all batches of an owner: one alone gets seven eighths of the places.
CROWD_OF_OWNER = 7


class Places:
    """The ideas that a process has under way, by batch and owner, of `most` at once."""

    def __init__(self, most: int) -> None:
        self.most = most
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

    def full(self) -> list[str]:
        """The batches and owners that get no more places for now."""
        batches = [batch for batch in self.of_batch if self.is_full(batch)]
        return batches + [owner for owner in self._of_owner if self.is_full_of(owner)]
