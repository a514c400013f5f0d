"""Choose the decoy of every question that `grading` grades: the reference of another question.

A mark is believed only as far as its decoy is not beaten too, so the choice has to look alike from
inside an answer, whichever of the two it sees.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

_BUCKET = 16
"""As many different references, next to each other in looks, are shuffled."""
_NEAR = 32
"""A decoy that does not do is exchanged with one of as many places to each side, if it can."""
_FEW_SHARE, _FEW_LEAST = 0.02, 2


@dataclass
class _Differ:
    """Whether one question's reference can be the other's decoy; asks once for each two texts.

    `asks_left` bounds the work where a grader finds everything alike; what it was not asked
    cannot be a decoy.
    """

    texts: Sequence[str]
    alike: Callable[[str, str], bool]
    asks_left: int
    known: dict[frozenset[str], bool] = field(default_factory=dict)

    def __call__(self, a: int, b: int) -> bool:
        pair = frozenset((self.texts[a], self.texts[b]))
        if len(pair) == 1:
            return False
        if pair not in self.known:
            if self.asks_left == 0:
                return False
            self.asks_left -= 1
            self.known[pair] = self.alike(self.texts[a], self.texts[b])
        return not self.known[pair]


def assign_decoys(
    references: Sequence[str], rng: np.random.Generator, alike: Callable[[str, str], bool]
) -> list[int | None]:
    """Return for every question the one whose reference is its decoy, None where there is none.

    It is a permutation of all questions that have a decoy.

    In an order in which the same references stand together, everyone gets the reference that
    stands as many places on as the largest class of the same has members. That leads out of every
    class, unless one has more than half of all; then only its surplus is left over. What `alike`
    finds besides is exchanged with others.

    What holds, seen from inside an answer to question i:

    - Every reference is counted once as a reference and once as a decoy. Code that goes by the
      text it finds alone gains exactly nothing over all questions.
    - j's reference is i's decoy as often as i's is j's: the last coin inverts the permutation.
      And only the texts matter, not the positions, since all that is equal is shuffled. So for
      code that finds a text and does not know which of the two questions it belongs to (either
      being as likely beforehand), it is as likely the reference as the decoy.
    - Code that does know something of its question can use it, as a plain guess would. So the
      order is by looks: as long as classes are small, decoys look similar.
    """
    texts = [reference.strip() for reference in references]
    count = len(texts)
    differ = _Differ(texts, alike, asks_left=1000 + 8 * count)
    order = _order(texts, rng)
    largest = max(Counter(texts).values())
    shift = min(largest, count - largest)
    given = {member: order[(place + shift) % count] for place, member in enumerate(order)}
    _leave_out(_repair(order, given, rng, differ), given, differ)
    if rng.integers(2):
        given = {decoy: member for member, decoy in given.items()}
    return [None if given[i] == i else given[i] for i in range(count)]


def _order(texts: Sequence[str], rng: np.random.Generator) -> list[int]:
    """All questions, the same references together and in random order, similar ones near."""
    classes: dict[str, list[int]] = {}
    for i in rng.permutation(len(texts)).tolist():
        classes.setdefault(texts[i], []).append(i)
    sorts = sorted(classes, key=_looks)
    order: list[int] = []
    for start in range(0, len(sorts), _BUCKET):
        bucket = sorts[start : start + _BUCKET]
        for which in rng.permutation(len(bucket)).tolist():
            order += classes[bucket[which]]
    return order


def _repair(
    order: Sequence[int], given: dict[int, int], rng: np.random.Generator, differ: _Differ
) -> list[int]:
    """Exchange decoys that do not do; returns the questions for which that was impossible."""
    hopeless: list[int] = []
    for place, member in enumerate(order):
        if differ(member, given[member]):
            continue
        # With more than a few the grading is refused: no need to search on.
        if len(hopeless) > few(len(order)) or not _exchange(place, order, given, rng, differ):
            hopeless.append(member)
    return hopeless


def _exchange(
    place: int,
    order: Sequence[int],
    given: dict[int, int],
    rng: np.random.Generator,
    differ: _Differ,
) -> bool:
    """Exchange a question's decoy with that of another, a near one if possible, so that both do.

    All others are tried: if alike ones make up no more than half, there always is one.
    """
    member = order[place]
    for others in (order[max(0, place - _NEAR) : place + _NEAR], order):
        for which in rng.permutation(len(others)).tolist():
            other = others[which]
            if differ(member, given[other]) and differ(other, given[member]):
                given[member], given[other] = given[other], given[member]
                return True
    return False


def _leave_out(members: Sequence[int], given: dict[int, int], differ: _Differ) -> None:
    """Leave as few as possible without (their own decoys) where these have none that does.

    Who leaves is the question or its decoy, whichever gap can be closed: one reference that is
    like all the others must not take them along.
    """
    before = {decoy: member for member, decoy in given.items()}
    for hopeless in members:
        member = hopeless
        while given[member] != member and not differ(member, given[member]):
            first, decoy = before[member], given[member]
            closes = not differ(first, decoy) and differ(member, given[decoy])
            leaver = decoy if closes else member
            ahead, behind = given[leaver], before[leaver]
            given[behind], before[ahead] = ahead, behind
            given[leaver] = before[leaver] = leaver
            member = behind  # whose new decoy may not do either


def few(count: int) -> float:
    """Return how many of `count` questions may have no decoy, or fool the grader."""
    return max(_FEW_LEAST, _FEW_SHARE * count)


def _looks(text: str) -> tuple[int, float, str]:
    """Sorts alike next to alike: numbers by value, other texts by length."""
    try:
        value = float(text)
    except ValueError:
        return 1, float(len(text)), text
    return (0, value, text) if math.isfinite(value) else (1, float(len(text)), text)
