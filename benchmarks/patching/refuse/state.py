"""Answers for another state of the tree: reversed, already applied, over what exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.patching import phrases, sources
from benchmarks.patching.changes import Wish
from benchmarks.patching.lines import squash
from benchmarks.patching.model import Case, Document, Hunk
from benchmarks.patching.refuse.write import (
    EDIT,
    an_edit,
    block,
    case,
    creation,
    envelope,
    wrapped,
)
from benchmarks.patching.render import render


def _fits(hunk: Hunk, lines: tuple[str, ...]) -> bool:
    """Whether the old side stands in the file as it is printed."""
    old = [squash(row.text) for row in hunk.rows if row.old]
    have = [squash(line) for line in lines]
    return any(have[at : at + len(old)] == old for at in range(len(have) - len(old) + 1))


def _reversed(random: Random) -> Case | None:
    document = an_edit(random)
    if document is None:
        return None
    swap = {"+": "-", "-": "+", " ": " "}

    def turn(hunk: Hunk) -> Hunk:
        rows = tuple(replace(row, mark=swap[row.mark]) for row in hunk.rows)  # type: ignore[arg-type]
        return replace(hunk, rows=rows).recounted()

    turned = document.over_sections(lambda section: section.over_hunks(turn))
    # A removal turned round is an insertion; where its neighbours meet, it would be a fair one.
    if all(_fits(hunk, turned.sections[0].base.lines) for hunk in turned.sections[0].hunks):
        return None
    return case(document.base, wrapped(random, render(turned)))


def _applied(wish: Wish, wanted: Callable[[Document], bool]) -> Callable[[Random], Case | None]:
    """The answer for a tree that has it already."""

    def maker(random: Random) -> Case | None:
        document = an_edit(random, wish)
        if document is None or not wanted(document):
            return None
        return case(document.target, wrapped(random, render(document)))

    return maker


def _refits(document: Document) -> bool:
    """Whether every hunk would fit a second time, white space aside."""
    section = document.sections[0]
    return all(_fits(hunk, section.target.lines) for hunk in section.hunks)


def _whole(document: Document) -> bool:
    return not _refits(document)


def _insert_only(document: Document) -> bool:
    rows = [row for hunk in document.sections[0].hunks for row in hunk.rows]
    return all(row.mark != "-" for row in rows) and not _refits(document)


def _reindented(document: Document) -> bool:
    return document.kinds[0] in ("wrap", "unwrap")


def _one_sided(random: Random) -> Case | None:
    """Insertions whose context ends with them: their old side still stands in the new file."""
    document = an_edit(random, replace(EDIT, edits=(1, 1)))
    if document is None or not _insert_only(document):
        return None
    section = document.sections[0]
    if len(section.hunks) != 1:
        return None
    hunk = section.hunks[0]
    last = hunk.changed[-1]
    short = replace(hunk, rows=hunk.rows[: last + 1]).recounted()
    added = [row.text for row in hunk.rows if row.mark == "+" and row.text.strip()]
    contiguous = hunk.changed == list(range(hunk.changed[0], last + 1))
    if len(added) < 2 or not contiguous or hunk.changed[0] < 2:
        return None
    document = document.with_section(0, replace(section, hunks=(short,)))
    return case(document.target, wrapped(random, render(document)))


def _applied_block(random: Random) -> Case | None:
    """A SEARCH/REPLACE block that was applied: SEARCH is the start of what REPLACE made of it."""
    document = an_edit(random, replace(EDIT, edits=(1, 1)))
    if document is None or _refits(document):
        return None
    section = document.sections[0]
    document = document.with_layout(style="search_replace", language="python")
    return case({**document.base, section.path: str(section.target)}, render(document))


def _overwrite(random: Random) -> Case | None:
    """A new file where another one stands."""
    tree = sources.some_tree(random)
    path = random.choice(sorted(tree))
    lines = phrases.new_file(random).split("\n")[:-1]
    answers = [
        wrapped(random, creation(f"b/{path}", lines)),
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n" + creation(f"b/{path}", lines),
        block(path, [], lines),
        envelope(f"*** Add File: {path}", *(f"+{line}" for line in lines)),
    ]
    return case(tree, random.choice(answers))


def _rename_onto(random: Random) -> Case | None:
    tree = sources.some_tree(random)
    paths = sorted(tree)
    if len(paths) < 2:
        return None
    old, new = random.sample(paths, 2)
    git = (
        f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
    )
    return case(
        tree, random.choice([git, envelope(f"*** Update File: {old}", f"*** Move to: {new}")])
    )


def _delete_other(random: Random) -> Case | None:
    """A file that is deleted with a content that it does not have."""
    tree = sources.some_tree(random)
    path = random.choice(sorted(tree))
    rows = [f"-{line}" for line in phrases.new_file(random).split("\n")[:-1]]
    head = [f"--- a/{path}", "+++ /dev/null", f"@@ -1,{len(rows)} +0,0 @@"]
    return case(tree, wrapped(random, "\n".join([*head, *rows, ""])))


def _unknown(random: Random) -> Case | None:
    """An edit of a file that is not there."""
    document = an_edit(random)
    if document is None:
        return None
    path = f"missing_{random.choice(phrases.NAMES)}.py"
    answer = render(document).replace(document.sections[0].path, path)
    return case(document.base, wrapped(random, answer))


_INSERTS = replace(EDIT, edits=(1, 1))

MAKERS: dict[str, Callable[[Random], Case | None]] = {
    "reversed": _reversed,
    "already_applied": _applied(EDIT, _whole),
    "already_applied_insert": _applied(_INSERTS, _insert_only),
    "already_applied_one_sided": _one_sided,
    "already_applied_indent": _applied(_INSERTS, _reindented),
    "already_applied_block": _applied_block,
    "overwrite": _overwrite,
    "rename_onto": _rename_onto,
    "delete_other_content": _delete_other,
    "unknown_file": _unknown,
}
