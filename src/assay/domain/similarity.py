"""How alike two ideas are: Jaccard similarity of their words (appendix A.1 of the paper).

|A ∩ B| / |A ∪ B| over the sets of lower-case words, numbers among them. Texts at or above a
threshold are found without comparing with all: a set of similarity t or more with A has one of
any |A| - ⌈t·|A|⌉ + 1 words of A, so that those with one of the rarest are enough (prefix
filtering: Chaudhuri et al., ICDE 2006; Bayardo et al., WWW 2007). Texts with the same words are
one group, which is compared once.

Texts can be written so that these filters exclude nothing, so the work is counted and limited.
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter

_WORD = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|\w+")
_TAGS = re.compile(r"\[(?:experiment|code changes|end)\]", re.IGNORECASE)
#: Bits of a sketch. Ideas of a few hundred words leave about half of them empty.
_SKETCH_BITS = 1024
#: Comparing two sketches takes as long as about so many steps of reading an index.
_SKETCH_STEPS = 5
#: What a corpus takes, as measured with tracemalloc: for a text, for each word of it, and for a
#: word that no text had before.
_BYTES_OF_TEXT, _BYTES_OF_WORD, _BYTES_OF_NEW_WORD = 1000, 14, 280


def words(text: str) -> frozenset[str]:
    """Return the set of words of an idea, without the tags around its parts."""
    return frozenset(_ordered_words(text))


def _ordered_words(text: str) -> list[str]:
    # In the order of the text: that of a set of strings differs between processes.
    return list(dict.fromkeys(_WORD.findall(_TAGS.sub(" ", text).lower())))


@dataclass(frozen=True)
class Alike:
    """A text, by its place in its corpus, and how alike it is."""

    place: int
    similarity: float


@dataclass
class Effort:
    """How much work reading and comparing may still do; both count it down.

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


def read(texts: Sequence[str], effort: Effort) -> dict[str, list[str] | None]:
    """Split texts into their words, the last ones first; None once `effort` is used up.

    A text that was not read is alike only to the same text.
    """
    found: dict[str, list[str] | None] = {}
    for text in reversed(texts):
        if text not in found:
            found[text] = _ordered_words(text) if effort.read(len(text)) else None
    return found


@dataclass(eq=False, slots=True)
class _Group:
    """Texts with the same words, or the same text if its words were not read."""

    #: That of its first text, also after it was dropped.
    first: int
    #: As numbers; one set of them takes ten times as much memory.
    words: array[int]
    #: One bit for each word. Several words may share a bit.
    sketch: int
    #: Places of the texts, ascending; none if all of them were dropped.
    places: list[int] = field(default_factory=list)


class Corpus:
    """Texts among which alike ones are found. Each has a place: 0, 1, … in the order of adding.

    One thread at a time may change it; others may look for alike texts meanwhile.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._by_words: dict[bytes, _Group] = {}
        self._by_text: dict[bytes, _Group] = {}
        #: The groups that have a word, in the order in which they were added.
        self._having: dict[int, list[_Group]] = defaultdict(list)
        #: How many groups have so many words.
        self._sizes: Counter[int] = Counter()
        self._of_place: dict[int, _Group] = {}
        self._words = 0
        #: How many texts were added, also those that were dropped.
        self.added = 0

    def bytes(self) -> int:
        """About how much memory it takes."""
        return (
            _BYTES_OF_TEXT * self.added
            + _BYTES_OF_WORD * self._words
            + _BYTES_OF_NEW_WORD * len(self._numbers)
        )

    def add(self, text: str, own: Iterable[str] | None) -> int:
        """Add a text, which has these words (see `read`), and return its place."""
        place = self.added
        self.added += 1
        group = self._group(text, own, place)
        group.places.append(place)
        self._of_place[place] = group
        return place

    def _group(self, text: str, own: Iterable[str] | None, place: int) -> _Group:
        if own is None:
            return self._by_text.setdefault(_digest(text), _Group(place, array("I"), 0))
        known = self._numbers
        numbers = array("I", sorted([known.setdefault(word, len(known)) for word in own]))
        key = _digest(numbers.tobytes())
        group = self._by_words.get(key)
        if group is None:
            group = self._by_words[key] = _Group(place, numbers, _sketch(numbers))
            self._words += len(numbers)
            self._sizes[len(numbers)] += 1
            for number in numbers:
                self._having[number].append(group)
        self._by_text.setdefault(_digest(text), group)
        return group

    def drop(self, places: Iterable[int]) -> None:
        """Forget the texts at these places, if they are there."""
        found = {place: self._of_place.pop(place, None) for place in places}
        for group in dict.fromkeys(found.values()):
            if group is not None:
                group.places = [place for place in group.places if place not in found]

    def alike(
        self, text: str, own: Collection[str] | None, threshold: float, most: int, effort: Effort
    ) -> list[Alike]:
        """The texts that are most like one that has these words, at most so many; of texts that
        are equally alike, the earlier ones.

        Once `effort` has no steps left, only texts with the same words are found.
        """
        known = [self._numbers[word] for word in own or () if word in self._numbers]
        same = [self._by_text.get(_digest(text))]
        if own is not None and len(known) == len(own):
            same.append(self._by_words.get(_digest(array("I", sorted(known)).tobytes())))
        best = _Best(most, threshold - 1e-12)
        for group in dict.fromkeys(same):
            if group is not None:
                best.take(1.0, group.places)
        # No other group has all the words, so none is as alike.
        if own and best.admits(_most_alike(len(own), len(own) + 1), 0):
            self._compare(known, len(own), best, effort)
        return best.found()

    def _compare(self, known: list[int], size: int, best: _Best, effort: Effort) -> None:
        """Take the texts that are most like one of `size` words, of which these are known."""
        bounds = {other: _most_alike(size, other) for other in tuple(self._sizes)}
        bounds = {other: bound for other, bound in bounds.items() if bound >= best.threshold}
        most_alike = max(bounds.values(), default=0.0)
        mask, words = _sketch(known), frozenset(known)
        for group in self._candidates(known, size, best.threshold, effort):
            if not best.admits(most_alike, group.first):
                return  # nor any of the others, which were added later
            if not effort.compare(_SKETCH_STEPS):
                return
            other, places = len(group.words), group.places
            if not places or not best.admits(bounds.get(other, 0.0), places[0]):
                continue
            # A bit that only one of two sketches has is at least one word that only its set has.
            common = min(
                len(known) - (mask & ~group.sketch).bit_count(),
                other - (group.sketch & ~mask).bit_count(),
            )
            if not best.admits(common / (size + other - common), places[0]):
                continue
            if not effort.compare(min(size, other)):
                return
            common = sum(map(words.__contains__, group.words))
            if common < max(size, other):  # else it has the same words
                best.take(common / (size + other - common), places)

    def _candidates(
        self, known: list[int], size: int, threshold: float, effort: Effort
    ) -> Iterator[_Group]:
        """The groups that have one of the rarest words, without those that cannot be alike, in
        the order in which they were added."""
        prefix = size - math.ceil(threshold * size - 1e-9) + 1
        # Words that no text has are the rarest.
        having = (self._having.get(number, []) for number in known)
        rarest = heapq.nsmallest(max(0, prefix - (size - len(known))), having, key=len)
        last = None
        for group in heapq.merge(*rarest, key=attrgetter("first")):
            if not effort.compare(1):
                return
            if group is not last:
                yield group
            last = group


class _Best:
    """The texts that are most alike, at most so many, and at least `threshold`."""

    def __init__(self, most: int, threshold: float) -> None:
        self.threshold = threshold
        self._most = most
        #: Similarity and negative place: the least alike first, of equal ones the last.
        self._heap: list[tuple[float, int]] = []

    def admits(self, similarity: float, place: int) -> bool:
        """Whether a text that is so much alike would be among them."""
        if similarity < self.threshold:
            return False
        return len(self._heap) < self._most or (similarity, -place) > self._heap[0]

    def take(self, similarity: float, places: Sequence[int]) -> None:
        """Take those of equally alike texts that are among them."""
        for place in places[: self._most]:
            if self.admits(similarity, place):
                heapq.heappush(self._heap, (similarity, -place))
                if len(self._heap) > self._most:
                    heapq.heappop(self._heap)

    def found(self) -> list[Alike]:
        return [
            Alike(-place, similarity) for similarity, place in sorted(self._heap, reverse=True)
        ]


def _most_alike(size: int, other: int) -> float:
    """How alike sets of so many words can be that are not the same."""
    if size == other:
        return (size - 1) / (size + 1)
    return min(size, other) / max(size, other)


def _digest(of: str | bytes) -> bytes:
    encoded = of if isinstance(of, bytes) else of.encode(errors="surrogatepass")
    return blake2b(encoded, digest_size=16).digest()


def _sketch(numbers: Iterable[int]) -> int:
    digits = bytearray(b"0" * _SKETCH_BITS)
    for number in numbers:
        digits[number % _SKETCH_BITS] = ord("1")
    return int(digits, 2)
