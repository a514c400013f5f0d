"""Small diffs by hand."""

from __future__ import annotations

from random import Random

from benchmarks.patching.changes import Wish, true_edit
from benchmarks.patching.model import Case, Document, Tree

EDIT = Wish(files=(1, 1), edits=(1, 2), plain=True, only_python=True)


def case(base: Tree, answer: str, *protected: str, symlinks: dict[str, str] | None = None) -> Case:
    return Case("must_refuse", (), base, answer, None, protected, symlinks or {})


def unified(
    path: str, rows: list[str], header: str = "@@", *, old: str = "a/", new: str = "b/"
) -> str:
    return "\n".join([f"--- {old}{path}", f"+++ {new}{path}", header, *rows]) + "\n"


def creation(path: str, lines: list[str]) -> str:
    rows = [f"+{line}" for line in lines]
    return "\n".join(["--- /dev/null", f"+++ {path}", f"@@ -0,0 +1,{len(rows)} @@", *rows]) + "\n"


def block(path: str, search: list[str], replace: list[str]) -> str:
    return "\n".join(
        [
            path,
            "```python",
            "<<<<<<< SEARCH",
            *search,
            "=======",
            *replace,
            ">>>>>>> REPLACE",
            "```",
            "",
        ]
    )


def envelope(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def an_edit(random: Random, wish: Wish = EDIT) -> Document | None:
    """A clean edit of one Python file."""
    document = true_edit(random, wish)
    if document is None or document.sections[0].action != "edit":
        return None
    return document


def wrapped(random: Random, answer: str) -> str:
    """As it is, or in the wrapper that answers usually have."""
    if random.random() < 0.5:
        return answer
    return f"Here is the change:\n\n```diff\n{answer}```\n\nNothing else is needed.\n"
