"""Place hunks whose context is paraphrased, incomplete or invented in part.

A hunk's old lines and the file's lines are two sequences that should share most of a subsequence.
Lines that are equal apart from whitespace are *points*; a *chain* is a rising run of points, its
score the weight of its lines less the cost of what it leaves out on either side. The best chain is
taken only if every other chain that comes near it means the same edits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

from assay.patching.blanks import loosened, place_blanks, settle_blanks
from assay.patching.effort import Effort
from assay.patching.keys import FileText, running, squash
from assay.patching.place import Fit
from assay.patching.types import Hunk

MIN_SCORE = 0.5  # of the old lines' weight
MIN_WORTH = 1.2  # of the lines that stand there, where others are left out between them
MARGIN = 0.12  # by which a rival with another outcome must be worse, of that weight
MAX_MARGIN = 0.9  # in lines: of several hunks written as one, a rival may differ in one only
MAX_LINES = 3_000
MAX_POINTS = 400
MAX_RIVALS = 24
_SIMILAR = 0.55
_JUMP = 1.5  # the most that skipped lines of the file cost: two hunks written as one
_SKIPPED = 0.25  # per line of the file left out
_UNMATCHED = 0.4  # per line of the hunk that does not stand there
_PAIRED = 0.9  # what a line is worth that stands there in other words, its cost given back
_FORBIDDEN = 1e9


class Point(NamedTuple):
    """Old line `i` of the hunk may stand at line `j` of the file, and is worth `worth`."""

    i: int
    j: int
    worth: float


@dataclass(frozen=True)
class _Old:
    """The old side of a hunk: for each line its index in the hunk, key and weight."""

    hunk: Hunk
    index: tuple[int, ...]
    keys: tuple[str, ...]
    weights: tuple[float, ...]
    removed: tuple[bool, ...]

    @property
    def total(self) -> float:
        return sum(self.weights)


@dataclass
class _Chains:
    """Best chains through every point: how good what comes before and after it can be."""

    points: list[Point]
    upto: list[float]
    back: list[int]
    onward: list[float]
    forth: list[int]

    def through(self, p: int) -> float:
        return self.upto[p] + self.onward[p] - self.points[p].worth

    def chain(self, p: int) -> list[Point]:
        before: list[Point] = []
        q = self.back[p]
        while q >= 0:
            before.append(self.points[q])
            q = self.back[q]
        after: list[Point] = []
        q = self.forth[p]
        while q >= 0:
            after.append(self.points[q])
            q = self.forth[q]
        return [*reversed(before), self.points[p], *after]


def aligned_fits(file: FileText, hunk: Hunk, effort: Effort) -> Iterator[Fit]:
    """The best alignment, then every other that comes within MARGIN of it, best first.

    Empty where nothing is good enough. Whoever takes the first must see that the others mean the
    same edits. Raises Exhausted.
    """
    effort.spend(len(hunk.lines))
    if len(hunk.lines) > MAX_LINES:
        return
    # Of a blank line nothing says that its marker is right.
    old = _old_side(file, replace(hunk, lines=tuple(loosened(hunk.lines))))
    points = _points(file, old)
    if not points:
        return
    effort.spend(len(points) ** 2)
    chains = _all_chains(file, old, points)
    ranked = sorted(range(len(points)), key=chains.through, reverse=True)
    best = chains.through(ranked[0])
    seen: set[tuple[Point, ...]] = set()
    for p in ranked:
        score = chains.through(p)
        if score < best - min(MARGIN * old.total, MAX_MARGIN) or len(seen) > MAX_RIVALS:
            return
        chain = tuple(chains.chain(p))
        if chain not in seen:
            seen.add(chain)
            fit = _fit(_Pairing(file, old, effort), chain, score)
            if len(seen) == 1 and not _is_evident(file, fit, chain):
                return
            yield fit


def _old_side(file: FileText, hunk: Hunk) -> _Old:
    places = file.places("whitespace")
    index: list[int] = []
    keys: list[str] = []
    weights: list[float] = []
    removed: list[bool] = []
    for k, line in enumerate(hunk.lines):
        if line.mark not in " -":
            continue
        key = squash(line.text)
        index.append(k)
        keys.append(key)
        weights.append(_weight(key, len(places.get(key, ()))))
        removed.append(line.mark == "-")
    return _Old(hunk, tuple(index), tuple(keys), tuple(weights), tuple(removed))


def _weight(key: str, count: int) -> float:
    """How much a line tells: nothing if blank, little if short or common."""
    if not key:
        return 0.0
    words = sum(char.isalnum() for char in key)
    size = 0.2 if words < 3 else 0.6 if words < 6 or key.startswith("#") else 1.0
    return size if count < 4 else size * 0.7


def _points(file: FileText, old: _Old) -> list[Point]:
    """All points, fewest places first kept, in file order; removed lines keep all of theirs."""
    places = file.places("whitespace")
    order = sorted(
        (i for i, key in enumerate(old.keys) if key and key in places),
        key=lambda i: (not old.removed[i], len(places[old.keys[i]])),
    )
    found: list[Point] = []
    for i in order:
        where = places[old.keys[i]]
        if len(found) + len(where) > MAX_POINTS:
            if old.removed[i]:
                return []
            break
        worth = max(old.weights[i], 0.01)
        found += [Point(i, j, worth) for j in where]
    found.sort(key=lambda point: (point.j, point.i))
    return found


def _all_chains(file: FileText, old: _Old, points: list[Point]) -> _Chains:
    costs = _Costs(file, old)
    upto, back = _best(points, costs.before, costs.between)
    mirrored = points[::-1]
    onward, forth = _best(mirrored, costs.after, lambda p, q: costs.between(q, p))
    size = len(points)
    forth_here = [-1 if q < 0 else size - 1 - q for q in forth]
    return _Chains(points, upto, back, onward[::-1], forth_here[::-1])


def _best(
    points: list[Point],
    alone: Callable[[Point], float],
    between: Callable[[Point, Point], float],
) -> tuple[list[float], list[int]]:
    """For each point the best score of a chain that ends there, and the point before it."""
    scores: list[float] = []
    links: list[int] = []
    for p, point in enumerate(points):
        best, link = -alone(point), -1
        for q in range(p):
            # Even for free the step would not be better.
            if scores[q] <= best:
                continue
            score = scores[q] - between(points[q], point)
            if score > best:
                best, link = score, q
        scores.append(best + point.worth)
        links.append(link)
    return scores, links


class _Costs:
    """What a chain pays for lines of the hunk, and of the file, that it leaves out."""

    def __init__(self, file: FileText, old: _Old) -> None:
        self.file = file
        self.old = old
        self.filled = file.filled
        self.missing = running(old.weights)
        self.removed = running(
            1.0 if gone and weight else 0.0
            for gone, weight in zip(old.removed, old.weights, strict=True)
        )
        self.elided = running(map(float, _elided(old)))

    def before(self, point: Point) -> float:
        """Of the first point of a chain."""
        if self.removed[point.i]:
            return _FORBIDDEN
        return _UNMATCHED * self.missing[point.i]

    def after(self, point: Point) -> float:
        """Of the last point of a chain."""
        if self.removed[-1] - self.removed[point.i + 1]:
            return _FORBIDDEN
        return _UNMATCHED * (self.missing[-1] - self.missing[point.i + 1])

    def between(self, one: Point, other: Point) -> float:
        """Of the step from a point to one that lies behind it on both sides."""
        if one.i >= other.i or one.j >= other.j:
            return _FORBIDDEN
        if self.removed[other.i] - self.removed[one.i + 1]:
            return _FORBIDDEN
        cost = _UNMATCHED * (self.missing[other.i] - self.missing[one.i + 1])
        skipped = self.filled[other.j] - self.filled[one.j + 1]
        skipped -= min(skipped, other.i - one.i - 1)  # lines written otherwise
        if self.elided[other.i + 1] == self.elided[one.i + 1]:
            cost += min(_SKIPPED * skipped, _JUMP)
        return cost


def _elided(old: _Old) -> list[bool]:
    """For each old line whether an ellipsis stands right before it."""
    marks = [line.mark for line in old.hunk.lines]
    last = -1
    found = []
    for k in old.index:
        found.append("~" in marks[last + 1 : k])
        last = k
    return found


def _is_evident(file: FileText, fit: Fit, chain: Sequence[Point]) -> bool:
    """Whether enough stands there: short lines prove something only if none is left out between.

    Blank lines that come or go prove nothing, and cannot be told from those that stand there.
    """
    changed = [line for line in fit.hunk.lines if line.mark in "+-"]
    if fit.score < MIN_SCORE or len(chain) < 2:
        return False
    if changed and not any(line.text.strip() for line in changed):
        return False
    standing = {at for at in fit.at if at is not None}
    left_out = (file.lines[j] for j in range(fit.start, fit.end) if j not in standing)
    return sum(point.worth for point in chain) >= MIN_WORTH or not "".join(left_out).strip()


class _Pairing:
    """Pairs the lines between the points of a chain, and around it, where they are much alike."""

    def __init__(self, file: FileText, old: _Old, effort: Effort) -> None:
        self.file = file
        self.old = old
        self.effort = effort
        self.standing = file.keys("whitespace")

    def pairs(self, chain: Sequence[Point]) -> dict[int, int]:
        """For each old line that stands in the file, where."""
        at = {point.i: point.j for point in chain}
        for one, other in pairwise(chain):
            at.update(self._between(one, other))
        at.update(self._outward(chain[0], -1))
        at.update(self._outward(chain[-1], 1))
        return at

    def _between(self, one: Point, other: Point) -> Iterator[tuple[int, int]]:
        """One for one, where as many lines are left on both sides."""
        inner, outer = range(one.i + 1, other.i), range(one.j + 1, other.j)
        filled = [i for i in inner if self.old.keys[i]]
        standing = [j for j in outer if self.standing[j]]
        if len(filled) == len(standing):
            for i, j in zip(filled, standing, strict=True):
                if self._alike(i, j):
                    yield i, j
        if len(inner) == len(outer):
            for i, j in zip(inner, outer, strict=True):
                if not self.old.keys[i] and not self.standing[j]:
                    yield i, j

    def _outward(self, point: Point, step: int) -> Iterator[tuple[int, int]]:
        """On from a chain's end for as long as the lines on both sides are alike."""
        i, j = point.i + step, point.j + step
        while 0 <= i < len(self.old.keys):
            while self.old.keys[i] and 0 <= j < len(self.standing) and not self.standing[j]:
                j += step  # blank lines say nothing
            if not 0 <= j < len(self.standing) or not self._alike(i, j):
                return
            yield i, j
            i, j = i + step, j + step

    def _alike(self, i: int, j: int) -> bool:
        told, real = self.old.keys[i], self.standing[j]
        if told == real:
            return True
        if not told or not real or self.old.removed[i]:
            return False
        if told.startswith("#") and real.startswith("#"):
            return True
        self.effort.spend(300)
        matcher = SequenceMatcher(None, told[:200], real[:200], autojunk=False)
        return matcher.quick_ratio() >= _SIMILAR and matcher.ratio() >= _SIMILAR


def _fit(pairing: _Pairing, chain: Sequence[Point], score: float) -> Fit:
    old = pairing.old
    where: list[int | None] = [None] * len(old.hunk.lines)
    certain = {point.i for point in chain}
    for i, j in pairing.pairs(chain).items():
        where[old.index[i]] = j
        if i not in certain:
            score += _PAIRED * old.weights[i]
    score /= old.total
    place_blanks(pairing.file, old.hunk, where, pairing.effort)
    hunk, at = settle_blanks(old.hunk, where)
    return Fit(hunk, at, "aligned", max(0.001, min(1.0, round(score, 3))))
