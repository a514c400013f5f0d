"""A diff as structure: files, hunks and marked lines that know their true places.

Corruptions change what is printed; the true places stay, and the proof reads both. `Hunk` and
`Section` are those of true edits, not those of `assay.patching`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.patching.lines import Change, Text, changes

Tree = dict[str, str]
Action = Literal["edit", "create", "delete", "rename"]


@dataclass(frozen=True)
class Row:
    """One line of a hunk.

    `at` is the base line that it is (of an old line), or before which it comes to stand (of an
    added line); None where it stands for no line. `true` is the line in base or target, `bare`
    whether the marker column is missing, `open_end` whether "No newline" follows.
    """

    mark: Literal[" ", "-", "+"]
    text: str
    at: int | None
    true: str
    note: Literal["", "invented", "elided", "after"] = ""
    bare: bool = False
    open_end: bool = False

    @property
    def old(self) -> bool:
        return self.mark != "+"

    def printed(self) -> str:
        return self.text if self.bare else self.mark + self.text


@dataclass(frozen=True)
class Hunk:
    """Rows, and the header that is printed over them; None prints none."""

    rows: tuple[Row, ...]
    old_start: int
    new_start: int
    header: str | None = ""

    def count(self, skipped: str) -> int:
        return sum(row.mark != skipped for row in self.rows)

    def recounted(self) -> Hunk:
        """With the header that git would print for these rows."""
        old, new = self.count("+"), self.count("-")
        # git names the line before where a side has no lines.
        first, second = self.old_start + (old > 0), self.new_start + (new > 0)
        left = f"{first},{old}" if old != 1 else f"{first}"
        right = f"{second},{new}" if new != 1 else f"{second}"
        return replace(self, header=f"@@ -{left} +{right} @@")

    @property
    def changed(self) -> list[int]:
        return [index for index, row in enumerate(self.rows) if row.mark != " "]


@dataclass(frozen=True)
class Section:
    """One file of the diff, with the names as they are printed; `label` is for other formats."""

    action: Action
    path: str
    new_path: str
    base: Text
    target: Text
    hunks: tuple[Hunk, ...]
    names: tuple[str | None, str | None]
    label: str
    git: tuple[str, str] | None = None
    meta: tuple[str, ...] = ()
    header_per_hunk: bool = False
    copies: int = 1
    repeated: tuple[int, int] | None = None

    @property
    def printed(self) -> tuple[Hunk, ...]:
        """The hunks as they are printed: one of them again at a later position, perhaps."""
        if self.repeated is None or not self.hunks:
            return self.hunks
        number, at = self.repeated
        number = min(number, len(self.hunks) - 1)
        at = max(at, number + 1)
        return (*self.hunks[:at], self.hunks[number], *self.hunks[at:])

    def header(self) -> list[str]:
        lines = [f"diff --git {self.git[0]} {self.git[1]}"] if self.git else []
        lines += self.meta
        old, new = self.names
        if self.hunks:
            lines += [f"--- {old}"] * (old is not None) + [f"+++ {new}"] * (new is not None)
        return lines

    def over_hunks(self, change: Callable[[Hunk], Hunk]) -> Section:
        return replace(self, hunks=tuple(change(hunk) for hunk in self.hunks))


@dataclass(frozen=True)
class Layout:
    """How an answer is put around its diff."""

    style: Literal["unified", "search_replace", "v4a"] = "unified"
    fence: Literal["", "whole", "per_file", "per_hunk", "closing"] = ""
    language: str = "diff"
    before: str = ""
    after: str = ""
    between_files: tuple[str, ...] = ()
    between_hunks: tuple[str, ...] = ()
    end_marker: str = ""
    gutter: str = ""
    carriage_returns: bool = False
    stripped: bool = False
    rows_with_returns: bool = True
    final_newline: bool = True


@dataclass(frozen=True)
class Document:
    """A whole answer before it is text, with the trees that it leads from and to."""

    base: Tree
    target: Tree
    sections: tuple[Section, ...]
    layout: Layout = field(default_factory=Layout)
    kinds: tuple[str, ...] = ()

    def over_sections(self, change: Callable[[Section], Section]) -> Document:
        return replace(self, sections=tuple(change(section) for section in self.sections))

    def with_layout(self, **fields: object) -> Document:
        return replace(self, layout=replace(self.layout, **fields))  # type: ignore[arg-type]

    def with_section(self, index: int, section: Section) -> Document:
        sections = [*self.sections[:index], section, *self.sections[index + 1 :]]
        return replace(self, sections=tuple(sections))

    def with_hunk(self, index: int, number: int, *hunks: Hunk) -> Document:
        section = self.sections[index]
        kept = (*section.hunks[:number], *hunks, *section.hunks[number + 1 :])
        return self.with_section(index, replace(section, hunks=kept))


@dataclass(frozen=True)
class Case:
    """One question: `target` is the only right tree, None where only a refusal is right."""

    group: Literal["clean", "single", "pair", "must_refuse", "escape"]
    modes: tuple[str, ...]
    base: Tree
    answer: str
    target: Tree | None
    protected: tuple[str, ...] = ()
    symlinks: dict[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()

    @property
    def mode(self) -> str:
        return " + ".join(self.modes)


def _rows(base: Text, target: Text, group: list[Change], context: int) -> Hunk:
    first, last = group[0], group[-1]
    start, stop = max(0, first.i1 - context), min(len(base.lines), last.i2 + context)
    rows: list[Row] = []

    def keep(i: int, j: int, mark: Literal[" ", "-"] = " ") -> None:
        rows.extend(
            Row(mark, base.lines[n], n, base.lines[n], open_end=base.unterminated(n))
            for n in range(i, j)
        )

    at = start
    for change in group:
        keep(at, change.i1)
        keep(change.i1, change.i2, "-")
        rows.extend(
            Row("+", target.lines[n], change.i2, target.lines[n], open_end=target.unterminated(n))
            for n in range(change.j1, change.j2)
        )
        at = change.i2
    keep(at, stop)
    hunk = Hunk(tuple(rows), start, first.j1 - (first.i1 - start))
    return hunk.recounted()


def cut(base: Text, target: Text, context: int = 3) -> tuple[Hunk, ...]:
    """The hunks of a diff with that many context lines."""
    groups: list[list[Change]] = []
    for change in changes(base, target):
        if groups and change.i1 - groups[-1][-1].i2 <= 2 * context:
            groups[-1].append(change)
        else:
            groups.append([change])
    return tuple(_rows(base, target, group, context) for group in groups)


def _blob(text: Text) -> str:
    body = str(text).encode()
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()[:7]


def section(
    path: str, new_path: str, base: str | None, target: str | None, *, git: bool, context: int = 3
) -> Section:
    """The clean section of one file; None is no file."""
    old, new = Text.of(base or ""), Text.of(target or "")
    action: Action = "edit"
    meta: tuple[str, ...] = ()
    names = (f"a/{path}", f"b/{new_path}")
    if base is None:
        action, meta = "create", ("new file mode 100644", f"index 0000000..{_blob(new)}")
        names = ("/dev/null", names[1])
    elif target is None:
        action, meta = "delete", ("deleted file mode 100644", f"index {_blob(old)}..0000000")
        names = (names[0], "/dev/null")
    elif path != new_path:
        similarity = 100 if base == target else 90
        action = "rename"
        meta = (f"similarity index {similarity}%", f"rename from {path}", f"rename to {new_path}")
    if base is not None and target is not None and base != target:
        meta += (f"index {_blob(old)}..{_blob(new)} 100644",)
    return Section(
        action,
        path,
        new_path,
        old,
        new,
        cut(old, new, context),
        names,
        new_path,
        (f"a/{path}", f"b/{new_path}") if git else None,
        meta if git else (),
    )
