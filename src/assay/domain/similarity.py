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
from hashlib import sha256
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

    number: int
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
        self._groups: dict[bytes, _Group] = {}
        #: The groups that have a word, in the order in which they were added.
        self._having: dict[int, list[_Group]] = defaultdict(list)
        #: How many groups have so many words.
        self._sizes: Counter[int] = Counter()
        self._of_place: dict[int, _Group] = {}
        self._places = 0
        self._words = 0

    def __len__(self) -> int:
        return len(self._of_place)

    def bytes(self) -> int:
        """About how much memory it takes."""
        return (
            _BYTES_OF_TEXT * len(self)
            + _BYTES_OF_WORD * self._words
            + _BYTES_OF_NEW_WORD * len(self._numbers)
        )

    def add(self, text: str, own: Iterable[str] | None) -> int:
        """Add a text, which has these words (see `read`), and return its place."""
        place = self._places
        self._places += 1
        known = self._numbers
        numbers = array("I", sorted([known.setdefault(word, len(known)) for word in own or ()]))
        key = _key(text, None if own is None else numbers)
        group = self._groups.get(key)
        if group is None:
            group = _Group(len(self._groups), numbers, _sketch(numbers))
            self._groups[key] = group
            self._words += len(numbers)
            self._sizes[len(numbers)] += 1
            for number in numbers:
                self._having[number].append(group)
        group.places.append(place)
        self._of_place[place] = group
        return place

    def drop(self, places: Iterable[int]) -> None:
        """Forget the texts at these places, if they are there."""
        for place in places:
            if (group := self._of_place.pop(place, None)) is not None:
                group.places = [each for each in group.places if each != place]

    def alike(
        self, text: str, own: Collection[str] | None, threshold: float, most: int, effort: Effort
    ) -> list[Alike]:
        """The texts that are most like one that has these words, at most so many; of texts that
        are equally alike, the earlier ones.

        Once `effort` has no steps left, only texts with the same words are found.
        """
        known = [self._numbers[word] for word in own or () if word in self._numbers]
        same = None
        if own is None or len(known) == len(own):
            numbers = None if own is None else array("I", sorted(known))
            same = self._groups.get(_key(text, numbers))
        found = [Alike(place, 1.0) for place in (same.places[:most] if same else ())]
        if own and len(found) < most:  # no other group has all the words, so none is as alike
            least = _Least(most - len(found), threshold)
            for group, similarity in self._alike_groups(known, len(own), same, least, effort):
                found += [Alike(place, similarity) for place in group.places[:most]]
        found.sort(key=lambda alike: (-alike.similarity, alike.place))
        return found[:most]

    def _alike_groups(
        self, known: list[int], size: int, same: _Group | None, least: _Least, effort: Effort
    ) -> Iterator[tuple[_Group, float]]:
        """Groups other than `same`, earlier ones first, that are as alike as they must be to be
        among the most alike. Of a text of `size` words, these are `known`."""
        bounds = {
            other: _most_alike(size, other)
            for other in tuple(self._sizes)
            if _most_alike(size, other) >= least.similarity
        }
        best = max(bounds.values(), default=0.0)
        mask, words = _sketch(known), frozenset(known)
        for group in self._candidates(known, size, least.similarity):
            if least.is_reached and least.similarity >= best:
                return
            if group is same or not group.places:
                continue
            if not effort.compare(_SKETCH_STEPS):
                return
            other = len(group.words)
            if not least.admits(bounds.get(other, 0.0)):
                continue
            # A bit that only one of two sketches has is at least one word that only its set has.
            common = min(
                len(known) - (mask & ~group.sketch).bit_count(),
                other - (group.sketch & ~mask).bit_count(),
            )
            if not least.admits(common / (size + other - common)):
                continue
            if not effort.compare(min(size, other)):
                return
            common = sum(map(words.__contains__, group.words))
            similarity = common / (size + other - common)
            if least.admits(similarity):
                least.take(similarity, len(group.places))
                yield group, similarity

    def _candidates(self, known: list[int], size: int, threshold: float) -> Iterator[_Group]:
        """The groups that have one of the rarest words, without those that cannot be alike."""
        prefix = size - math.ceil(threshold * size - 1e-9) + 1
        # Words that no text has are the rarest.
        having = (self._having.get(number, []) for number in known)
        rarest = heapq.nsmallest(max(0, prefix - (size - len(known))), having, key=len)
        last = None
        for group in heapq.merge(*rarest, key=attrgetter("number")):
            if group is not last:
                yield group
            last = group


class _Least:
    """How alike a text must be to be among the `most` that are most alike, given those before it:
    at least `similarity`, or more than it once so many are."""

    def __init__(self, most: int, threshold: float) -> None:
        self.similarity = threshold - 1e-12
        self.is_reached = False
        self._most = most
        self._heap: list[float] = []

    def admits(self, similarity: float) -> bool:
        return similarity > self.similarity if self.is_reached else similarity >= self.similarity

    def take(self, similarity: float, texts: int) -> None:
        """Count a group of so many texts that are as alike."""
        for _ in range(min(texts, self._most)):
            heapq.heappush(self._heap, similarity)
        while len(self._heap) > self._most:
            heapq.heappop(self._heap)
        if len(self._heap) == self._most:
            self.similarity, self.is_reached = self._heap[0], True


def _most_alike(size: int, other: int) -> float:
    """How alike sets of so many words can be that are not the same."""
    if size == other:
        return (size - 1) / (size + 1)
    return min(size, other) / max(size, other)


def _key(text: str, numbers: array[int] | None) -> bytes:
    """The same for the same words; of a text whose words were not read, its own."""
    if numbers is None:
        return b"text " + sha256(text.encode(errors="surrogatepass")).digest()
    return b"words " + sha256(numbers.tobytes()).digest()


def _sketch(numbers: Iterable[int]) -> int:
    digits = bytearray(b"0" * _SKETCH_BITS)
    for number in numbers:
        digits[number % _SKETCH_BITS] = ord("1")
    return int(digits, 2)
