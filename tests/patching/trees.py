"""Trees drawn at random, edits of them, and what the patcher makes of an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import assume
from hypothesis import strategies as st

from assay.patching import PatchRefused, RefusalCode, apply_answer
from tests.support.patching.python import parses

Tree = dict[str, str]

#: Statements that may follow one another at any place, so that every mixture of them parses.
STATEMENTS = [
    "import math\n",
    "RATE = 0.1\n",
    "RATE = 0.2\n",
    "steps += 1\n",
    "\n",
    "\n",
    "# a comment\n",
    "print(f'{RATE}')\n",
    "@cache\ndef warm(step):\n    rate = RATE\n    return rate\n\n\n",
    "def cool(step):\n    rate = RATE\n    return rate\n\n\n",
    "class Model:\n    width = 8\n\n    def forward(self, x):\n        return x\n\n\n",
    "for i in range(3):\n    steps += 1\n",
    "if RATE:\n    steps += 1\nelse:\n    steps -= 1\n",
    'text = """\n--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-x\n+y\n"""\n',
    "def stub() -> None: ...\n",
    "    \n",
    "\x0c\n",
]
PROGRAM = st.lists(st.sampled_from(STATEMENTS), max_size=9).map("".join)
#: Lines of other files; some look like parts of a diff, some hold what ends a line elsewhere.
ODD = ["a", "b", "", " ", "  x", "-- a", "++ b", "@@", "+", "-", "```", "=======", "\\ No",
       "x\x0cy", "x\u2028y", "x\x85y", "x\x1cy", "x\ry", "\ufeffx", "é", "\t1",
       "diff --git"]  # fmt: skip
ODD_LINES = st.lists(st.sampled_from(ODD), max_size=12)
#: Torn markers of another notation are refused wherever they stand, also in a file's own lines.
ANY_LINES = st.lists(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0\n"), max_size=12
    ).filter(lambda line: not re.search("<<<<<|>>>>>", line)),
    max_size=8,
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A text in any style of newlines, with or without a mark at its start and a line end."""
    lines = draw(st.one_of(ODD_LINES, ODD_LINES, ANY_LINES))
    style = draw(st.sampled_from(["\n", "\n", "\r\n", "\r", "mixed"]))
    ends = ["\n", "\r\n", "\r"] if style == "mixed" else [style]
    body = "".join(line + draw(st.sampled_from(ends)) for line in lines)
    bare = draw(st.booleans()) and not body.endswith("\r")
    return draw(st.sampled_from(["", "", "\ufeff"])) + (body.rstrip("\n") if bare else body)


TREE = st.fixed_dictionaries(
    {},
    optional={
        "train.py": PROGRAM,
        "pkg/model.py": PROGRAM.map(lambda text: text.replace("\n", "\r\n")),
        "notes.txt": texts(),
        "a/list.txt": texts(),
        "with a space.md": texts(),
    },
)


#: Names that differ by what a diff puts in front of names.
NAMESAKES = st.dictionaries(
    st.sampled_from(["list.txt", "a/list.txt", "b/list.txt"]), texts(), max_size=3
)


@st.composite
def edits(draw: st.DrawFn, trees: st.SearchStrategy[Tree] = TREE) -> tuple[Tree, Tree]:
    """A tree, and the tree after a few pieces of its files were moved, added or taken away."""
    before = draw(trees)
    after = dict(before)
    for name, text in before.items():
        kind = draw(st.sampled_from(["same", "lines", "lines", "other", "gone"]))
        if kind == "lines":
            after[name] = draw(_changed_text(name, text))
        elif kind == "other":
            after[name] = draw(PROGRAM if name.endswith(".py") else texts())
        elif kind == "gone":
            del after[name]
    if draw(st.booleans()):
        after["new.txt"] = draw(texts())
    assume(before != after)
    return before, after


@st.composite
def _changed_text(draw: st.DrawFn, name: str, text: str) -> str:
    if name.endswith(".py"):
        more = draw(st.sampled_from(STATEMENTS))
        end = "\r\n" if "\r\n" in text else "\n"
        return draw(
            st.sampled_from([more.replace("\n", end) + text, text + more.replace("\n", end)])
        )
    lines = re.split("(?<=\n)", text)
    at = draw(st.integers(0, len(lines)))
    new = draw(st.sampled_from(ODD)) + "\n"
    return "".join([*lines[:at], new, *lines[at + draw(st.integers(0, 2)) :]])


def breaks_python(before: Tree, after: Tree) -> bool:
    """Whether a right patcher refuses, because a Python file parsed and would not any more."""
    return any(
        name.endswith(".py") and parses(before.get(name, "")) and not parses(text)
        for name, text in after.items()
    )


def outcome(tree: Tree, answer: str, protected: Sequence[str] = ()) -> Tree | RefusalCode:
    """The patched tree, or why there is none."""
    try:
        return apply_answer(tree, answer, protected=protected).files
    except PatchRefused as refusal:
        return refusal.code
