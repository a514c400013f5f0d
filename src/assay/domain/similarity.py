"""How alike two ideas are: Jaccard similarity of their words (appendix A.1 of the paper).

|A ∩ B| / |A ∪ B| over the sets of lower-case words, numbers among them. Pairs at or above a
threshold are found without comparing all: two sets of similarity t or more share a word among the
rarest |A| - ⌈t·|A|⌉ + 1 words of each (prefix filtering: Chaudhuri et al., ICDE 2006; Bayardo et
al., WWW 2007).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_WORD = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|\w+")
_TAGS = re.compile(r"\[(?:experiment|code changes|end)\]", re.IGNORECASE)


def words(text: str) -> frozenset[str]:
    """The set of words of an idea; the tags around its parts are none."""
    return frozenset(_WORD.findall(_TAGS.sub(" ", text).lower()))


@dataclass(frozen=True)
class Alike:
    """An earlier text, by its place, and how alike it is."""

    place: int
    similarity: float


def earlier_alike(
    texts: Sequence[str], threshold: float, *, first: int = 0, passed_over: bool = False
) -> Iterator[tuple[int, list[Alike]]]:
    """For each text from `first` on, those before it that are alike, the most alike first.

    `passed_over`: a text that is like an earlier one is not compared with later ones, as if it
    were not there.
    """
    sets = [words(text) for text in texts]
    rarity = _rarity(sets)
    numbers = {word: number for number, word in enumerate(rarity)}
    # As bits of one number, two sets are compared at once.
    bits = [sum(1 << numbers[word] for word in own) for own in sets]
    index: dict[str, list[int]] = defaultdict(list)
    for place, own in enumerate(sets):
        prefix = _prefix(own, rarity, threshold)
        found: list[Alike] = []
        if place >= first:
            near = {other for word in prefix for other in index.get(word, ())}
            found = _alike(place, near, bits, threshold)
            yield place, found
        if not (passed_over and found):
            for word in prefix:
                index[word].append(place)


def _rarity(sets: Iterable[frozenset[str]]) -> dict[str, tuple[int, str]]:
    """The order of words: rare ones first, which few texts share."""
    counts = Counter(word for own in sets for word in own)
    return {word: (count, word) for word, count in counts.items()}


def _prefix(
    own: frozenset[str], rarity: dict[str, tuple[int, str]], threshold: float
) -> list[str]:
    needed = math.ceil(threshold * len(own) - 1e-9)
    ordered = sorted(own, key=rarity.__getitem__)
    return ordered[: len(own) - needed + 1] if own else [""]


def _alike(
    place: int, candidates: Iterable[int], bits: Sequence[int], threshold: float
) -> list[Alike]:
    own = bits[place]
    size, found = own.bit_count(), []
    for other in candidates:
        common = (own & bits[other]).bit_count()
        union = size + bits[other].bit_count() - common
        similarity = common / union if union else 1.0
        if similarity >= threshold - 1e-12:
            found.append(Alike(other, similarity))
    return sorted(found, key=lambda alike: (-alike.similarity, alike.place))
