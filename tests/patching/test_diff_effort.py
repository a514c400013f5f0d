"""Differences take bounded work, and stay right where it is not enough."""

from __future__ import annotations

import asyncio

import pytest

from assay.llm.executors import ImplementRequest
from assay.llm.offline.literal import LiteralImplementer
from assay.patching import apply_answer, unified_diff
from assay.patching.diff import Change, changes
from assay.patching.effort import Effort

BLANKS = "\n" * 30_000
CODE = "".join(f"x{i} = {i}\n\n" for i in range(1_000))


class Line:
    """A line that counts how often it is looked up or compared."""

    looked = 0

    def __init__(self, text: str) -> None:
        self.text = text

    def __hash__(self) -> int:
        Line.looked += 1
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.text == other.text


def test_equal_lines_do_not_multiply_the_work() -> None:
    old = [Line("a"), *[Line(""), Line("b")] * 1_000, Line("c"), Line("z")]
    new = [Line("a"), *[Line("")] * 20_000, Line("z")]
    Line.looked = 0
    assert changes(old, new) == [Change(2, len(old) - 1, 2, len(new) - 1)]
    # Each line once or twice; the unbounded search looked up some 500,000.
    assert Line.looked < 50_000


@pytest.mark.parametrize(
    ("old", "new"),
    [("", ""), ("ab", "ab"), ("ab", "axb"), ("aa", "aaa"), ("abc", "xyz"), ("a", "")],
)
def test_without_effort_the_middle_is_replaced(old: str, new: str) -> None:
    found = changes(old, new, Effort(0))
    again = list(old)
    for change in reversed(found):
        again[change.old_start : change.old_end] = new[change.new_start : change.new_end]
    assert "".join(again) == new
    assert len(found) == (old != new)


def test_a_diff_that_gave_up_applies() -> None:
    before, after = {"a.py": CODE}, {"a.py": "x0 = 0\n" + BLANKS}
    diff = unified_diff(before, after)
    assert diff.count("\n@@ ") == 1
    assert apply_answer(before, diff).files == after


def test_many_long_searches_are_left_to_the_patcher() -> None:
    block = "new.txt\n<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"
    lines = "\n".join(["x"] * 8_000)
    search = "\n".join(["x"] * 200 + ["y"])
    edits = block.format("", lines) + block.format(search, "z") * 90
    request = ImplementRequest("x", {"a.py": "x = 1\n"}, (), edits)
    answer = asyncio.run(LiteralImplementer().implement(request)).text
    assert answer.count("--- a/new.txt") == 90


def test_a_file_that_is_too_large_leaves_the_others_their_share() -> None:
    """Blank lines alone: so many pairs are not compared at all, and the next file is."""
    large = {"a.py": "x = 1\n" + "\n" * 6_000 + "y = 1\n"}
    small = {"b.py": "".join(f"b{i} = {i}\n" for i in range(40))}
    changed = {"a.py": "x = 2\n" + "\n" * 6_000 + "y = 2\n"}
    changed["b.py"] = (
        small["b.py"].replace("b1 = 1\n", "b1 = 0\n").replace("b38 = 38\n", "b38 = 0\n")
    )
    diff = unified_diff(large | small, changed)
    assert unified_diff(small, {"b.py": changed["b.py"]}) in diff
    assert apply_answer(large | small, diff).files == changed


def test_equal_ends_of_a_large_file_are_not_compared() -> None:
    before = {"a.py": "\n" * 6_000 + "x = 1\n\ny = 1\n" + "\n" * 6_000}
    after = {"a.py": before["a.py"].replace("x = 1", "x = 2").replace("y = 1", "y = 2")}
    assert "\n-x = 1\n+x = 2\n \n-y = 1\n+y = 2\n" in unified_diff(before, after)
