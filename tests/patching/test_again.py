"""No answer is applied to its own result: what the fuzzer found, and what must go on to apply."""

from __future__ import annotations

import pytest

from assay.patching import PatchRefused, RefusalCode, apply_answer
from tests.support.patching.answers import PROTECTED, SYMLINKS, TREES
from tests.support.patching.invariants import again_problem

#: What an answer has that made it another edit of its own result: the tree, and the answer.
FOUND = {
    "adds a blank line for one of several": (
        2, "@@ -2,2 +30,2 @@\n b\r\r\n a\r\r\n b\r\r\n a\r\r\n-b\r\r\n+\r\r",
    ),
    "names a file that was new": (2, "diff --git a/pkg`model.py model.py\n+12\t\r\r\n12\t\r\r\r"),
    "adds nothing but a blank line without a marker": (
        1,
        '@@\n """A model."""\n \n \n+    width = 8\n\n-width = 8\n     depth = 2\n@@\n ',
    ),
    "a line that looked like prose is now the file's": (
        2, "+++'b/empty.txt\n@@ -1,0 +1,1 @@\n+> \n> ",
    ),
    "removes two of several and adds a blank line": (2, "@@  a\n-a\t\n-b\u2028\t\n+\n \t"),
    "its lines end as all those of the file did": (
        1,
        "*** Update File: train.py\r\n+RATE = 0.001\r\r\n-RATE = 0.001\r\r\n"
        "     return rate * 0.5 * (1 + math.cos(math.pi * step / STEPS))\r\r\n"
        "+class Trainer:\r\r\n\r\r\n-class Trainer:\r\r\n@@\r\n         return loss\r\r\n"
        "*** End Pa",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", FOUND)
def test_what_fits_its_own_result_is_refused(why: str) -> None:
    tree, answer = FOUND[why]
    with pytest.raises(PatchRefused) as caught:
        apply_answer(dict(TREES[tree]), answer, protected=PROTECTED, symlinks=SYMLINKS)
    assert caught.value.code == RefusalCode.AMBIGUOUS
    assert "their own result" in caught.value.log


def diff(*lines: str) -> str:
    return "\n".join(["--- a/n", "+++ b/n", "@@", *lines, ""])


@pytest.mark.parametrize(
    ("before", "answer", "after"),
    [
        ("a\nb\nc\n", diff(" a", "+", " b"), "a\n\nb\nc\n"),
        ("a\nb\nc\n", diff(" a", "-b", "+", " c"), "a\n\nc\n"),
        ("a\nb\nb\nc\n", diff("-b", "+  b", " c"), "a\nb\n  b\nc\n"),
    ],
)
def test_blanks_may_be_all_that_is_added(before: str, answer: str, after: str) -> None:
    once = apply_answer({"n": before}, answer).files
    assert once == {"n": after}
    assert again_problem(once, answer) == ""


def test_what_only_removes_may_repeat() -> None:
    answer = diff("-x")
    once = apply_answer({"n": "a\nx\nx\nb\n"}, answer).files
    assert once == {"n": "a\nx\nb\n"}
    assert apply_answer(once, answer).files == {"n": "a\nb\n"}
