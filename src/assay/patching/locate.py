"""Place all hunks of a file together: on the original lines, and where they fit only later."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from assay.patching import log
from assay.patching.align import aligned_fits
from assay.patching.cut import is_torn
from assay.patching.done import adds_left_out, stands_already
from assay.patching.effort import Effort, Exhausted
from assay.patching.keys import FileText
from assay.patching.place import MAX_PLACES, STRICT, Fit, contiguous_fits, places_of
from assay.patching.reading import Reading, read_fit
from assay.patching.scope import inside_scope
from assay.patching.types import Hunk, PatchRefused, RefusalCode
from assay.patching.weave import Doubt, Taken, apply_edits

_LOOK = 5  # steps of effort to look for a hunk in a file, besides those for its lines
_COMPARED = 8  # places that are looked at for the hunk's result: with more it is ambiguous
_EXPLAINED = 5  # hunks whose nearest lines a patch log shows


@dataclass(frozen=True)
class Placed:
    """Where hunk `index` (from 1) went; `late` if only on the result of the others."""

    index: int
    reading: Reading
    late: bool


@dataclass
class Outcome:
    """A file after its hunks."""

    lines: list[str]
    placed: list[Placed]
    # Where the indentation of new lines is open, the other results it allows.
    others: list[list[str]]


@dataclass
class _State:
    """One round of placing: the text it works on, and what was decided on it."""

    file: FileText
    taken: Taken = field(default_factory=Taken)
    readings: list[Reading] = field(default_factory=list)


class Locator:
    """Places the hunks of one file.

    Every hunk is looked for on the original lines first, so that the order in which an answer
    gives its hunks does not matter; what fits nowhere there is looked for on the result of the
    rest, all of a round at once.
    """

    def __init__(self, path: str, file: FileText, hunks: Sequence[Hunk], effort: Effort) -> None:
        self.path = path
        self.original = file
        self.hunks = {index: hunk for index, hunk in enumerate(hunks, 1) if hunk.lines}
        self.effort = effort
        self.placed: list[Placed] = []
        self.open = list(self.hunks)
        self.failures: dict[int, tuple[RefusalCode, str]] = {}

    def outcome(self) -> Outcome:
        """Return the file after its hunks.

        Raises PatchRefused if any hunk has no place, or more than one, Exhausted if finding out
        takes too much work.
        """
        state = _State(self.original)
        self._refuse_at_once()
        self._contiguous(state, late=False)
        late = self._rounds(state)
        self._aligned(late, late=late is not state)
        # What was aligned may be what others were written against.
        later = self._rounds(late)
        if later is not late:
            self._aligned(later, late=True)
        late = later
        for index in list(self.open):
            self._fail_unplaced(index)
        if self.failures:
            raise self._refusal()
        lines = apply_edits(late.file.lines, late.taken.edits)
        placed = sorted(self.placed, key=lambda p: p.index)
        return Outcome(lines, placed, list(_others(late, self.effort)))

    def _rounds(self, state: _State) -> _State:
        """Place on the result of others what fits there exactly, until nothing more does."""
        while self.open and not self.failures:
            self.effort.spend(len(state.file.lines) // 3)
            after = _State(FileText(apply_edits(state.file.lines, state.taken.edits)))
            before = len(self.open)
            self._contiguous(after, late=True)
            if len(self.open) == before:
                return state
            state = after
        return state

    def _refuse_at_once(self) -> None:
        """Hunks that hold on to no line of the file, or that are the torn end of an answer."""
        for index, hunk in self.hunks.items():
            if hunk.cut != "no" and not hunk.changes:
                self._fail(index, RefusalCode.TRUNCATED, log.truncated(self.path, index))
            elif not hunk.old and self.original.lines:
                if self._is_result(hunk):
                    self._fail_as_done(index)
                else:
                    self._fail(index, RefusalCode.AMBIGUOUS, log.unanchored(self.path, index))

    # One hunk after the other

    def _contiguous(self, state: _State, *, late: bool) -> None:
        """Place what stands line for line."""
        several: dict[int, list[Reading]] = {}
        for index in list(self.open):
            hunk = self.hunks[index]
            self.effort.spend(_LOOK + len(hunk.lines))
            # What was written against the state after others was copied from the answer.
            fits = contiguous_fits(state.file, hunk, self.effort, STRICT if late else None)
            if not fits:
                continue
            several[index] = self._readings(state.file, index, fits)
            if not any(line.mark in "+-" for line in hunk.lines):
                # All it can say is how the file ends.
                at_end = [r for r in several[index] if r.fit.end == len(state.file.lines)]
                several[index] = at_end or several[index]
        self._decide(state, several, late=late)

    def _readings(self, file: FileText, index: int, fits: Iterable[Fit]) -> list[Reading]:
        found: list[Reading] = []
        for fit in fits:
            try:
                found.append(read_fit(file, fit, self.effort))
                if len(found) <= _COMPARED and stands_already(file, found[-1], self.effort):
                    self._fail_as_done(index)
            except Doubt as doubt:
                self._fail(index, RefusalCode.NO_MATCH, log.doubt(self.path, index, doubt.why))
        return found

    def _decide(self, state: _State, several: dict[int, list[Reading]], *, late: bool) -> None:
        """Take the hunks that have one place; drop, for the others, places taken by different
        edits; go on until nothing changes. What is left then is ambiguous."""
        several = {index: several[index] for index in several if index in self.open}
        for index in [i for i in several if self._is_done_in_scope(state.file, i, several[i])]:
            del several[index]
            self._fail_as_done(index)
        progress = True
        while several and progress:
            progress = False
            for index, readings in list(several.items()):
                self.effort.spend(_comparing(state.file, readings))
                left = self._free(state, index, readings)
                distinct = _distinct(state.file.lines, left)
                if len(distinct) == 1 or (not left and len(readings) == 1):
                    progress = True
                    del several[index]
                    self._take(state, index, (distinct or readings)[0], late=late)
        self._twins(state, several, late=late)
        for index, readings in several.items():
            hunk = self.hunks[index]
            starts = [reading.fit.start for reading in readings]
            # For the definition that the hunk names, or those around the first places.
            self.effort.spend(len(state.file.lines) if hunk.scope else sum(starts[:8]) // 10)
            scoped = inside_scope(state.file.lines, hunk.scope, starts)
            if len(scoped) == 1:
                self._take(state, index, readings[scoped[0]], late=late)
            else:
                fits = [reading.fit for reading in readings]
                text = log.ambiguous(self.path, index, hunk, state.file.lines, fits)
                self._fail(index, RefusalCode.AMBIGUOUS, text)

    def _free(self, state: _State, index: int, readings: list[Reading]) -> list[Reading]:
        """The places that no other hunk has changed otherwise.

        A hunk whose nearest place is taken may be a second version of the one there: nothing but
        the line it claims tells, so that it must be near to one that is free.
        """
        left = [reading for reading in readings if not state.taken.conflicts(reading.edits)]
        if not left or len(left) == len(readings):
            return left
        claimed = self.hunks[index].start
        if not claimed:
            return readings
        nearest = min(readings, key=lambda reading: abs(reading.fit.start + 1 - claimed))
        return left if nearest in left else readings

    def _is_done_in_scope(self, file: FileText, index: int, readings: Sequence[Reading]) -> bool:
        """Whether the definition that a hunk names holds its new lines, and not its old ones."""
        hunk = self.hunks[index]
        if not hunk.scope or not "".join(hunk.new).strip():
            return False
        self.effort.spend(len(file.lines))
        old = [reading.fit.start for reading in readings]
        new = places_of(file, "whitespace", hunk.new, self.effort)
        return not inside_scope(file.lines, hunk.scope, old) and bool(
            inside_scope(file.lines, hunk.scope, new)
        )

    def _twins(self, state: _State, several: dict[int, list[Reading]], *, late: bool) -> None:
        """Equal hunks that claim different lines, as many as there are places: one for each."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for index in several:
            groups.setdefault(self.hunks[index].lines, []).append(index)
        for members in groups.values():
            readings = several[members[0]]
            starts = {self.hunks[index].start for index in members}
            if len(members) < 2 or len(starts) != len(members) or len(readings) != len(members):
                continue
            members.sort(key=lambda index: self.hunks[index].start or 0)
            for index, reading in zip(members, readings, strict=True):
                del several[index]
                self._take(state, index, reading, late=late)

    def _take(self, state: _State, index: int, reading: Reading, *, late: bool) -> None:
        if state.taken.conflicts(reading.edits):
            self._fail(index, RefusalCode.CONFLICT, log.conflict(self.path, index))
            return
        hunk = self.hunks[index]
        if is_torn(hunk, reading.fit, state.file):
            self._fail(index, RefusalCode.TRUNCATED, log.truncated(self.path, index))
            return
        state.taken.add(reading.edits)
        state.readings.append(reading)
        self.placed.append(Placed(index, reading, late))
        self.open.remove(index)

    # What does not stand line for line

    def _aligned(self, state: _State, *, late: bool) -> None:
        if self.failures:
            return
        for index in list(self.open):
            hunk = self.hunks[index]
            if self._new_stands(self.original, hunk):
                continue
            try:
                readings = self._near(state, index, hunk)
            except Exhausted:
                self._fail(index, RefusalCode.TOO_LARGE, log.too_much(self.path, index))
                continue
            if readings and stands_already(state.file, readings[0], self.effort):
                self._fail_as_done(index)
            elif readings:
                self._decide(state, {index: readings}, late=late)

    def _near(self, state: _State, index: int, hunk: Hunk) -> list[Reading]:
        """The best alignment and its rivals; none if the best leaves the result open."""
        found: list[Reading] = []
        for fit in aligned_fits(state.file, hunk, self.effort):
            try:
                found.append(read_fit(state.file, fit, self.effort))
            except Doubt as doubt:
                if not found:
                    self._fail(index, *self._doubtful(state.file, index, fit, doubt))
                    return []
        return found

    def _doubtful(
        self, file: FileText, index: int, fit: Fit, doubt: Doubt
    ) -> tuple[RefusalCode, str]:
        hunk = self.hunks[index]
        if self._new_stands(file, hunk) or adds_left_out(file, fit):
            return RefusalCode.ALREADY_APPLIED, log.already_applied(self.path, index)
        text = self._no_match(index, file)
        return RefusalCode.NO_MATCH, f"{text}\n({doubt.why})"

    def _new_stands(self, file: FileText, hunk: Hunk) -> bool:
        new = hunk.new
        return bool("".join(new).strip()) and bool(places_of(file, "whitespace", new, self.effort))

    def _is_result(self, hunk: Hunk) -> bool:
        """Whether the file is, or holds, what the hunk makes."""
        return hunk.new == self.original.lines or self._new_stands(self.original, hunk)

    # Refusals

    def _fail_as_done(self, index: int) -> None:
        self._fail(index, RefusalCode.ALREADY_APPLIED, log.already_applied(self.path, index))

    def _fail(self, index: int, code: RefusalCode, text: str) -> None:
        self.failures.setdefault(index, (code, text))
        if index in self.open:
            self.open.remove(index)

    def _fail_unplaced(self, index: int) -> None:
        if self._is_result(self.hunks[index]):
            self._fail_as_done(index)
        else:
            self._fail(index, RefusalCode.NO_MATCH, self._no_match(index, self.original))

    def _no_match(self, index: int, file: FileText) -> str:
        if len(self.failures) >= _EXPLAINED:
            return log.nowhere(self.path, index)
        return log.no_match(self.path, index, self.hunks[index], file.lines)

    def _refusal(self) -> PatchRefused:
        texts = [self.failures[index] for index in sorted(self.failures)]
        return PatchRefused(texts[0][0], "\n\n".join(text for _, text in texts))


def _comparing(file: FileText, readings: Sequence[Reading]) -> int:
    """The steps of effort that telling readings apart takes."""
    edits = 3 * sum(len(reading.edits) for reading in readings)
    if 1 < len(readings) <= MAX_PLACES:
        return edits + len(readings) * len(file.lines) // 16
    return edits


def _distinct(lines: list[str], readings: list[Reading]) -> list[Reading]:
    """Readings with different outcomes; equal ones count once (one of two equal lines goes)."""
    if len(readings) < 2 or len(readings) > MAX_PLACES:
        return readings
    outcomes: dict[tuple[str, ...], Reading] = {}
    for reading in readings:
        outcomes.setdefault(tuple(apply_edits(lines, reading.edits)), reading)
    return list(outcomes.values())


def _others(state: _State, effort: Effort) -> Iterable[list[str]]:
    """The results if the indentation of one hunk is read otherwise."""
    for reading in state.readings:
        for version in reading.versions[1:]:
            effort.spend(len(state.taken.edits) * len(reading.edits) + len(state.file.lines) // 16)
            edits = [edit for edit in state.taken.edits if edit not in reading.edits]
            yield apply_edits(state.file.lines, [*edits, *version])
