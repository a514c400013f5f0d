"""Answers whose text is wrong: invented, contradictory, empty, with gaps, cut off, too large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.patching import phrases, sources
from benchmarks.patching.edits import read_source
from benchmarks.patching.lines import indent_of, squash
from benchmarks.patching.model import Case, Hunk, Row
from benchmarks.patching.refuse.write import (
    EDIT,
    an_edit,
    block,
    case,
    creation,
    envelope,
    unified,
    wrapped,
)
from benchmarks.patching.render import render
from tests.support.patching.python import parses

PLACEHOLDERS = (
    "# ... rest of the function unchanged ...", "# ... existing code ...",
    "# (rest of the code remains the same)", "# ... rest of the file unchanged",
    "# ... unchanged ...",
    "# [rest of the code stays the same]", "# ... keep the existing implementation ...",
)  # fmt: skip


def _known(text: str) -> set[str]:
    return {squash(line) for line in text.split("\n") if line.strip()}


def _absent(random: Random) -> Case | None:
    """A hunk for a file that looks different: the answer of another tree."""
    document = an_edit(random)
    tree = sources.some_tree(random)
    path = random.choice(sorted(path for path in tree if path.endswith(".py")))
    if document is None or tree[path] in document.base.values():
        return None
    hunk = document.sections[0].hunks[0]
    known = _known(tree[path])
    old = [squash(row.text) for row in hunk.rows if row.old and row.text.strip()]
    if len(old) < 3 or sum(text in known for text in old) > 0.25 * len(old):
        return None
    return case(
        tree,
        wrapped(random, unified(path, [row.printed() for row in hunk.rows], hunk.header or "@@")),
    )


def _on_rows(
    change: Callable[[Random, list[Row], set[str]], list[Row] | None],
) -> Callable[[Random], Case | None]:
    """A maker that damages the rows of a real hunk."""

    def maker(random: Random) -> Case | None:
        document = an_edit(random, replace(EDIT, edits=(1, 1)))
        if document is None or len(document.sections[0].hunks) != 1:
            return None
        section = document.sections[0]
        rows = change(random, list(section.hunks[0].rows), _known(str(section.base)))
        if rows is None:
            return None
        hunk = replace(section.hunks[0], rows=tuple(rows)).recounted()
        document = document.with_section(0, replace(section, hunks=(hunk,)))
        return case(document.base, wrapped(random, render(document)))

    return maker


def _absent_removed(random: Random, rows: list[Row], known: set[str]) -> list[Row] | None:
    """What is to be replaced was never there, in the middle of true context."""
    spots = [n for n, row in enumerate(rows) if row.mark == "-" and row.text.strip()]
    if not spots or len(spots) > 2 or not any(row.mark == "+" for row in rows):
        return None
    for at in spots:
        text = indent_of(rows[at].text) + phrases.statement(random)
        if squash(text) in known:
            return None
        rows[at] = replace(rows[at], text=text)
    return rows


def _absent_context(random: Random, rows: list[Row], known: set[str]) -> list[Row] | None:
    """New lines between neighbours that nobody wrote."""
    if any(row.mark == "-" for row in rows):
        return None
    made = []
    for row in rows:
        text = indent_of(row.text) + phrases.statement(random)
        if row.mark == " " and row.text.strip():
            row = replace(row, text=text)
            if squash(text) in known:
                return None
        made.append(row)
    return made


def _contradictory(random: Random) -> Case | None:
    """Two hunks that make different things of the same line."""
    document = an_edit(random, replace(EDIT, edits=(1, 1)))
    if document is None or len(document.sections[0].hunks) != 1:
        return None
    section = document.sections[0]
    hunk = section.hunks[0]
    removed = [row for row in hunk.rows if row.mark == "-"]
    added = [n for n, row in enumerate(hunk.rows) if row.mark == "+" and row.text.strip()]
    if not removed or not added:
        return None
    at = random.choice(added)
    text = indent_of(hunk.rows[at].text) + phrases.statement(random)
    rows = [*hunk.rows[:at], replace(hunk.rows[at], text=text), *hunk.rows[at + 1 :]]
    if random.random() < 0.3:
        rows = [row for row in hunk.rows if row.mark != "+"]
    other = replace(hunk, rows=tuple(rows)).recounted()
    changed = replace(section, hunks=(hunk, other))
    return case(document.base, wrapped(random, render(document.with_section(0, changed))))


def _some_file(random: Random) -> tuple[dict[str, str], str, list[str], int]:
    """A tree, a Python file of it, its lines, and a place inside."""
    tree = sources.some_tree(random)
    path = random.choice(sorted(path for path in tree if path.endswith(".py")))
    lines = tree[path].split("\n")
    return tree, path, lines, random.randrange(2, len(lines) - 5)


def _empty(random: Random) -> Case | None:
    tree, path, _, _ = _some_file(random)
    answer = random.choice(
        [
            "", "\n\n", "I cannot implement this idea with the given codebase.", "```diff\n```\n",
            f"--- a/{path}\n+++ b/{path}\n", f"diff --git a/{path} b/{path}\n", envelope(),
            envelope(f"*** Update File: {path}"), "No changes are needed.\n",
            "```python\nprint(1)\n```\n",
            f"--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,1 @@\n",
        ]
    )  # fmt: skip
    return case(tree, answer)


def _no_op(random: Random) -> Case | None:
    """Hunks that change nothing."""
    tree, path, lines, at = _some_file(random)
    run = lines[at : at + 3]
    if not run[1].strip():
        return None
    context = [f" {line}" for line in run]
    pair = [context[0], f"-{run[1]}", f"+{run[1]}", context[2]]
    answers = [
        unified(path, context, f"@@ -{at + 1},3 +{at + 1},3 @@"),
        unified(path, pair, f"@@ -{at + 1},3 +{at + 1},3 @@"),
        block(path, run, run),
        envelope(f"*** Update File: {path}", "@@", *pair),
    ]
    return case(tree, random.choice(answers))


def _statements(random: Random, tree: dict[str, str]) -> tuple[str, int, int, int] | None:
    """A path, and a run of whole statements in it: start, end of the first, stop."""
    path = random.choice(sorted(path for path in tree if path.endswith(".py")))
    found = []
    for function in read_source(tree[path]).functions:
        body = function.body[1:]
        for first in range(len(body) - 2):
            start, stop = body[first].lineno - 1, body[-1].end_lineno or 0
            if 5 <= stop - start <= 25:
                found.append((start, body[first].end_lineno or 0, stop))
    return (path, *random.choice(found)) if found else None


def _placeholder(random: Random) -> Case | None:
    """Statements go, and a remark comes for what should have been repeated.

    The result would parse: nothing but the remark tells that code is missing.
    """
    tree = sources.some_tree(random)
    found = _statements(random, tree)
    if found is None:
        return None
    path, start, first, stop = found
    lines = tree[path].split("\n")
    run, indent = lines[start:stop], indent_of(lines[start])
    new = [
        *lines[start:first],
        f"{indent}{phrases.statement(random)}",
        f"{indent}{random.choice(PLACEHOLDERS)}",
    ]
    if not parses("\n".join([*lines[:start], *new, *lines[stop:]])):
        return None
    rows = [*(f"-{line}" for line in run), *(f"+{line}" for line in new)]
    if random.random() < 0.3:
        return case(tree, block(path, run, new))
    header = f"@@ -{start + 1},{len(run)} +{start + 1},{len(new)} @@"
    return case(tree, wrapped(random, unified(path, rows, header)))


def _placeholder_file(random: Random) -> Case | None:
    tree, _, _, _ = _some_file(random)
    lines = phrases.new_file(random).split("\n")[:-1]
    lines = [*lines[:6], random.choice(PLACEHOLDERS)]
    return case(tree, wrapped(random, creation("b/extra_model.py", lines)))


def _cut(random: Random) -> Case | None:
    """The answer ends in the middle of a line, and what is left cannot be meant."""
    document = an_edit(random)
    if document is None or len(document.sections[0].hunks) != 1:
        return None
    section = document.sections[0]
    hunk: Hunk = section.hunks[0]
    spots = [
        n for n, row in enumerate(hunk.rows) if row.mark != " " and len(row.text.strip()) > 12
    ]
    if not spots:
        return None
    at = random.choice(spots)
    row = hunk.rows[at]
    kept = row.text[: len(indent_of(row.text)) + random.randint(4, len(row.text.strip()) - 5)]
    # A shorter statement could be meant; brackets or quotes that stay open cannot.
    whole = parses(kept.strip()) or parses(kept.strip() + "\n    pass")
    if whole or (row.mark == "-" and squash(kept) in _known(str(section.base))):
        return None
    header = hunk.header or "@@"
    rows = [each.printed() for each in hunk.rows[:at]]
    answer = unified(section.path, [*rows, row.mark + kept], header).rstrip("\n")
    if row.mark == "+" and _still_parses(section.base.lines, hunk, at, kept):
        return None
    return case(document.base, random.choice(["", "```diff\n"]) + answer)


def _still_parses(base: tuple[str, ...], hunk: Hunk, at: int, kept: str) -> bool:
    """Whether the file would parse with the cut line in its place."""
    lines = list(base[: hunk.old_start])
    for number, row in enumerate(hunk.rows[: at + 1]):
        if row.mark != "-":
            lines.append(kept if number == at else row.text)
    used = sum(row.old for row in hunk.rows[: at + 1])
    return parses("\n".join([*lines, *base[hunk.old_start + used :]]))


def _cut_block(random: Random) -> Case | None:
    """A SEARCH/REPLACE block or an envelope without its end."""
    tree, path, lines, at = _some_file(random)
    run = lines[at : at + 4]
    if not all(line.strip() for line in run):
        return None
    whole = block(path, run, [*run[:2], f"{indent_of(run[1])}scores = [1, 2,"])
    return case(tree, whole[: whole.index(">>>>>>> REPLACE")])


def _large(random: Random) -> Case | None:
    """More than ten million characters."""
    tree, path, lines, at = _some_file(random)
    size = 11_000_000
    shape = random.randrange(3)
    if shape == 0:
        return case(tree, creation("b/table.py", ["value = 1"] * (size // 10)))
    if shape == 1:
        return case(tree, unified(path, [f" {lines[at]}", "+x = '" + "a" * size + "'"]))
    return case(
        tree, unified(path, [f" {lines[0]}", "+x = 1"]) + "padding of the answer\n" * (size // 22)
    )


MAKERS: dict[str, Callable[[Random], Case | None]] = {
    "absent": _absent,
    "absent_removed": _on_rows(_absent_removed),
    "absent_context": _on_rows(_absent_context),
    "contradictory": _contradictory,
    "empty": _empty,
    "no_op": _no_op,
    "placeholder": _placeholder,
    "placeholder_file": _placeholder_file,
    "cut_off": _cut,
    "cut_off_block": _cut_block,
    "oversize": _large,
}
