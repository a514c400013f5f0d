"""Wrong, empty and missing hunk headers."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Mode, on_some_hunks
from benchmarks.patching.model import Document, Hunk, Section


def _numbers(hunk: Hunk) -> tuple[int, int, int, int]:
    return hunk.old_start + 1, hunk.count("+"), hunk.new_start + 1, hunk.count("-")


def _with(hunk: Hunk, a: int, b: int, c: int, d: int) -> Hunk:
    return replace(hunk, header=f"@@ -{max(a, 1)},{max(b, 0)} +{max(c, 1)},{max(d, 0)} @@")


def _wrong_start(random: Random, hunk: Hunk) -> Hunk | None:
    a, b, c, d = _numbers(hunk)
    shift = random.choice([-40, -12, -7, -3, -1, 1, 2, 5, 12, 33, 150])
    if a + shift < 1:
        shift = abs(shift)
    return _with(hunk, a + shift, b, c + shift, d)


def _wrong_counts(random: Random, hunk: Hunk) -> Hunk | None:
    a, b, c, d = _numbers(hunk)
    less = random.choice([-2, -1, 1, 2, 3, 6])
    more = random.choice([-3, -1, 1, 4])
    return _with(hunk, a, b + less, c, d + more)


def _all_one(_random: Random, hunk: Hunk) -> Hunk | None:
    _, b, _, d = _numbers(hunk)
    return _with(hunk, 1, b, 1, d)


def _printed(header: str | None) -> object:
    def change(_random: Random, hunk: Hunk) -> Hunk | None:
        return replace(hunk, header=header)

    return on_some_hunks(change, every=True)


def _placeholders(random: Random, document: Document) -> Document | None:
    header = random.choice(
        [
            "@@ ... @@",
            "@@ -?,? +?,? @@",
            "@@ -XX,YY +XX,YY @@",
            "@@ -N,M +N,M @@",
            "@@ -,+ @@",
            "@@ @@",
        ]
    )
    return _printed(header)(random, document)  # type: ignore[operator,no-any-return]


def _enclosing(section: Section, hunk: Hunk) -> str | None:
    """The definition that a hunk's first change stands in, as git would name it."""
    at = next((row.at for row in hunk.rows if row.mark != " "), None)
    for line in reversed(section.base.lines[: at or 0]):
        if re.match(r"\s*(async def|def|class)\s", line) and line.rstrip().endswith(":"):
            return line.strip()
    return None


def _function_only(random: Random, document: Document) -> Document | None:
    form = random.choice(["@@ {} @@", "@@ {}", "@@ {}"])
    found = False
    for index, section in enumerate(document.sections):
        if section.action != "edit":
            continue
        hunks = []
        for hunk in section.hunks:
            name = _enclosing(section, hunk)
            found = found or name is not None
            hunks.append(replace(hunk, header=form.format(name) if name else "@@"))
        document = document.with_section(index, replace(section, hunks=tuple(hunks)))
    return document if found else None


def _fused(random: Random, document: Document) -> Document | None:
    """Two hunks of a file under the header of the first."""
    spots = [
        (index, number)
        for index, section in enumerate(document.sections)
        if section.action == "edit"
        for number in range(len(section.hunks) - 1)
    ]
    if not spots:
        return None
    index, number = random.choice(spots)
    section = document.sections[index]
    first, second = section.hunks[number : number + 2]
    merged = replace(first, rows=(*first.rows, *second.rows)).recounted()
    if random.random() < 0.4:
        merged = replace(merged, header=first.header)
    hunks = (*section.hunks[:number], merged, *section.hunks[number + 2 :])
    return document.with_section(index, replace(section, hunks=hunks))


MODES = (
    Mode("wrong_start", "header", on_some_hunks(_wrong_start, every=True)),
    Mode("wrong_counts", "header", on_some_hunks(_wrong_counts, every=True)),
    Mode("all_minus_one", "header", on_some_hunks(_all_one, every=True)),
    Mode("bare_header", "header", _printed("@@")),  # type: ignore[arg-type]
    Mode("placeholder_header", "header", _placeholders),
    Mode("function_only", "header", _function_only, Wish(only_python=True)),
    Mode("missing", "header", _printed(None)),  # type: ignore[arg-type]
    Mode("fused", "header", _fused, Wish(edits=(2, 4), only_python=True)),
)
