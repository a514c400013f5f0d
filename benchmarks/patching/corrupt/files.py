"""New, deleted and renamed files, as models write them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from benchmarks.patching.changes import Wish
from benchmarks.patching.corrupt.mode import Corruption, Mode
from benchmarks.patching.model import Action, Document, Section


def _on(action: Action, change: object) -> Corruption:
    def apply(random: Random, document: Document) -> Document | None:
        for index, section in enumerate(document.sections):
            if section.action == action:
                changed: Section | None = change(random, section)  # type: ignore[operator]
                return None if changed is None else document.with_section(index, changed)
        return None

    return apply


def _without_null(random: Random, section: Section) -> Section | None:
    """Both names are the new file's."""
    names = (f"a/{section.path}", f"b/{section.path}")
    if random.random() < 0.3:
        names = (section.path, section.path)
    return replace(section, names=names, git=None, meta=())


def _wrong_count(random: Random, section: Section) -> Section | None:
    hunk = section.hunks[0]
    count = len(hunk.rows) + random.choice([-5, -2, -1, 1, 3, 10])
    start = random.choice(["-0,0", "-0,0", "-1,0"])
    return replace(section, hunks=(replace(hunk, header=f"@@ {start} +1,{max(count, 1)} @@"),))


def _no_header(_random: Random, section: Section) -> Section | None:
    return replace(section, hunks=(replace(section.hunks[0], header=None),))


def _bare_blanks(_random: Random, section: Section) -> Section | None:
    """Blank lines of the new file have no plus."""
    hunk = section.hunks[0]
    rows = tuple(replace(row, bare=not row.text) for row in hunk.rows)
    return None if rows == hunk.rows else replace(section, hunks=(replace(hunk, rows=rows),))


def _git_delete(random: Random, document: Document) -> Document | None:
    """Git's header says it; the lines of the file are not repeated."""
    with_names = random.random() < 0.5

    def change(section: Section) -> Section:
        git = (f"a/{section.path}", f"b/{section.path}")
        if section.action != "delete":
            return replace(section, git=git)
        meta: tuple[str, ...] = ("deleted file mode 100644",)
        if with_names:
            meta += (f"--- a/{section.path}", "+++ /dev/null")
        return replace(section, hunks=(), git=git, meta=meta, names=(None, None))

    if not any(section.action == "delete" for section in document.sections):
        return None
    return document.over_sections(change)


def _delete_counts(random: Random, section: Section) -> Section | None:
    hunk = section.hunks[0]
    wrong = len(hunk.rows) + random.choice([-4, -1, 2, 7])
    return replace(section, hunks=(replace(hunk, header=f"@@ -1,{max(wrong, 1)} +0,0 @@"),))


def _no_similarity(_random: Random, section: Section) -> Section | None:
    """`rename from` and `rename to` alone, with no index and no likeness."""
    meta = (f"rename from {section.path}", f"rename to {section.new_path}")
    return replace(section, meta=meta)


_CREATE = Wish(operation="create", style="none")
_DELETE = Wish(operation="delete", style="none")
_RENAME = Wish(operation="rename_edit", style="none", edits=(1, 2))

MODES = (
    Mode("new_file", "file", _on("create", lambda _random, section: section), _CREATE),
    Mode("new_without_null", "file", _on("create", _without_null), _CREATE),
    Mode("new_wrong_count", "file", _on("create", _wrong_count), _CREATE),
    Mode("new_no_header", "file", _on("create", _no_header), _CREATE),
    Mode("new_bare_blanks", "file", _on("create", _bare_blanks), _CREATE),
    Mode("delete", "file", _on("delete", lambda _random, section: section), _DELETE),
    Mode("delete_git_only", "file", _git_delete, _DELETE),
    Mode("delete_wrong_count", "file", _on("delete", _delete_counts), _DELETE),
    Mode("rename", "file", _on("rename", lambda _random, section: section), _RENAME),
    Mode("rename_bare", "file", _on("rename", _no_similarity), _RENAME),
)
