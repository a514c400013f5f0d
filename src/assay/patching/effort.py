"""How much work an answer may ask of the patcher: it is counted, so that no answer is slow."""

MAX_EFFORT = 1_000_000  # steps for all hunks of an answer, about a microsecond each


class Exhausted(Exception):
    """An answer asks for more work than one may."""


class Effort:
    """The steps that an answer has left, shared by all of its hunks."""

    def __init__(self, left: int = MAX_EFFORT) -> None:
        self.left = left

    def spend(self, steps: int) -> None:
        """Take steps off. Raises Exhausted when there are fewer left."""
        self.left -= steps
        if self.left < 0:
            raise Exhausted
