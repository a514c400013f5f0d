"""Combine knob values and recipes into one edit of the codebase, whatever their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assay.llm.offline.knobs import Knob, Recipe
from assay.patching.diff import changes
from assay.patching.text import FileLines, join_file, split_file


@dataclass(frozen=True)
class Splice:
    """Lines `[start, end)` of a baseline file become `lines`."""

    file: str
    start: int
    end: int
    lines: tuple[str, ...]

    def clashes(self, other: "Splice") -> bool:
        """Whether both touch the same lines, or meet where one of them only inserts."""
        if self.file != other.file or self == other:
            return False
        if self.start == self.end or other.start == other.end:
            return max(self.start, other.start) <= min(self.end, other.end)
        return max(self.start, other.start) < min(self.end, other.end)


def knob_splices(files: Mapping[str, str], knob: Knob, value: str) -> list[Splice]:
    """The splice of a knob's value. Raises ValueError if its line does not stand exactly once."""
    lines = split_file(files.get(knob.file, "")).lines
    places = [i for i, line in enumerate(lines) if line == knob.line]
    if len(places) != 1:
        raise ValueError(
            f"knob {knob.name!r}: its line stands {len(places)} times in {knob.file}, not once"
        )
    if value == knob.baseline:
        return []
    at = places[0]
    return [Splice(knob.file, at, at + 1, (knob.line_with(value),))]


def recipe_splices(files: Mapping[str, str], recipe: Recipe) -> list[Splice]:
    """The lines a recipe really changes; lines that search and replace share stay free.

    Raises ValueError if an edit's search text does not stand exactly once.
    """
    splices: list[Splice] = []
    for edit in recipe.edits:
        text = files.get(edit.file, "")
        if text.count(edit.search) != 1 or not edit.search:
            raise ValueError(
                f"recipe {recipe.name!r}: a search text stands {text.count(edit.search)} times "
                f"in {edit.file}, not once"
            )
        old = split_file(text).lines
        new = split_file(text.replace(edit.search, edit.replace)).lines
        splices += [
            Splice(edit.file, c.old_start, c.old_end, tuple(new[c.new_start : c.new_end]))
            for c in changes(old, new)
        ]
    return splices


def combine(files: Mapping[str, str], splices: Sequence[Splice]) -> dict[str, str] | None:
    """The whole tree with all splices, in whatever order, or None if two of them clash."""
    unique = sorted(set(splices), key=lambda s: (s.file, s.start, s.end, s.lines))
    for i, one in enumerate(unique):
        if any(one.clashes(other) for other in unique[i + 1 :]):
            return None
    after = dict(files)
    for file in {splice.file for splice in unique}:
        after[file] = _spliced(split_file(files[file]), [s for s in unique if s.file == file])
    return after


def _spliced(before: FileLines, splices: list[Splice]) -> str:
    lines: list[str] = []
    at = 0
    for splice in splices:
        lines += before.lines[at : splice.start]
        lines += splice.lines
        at = splice.end
    return join_file(lines + before.lines[at:], before.final_newline)
