"""How alike two ideas are: Jaccard similarity of their words (appendix A.1 of the paper).

|A ∩ B| / |A ∪ B| over the sets of lower-case words, numbers among them. Pairs at or above a
threshold are found without comparing all of them: two sets of similarity t or more share a word
among the rarest |A| - ⌈t·|A|⌉ + 1 words of each (prefix filtering: Chaudhuri et al., ICDE 2006;
Bayardo et al., WWW 2007). Texts with the same words are one group, which is compared once.

Texts can be written so that these filters exclude nothing, so the work is counted and limited.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_WORD = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|\w+")
_TAGS = re.compile(r"\[(?:experiment|code changes|end)\]", re.IGNORECASE)
#: Bits of a sketch. Ideas of a few hundred words leave about half of them empty.
_SKETCH_BITS = 1024
#: Comparing two sketches takes as long as about so many steps of reading an index.
_SKETCH_STEPS = 5


def words(text: str) -> frozenset[str]:
    """Return the set of words of an idea, without the tags around its parts."""
    return frozenset(_ordered_words(text))


def _ordered_words(text: str) -> list[str]:
    # In the order of the text: that of a set of strings differs between processes.
    return list(dict.fromkeys(_WORD.findall(_TAGS.sub(" ", text).lower())))


@dataclass(frozen=True)
class Alike:
    """An earlier text, by its place, and how alike it is."""

    place: int
    similarity: float


@dataclass
class Effort:
    """How much work a search for alike texts may still do; the search counts it down.

    Counted, not timed, so that the same texts always give the same answer. The defaults are a
    few seconds of one core: more than 5,000 earlier ideas of 150 words and 1,000 new ones need.
    """

    #: Characters of distinct texts to split into words.
    characters: int = 8_000_000
    #: Entries of the index to read and words to compare.
    steps: int = 10_000_000

    def read(self, characters: int) -> bool:
        """Take so many characters; False, and nothing is taken, if fewer are left."""
        if characters > self.characters:
            return False
        self.characters -= characters
        return True

    def compare(self, steps: int) -> bool:
        """Take so many steps; False, and nothing is taken, if fewer are left."""
        if steps > self.steps:
            return False
        self.steps -= steps
        return True


@dataclass(eq=False)
class _Group:
    """Texts with the same words, or the same text if its words were not read."""

    words: frozenset[int] = frozenset()
    #: The words that an alike group shares at least one of, rarest first.
    prefix: list[int] = field(default_factory=list)
    #: One bit for each word. Several words may share a bit.
    sketch: int = 0
    #: Places of the texts to compare later ones with, ascending.
    places: list[int] = field(default_factory=list)


def earlier_alike(
    texts: Sequence[str],
    threshold: float,
    *,
    most: int,
    first: int = 0,
    passed_over: bool = False,
    effort: Effort | None = None,
) -> Iterator[tuple[int, list[Alike]]]:
    """For each text from `first` on, those before it that are alike, the most alike first.

    `most`: at most so many are returned for each text.
    `passed_over`: a text that is like an earlier one is not compared with later ones, as if it
    were not there.
    `effort`: how much work may be done. The last texts are read first. A text that was not read is
    alike only to the same text. Once comparing has taken all its steps, only texts with the same
    words are alike.
    """
    effort = effort or Effort()
    groups = _groups(texts, threshold, effort)
    index: dict[int, list[_Group]] = defaultdict(list)
    for place, text in enumerate(texts):
        group = groups[text]
        found: list[Alike] = []
        if place >= first:
            found = _alike(group, index, threshold, most, effort)
            yield place, found
        if passed_over and found:
            continue
        if not group.places:
            for word in group.prefix:
                index[word].append(group)
        group.places.append(place)


def _groups(texts: Sequence[str], threshold: float, effort: Effort) -> dict[str, _Group]:
    """The group of each text."""
    split: dict[str, list[str]] = {}
    groups: dict[str, _Group] = {}
    for text in reversed(texts):
        if text in split or text in groups:
            continue
        if effort.read(len(text)):
            split[text] = _ordered_words(text)
        else:
            groups[text] = _Group()
    counts = Counter(word for own in split.values() for word in own)
    # Rare words first, which few texts share.
    ranks = {word: rank for rank, word in enumerate(sorted(counts, key=counts.__getitem__))}
    by_words: dict[frozenset[int], _Group] = {}
    for text, own in split.items():
        numbers = frozenset([ranks[word] for word in own])
        if numbers not in by_words:
            by_words[numbers] = _Group(numbers, _prefix(numbers, threshold), _sketch(numbers))
        groups[text] = by_words[numbers]
    return groups


def _prefix(own: frozenset[int], threshold: float) -> list[int]:
    needed = math.ceil(threshold * len(own) - 1e-9)
    return heapq.nsmallest(len(own) - needed + 1, own) if own else []


def _sketch(own: frozenset[int]) -> int:
    digits = bytearray(b"0" * _SKETCH_BITS)
    for word in own:
        digits[word % _SKETCH_BITS] = ord("1")
    return int(digits, 2)


def _alike(
    group: _Group, index: dict[int, list[_Group]], threshold: float, most: int, effort: Effort
) -> list[Alike]:
    """The places that are most like a group, among those that were added to the index."""
    found = [(-1.0, place) for place in group.places[:most]]
    if len(found) < most:  # no other group has all the words, so none of them is as alike
        for other, similarity in _alike_groups(group, index, threshold, effort):
            found += [(-similarity, place) for place in other.places[:most]]
    return [Alike(place, -negative) for negative, place in heapq.nsmallest(most, found)]


def _alike_groups(
    group: _Group, index: dict[int, list[_Group]], threshold: float, effort: Effort
) -> Iterator[tuple[_Group, float]]:
    # A dictionary, as the order of objects in a set differs between processes.
    near: dict[_Group, None] = {}
    for word in group.prefix:
        entries = index.get(word, ())
        if not effort.compare(len(entries)):
            break
        near.update(dict.fromkeys(entries))
    near.pop(group, None)
    size, least = len(group.words), threshold - 1e-12
    for other in near:
        if not effort.compare(_SKETCH_STEPS):
            return
        other_size = len(other.words)
        # A bit that only one of two sketches has is at least one word that only its set has.
        common = min(
            size - (group.sketch & ~other.sketch).bit_count(),
            other_size - (other.sketch & ~group.sketch).bit_count(),
        )
        if common < least * (size + other_size - common):
            continue
        if not effort.compare(min(size, other_size)):
            return
        common = len(group.words & other.words)
        similarity = common / (size + other_size - common)
        if similarity >= least:
            yield other, similarity
