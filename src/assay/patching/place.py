"""Find where a hunk's old lines stand one after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.patching.blanks import with_blanks, without_edges
from assay.patching.effort import Effort
from assay.patching.keys import CONTIGUOUS, FileText
from assay.patching.types import Hunk, Tier

# More places than this are not told apart: the hunk is refused as ambiguous.
MAX_PLACES = 64
_COMPARED = 100  # lines that are compared in one step of effort
# Tiers at which the old lines stand as written, but for what stands behind them.
STRICT: tuple[Tier, ...] = ("exact", "trailing_whitespace")


@dataclass(frozen=True)
class Fit:
    """One reading of where a hunk goes.

    `hunk` is the hunk as read (blank lines without a marker decided on), `at` the file's line for
    each of its lines, None for lines that do not stand in the file.
    """

    hunk: Hunk
    at: tuple[int | None, ...]
    tier: Tier
    score: float = 1.0

    @property
    def start(self) -> int:
        """The first of the file's lines that the hunk holds on to."""
        return next((i for i in self.at if i is not None), 0)

    @property
    def end(self) -> int:
        """One behind the last of them."""
        return 1 + next((i for i in reversed(self.at) if i is not None), -1)


def contiguous_fits(
    file: FileText, hunk: Hunk, effort: Effort, tiers: Sequence[Tier] | None = None
) -> list[Fit]:
    """All places at the strictest tier that has any; a tie never falls through to a looser one.

    Before whitespace is left out of account, blank lines at the hunk's edges are: an answer may
    have one too many there, and the same lines may stand elsewhere at another depth.

    Raises Exhausted.
    """
    hunks = list(with_blanks(hunk))
    bare = without_edges(hunks[0]) if hunks else None
    keys = dict(CONTIGUOUS)
    strict: list[tuple[Tier, list[Hunk]]] = [(tier, hunks) for tier in STRICT]
    edged: list[tuple[Tier, list[Hunk]]] = [(tier, [bare]) for tier in STRICT if bare is not None]
    loose: list[tuple[Tier, list[Hunk]]] = [(t, hunks) for t in keys if t not in STRICT]
    for tier, candidates in [*strict, *edged, *loose]:
        if tiers is not None and tier not in tiers:
            continue
        found: list[Fit] = []
        for one in candidates:
            old = [keys[tier](text) for text in one.old]
            found += [_straight(one, start, tier) for start in _starts(file, tier, old, effort)]
        if found:
            return found
    return []


def places_of(file: FileText, tier: Tier, texts: Sequence[str], effort: Effort) -> list[int]:
    """Where lines stand one after the other, at most MAX_PLACES + 1 of them. Raises Exhausted."""
    key = dict(CONTIGUOUS)[tier]
    return list(_starts(file, tier, [key(text) for text in texts], effort))


def _starts(file: FileText, tier: Tier, old: Sequence[str], effort: Effort) -> Iterator[int]:
    size = len(old)
    keys = file.keys(tier)
    if not size:
        # Lines without any context have one place in an empty file, and any place in another.
        yield from range(min(len(keys) + 1, 2))
        return
    places = file.places(tier)
    if any(text not in places for text in old):
        return
    rarest = min(range(size), key=lambda i: len(places[old[i]]))
    found = 0
    for at in places[old[rarest]]:
        start = at - rarest
        effort.spend(1 + size // _COMPARED)
        if start >= 0 and keys[start : start + size] == old:
            yield start
            found += 1
            if found > MAX_PLACES:
                return


def _straight(hunk: Hunk, start: int, tier: Tier) -> Fit:
    at: list[int | None] = []
    for line in hunk.lines:
        if line.mark == "+":
            at.append(None)
        else:
            at.append(start)
            start += 1
    return Fit(hunk, tuple(at), tier)
