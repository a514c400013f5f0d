"""What holds for every tree and every diff: drawn at random, with lines that real code repeats."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.patching import PatchRefused, RefusalCode, apply_answer, unified_diff
from assay.patching.types import MAX_LOG_CHARACTERS
from tests.patching.trees import (
    NAMESAKES,
    PROGRAM,
    STATEMENTS,
    Tree,
    breaks_python,
    edits,
    outcome,
)
from tests.support.patching.answers import PROTECTED, SYMLINKS, TREES, right_answers
from tests.support.patching.damage import mutate
from tests.support.patching.invariants import judge
from tests.support.patching.python import parses

#: Cheap examples in which something rare is looked for.
MORE = settings(max_examples=2 * settings.default.max_examples)
#: The least share of right answers that must be applied.
APPLIED = 0.89

# --- right diffs ---------------------------------------------------------------------------------


@given(st.one_of(edits(), edits(NAMESAKES)), st.booleans())
def test_a_right_diff_gives_the_target_byte_for_byte(
    trees: tuple[Tree, Tree], fenced: bool
) -> None:
    before, after = trees
    assume(not breaks_python(before, after))
    diff = unified_diff(before, after)
    answer = f"Here it is.\n\n```diff\n{diff}```\n\nDone." if fenced else diff
    assert apply_answer(before, answer).files == after


@given(edits())
def test_apply_then_reverse_restores_the_base(trees: tuple[Tree, Tree]) -> None:
    before, after = trees
    assume(not breaks_python(before, after) and not breaks_python(after, before))
    there = apply_answer(before, unified_diff(before, after)).files
    assert apply_answer(there, unified_diff(there, before)).files == before


def hunks_apart(diff: str) -> list[str]:
    """Every hunk of a diff as a section of its own; sections without hunks as they are."""
    pieces: list[str] = []
    for section in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(r"^(?=@@ )", section, flags=re.MULTILINE)
        pieces += [head + hunk for hunk in hunks] or [head]
    return pieces


@given(edits(), st.randoms(use_true_random=False))
def test_the_order_of_hunks_does_not_matter(trees: tuple[Tree, Tree], draw: random.Random) -> None:
    before, after = trees
    assume(not breaks_python(before, after))
    pieces = hunks_apart(unified_diff(before, after))
    draw.shuffle(pieces)
    assert apply_answer(before, "".join(pieces)).files == after


@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_hunks_of_a_file_may_stand_in_any_order(seed: int, draw: random.Random) -> None:
    """Long files, so that a diff has several hunks under one header."""
    base = "".join(f"line {i} {'x' * (i % 7)}\n" for i in range(200))
    lines = base.splitlines(keepends=True)
    chance = random.Random(seed)
    for at in chance.sample(range(0, 200, 10), 6):
        lines[at] = chance.choice(["", f"changed {at}\n", f"{lines[at]}added {at}\n"])
    after = "".join(lines)
    assume(after != base)
    head, *hunks = re.split(
        r"^(?=@@ )", unified_diff({"n": base}, {"n": after}), flags=re.MULTILINE
    )
    draw.shuffle(hunks)
    assert apply_answer({"n": base}, head + "".join(hunks)).files == {"n": after}


@given(edits())
def test_a_diff_is_not_applied_twice(trees: tuple[Tree, Tree]) -> None:
    before, after = trees
    assume(not breaks_python(before, after))
    diff = unified_diff(before, after)
    there = apply_answer(before, diff).files
    with pytest.raises(PatchRefused) as caught:
        apply_answer(there, diff)
    assert caught.value.code == RefusalCode.ALREADY_APPLIED


def plain_diff(before: str, after: str, context: int) -> str:
    """A diff as any tool writes it, without regard to whether its context is unique."""
    left, right = before.splitlines(), after.splitlines()
    lines = list(difflib.unified_diff(left, right, "a/n", "b/n", n=context, lineterm=""))
    return "\n".join(lines) + "\n"


@given(
    st.lists(st.sampled_from(["a", "b", "", "  x", "    y = 1"]), max_size=14),
    st.lists(st.sampled_from(["a", "b", "", "  x", "    y = 2"]), max_size=14),
    st.integers(0, 3),
)
def test_scarce_context_is_refused_or_right(
    old: Sequence[str], new: Sequence[str], context: int
) -> None:
    before, after = "\n".join([*old, "end", ""]), "\n".join([*new, "end", ""])
    assume(before != after)
    result = outcome({"n": before}, plain_diff(before, after, context))
    assert result in ({"n": after}, RefusalCode.AMBIGUOUS, RefusalCode.ALREADY_APPLIED)


@given(edits())
def test_a_reversed_diff_is_refused_or_restores(trees: tuple[Tree, Tree]) -> None:
    """Its lines turned round; what was unique in the base need not be so in the target."""
    before, after = {"notes.txt": "start\n"}, {"notes.txt": "start\n"}
    before["notes.txt"] += trees[0].get("notes.txt", "")
    after["notes.txt"] += trees[1].get("notes.txt", "")
    assume(before != after)
    swap = {"+": "-", "-": "+"}
    lines = unified_diff(before, after).split("\n")
    turned = lines[:3] + [swap.get(line[:1], line[:1]) + line[1:] for line in lines[3:]]
    result = outcome(after, "\n".join(turned))
    assert isinstance(result, RefusalCode) or result == before


#: Without lines of blanks only, which trailing whitespace makes one of.
SOLID = [text for text in STATEMENTS if text == "\n" or text.strip()]


def _padded(line: str) -> str:
    return line + "  " if line[:1] in (" ", "-") else line


def _unmarked(line: str) -> str:
    return "" if line == " " else line


def _unnumbered(line: str) -> str:
    return "@@ -1,9 +77,2 @@" if line.startswith("@@") else line


def _deeper(line: str) -> str:
    return line[0] + "    " + line[1:] if line[:1] in ("+", "-", " ") and line[1:] else line


@given(
    st.lists(st.sampled_from(SOLID), min_size=1, max_size=9),
    st.integers(0, 8),
    st.sampled_from(SOLID),
    st.booleans(),
    st.lists(
        st.sampled_from([_padded, _unmarked, _unnumbered, _deeper]),
        min_size=1,
        max_size=3,
        unique=True,
    ),
)
def test_tolerated_damage_is_right_and_not_applied_twice(
    pieces: list[str], at: int, new: str, replaces: bool, damage: list[Callable[[str], str]]
) -> None:
    before = {"train.py": "".join(pieces)}
    changed = [*pieces[:at], new, *pieces[at + replaces :]]
    after = {"train.py": "".join(changed)}
    assume(before != after)
    lines = unified_diff(before, after).split("\n")  # three of them are the header
    # Blank lines alone say nothing of how deep the others are.
    assume(_deeper not in damage or any(x[:1] in (" ", "-") and x[1:].strip() for x in lines[3:]))
    for way in damage:
        lines[3:] = [way(line) for line in lines[3:]]
    answer = "\n".join(lines)
    result = outcome(before, answer)
    if isinstance(result, RefusalCode):
        return
    assert result == after
    assert isinstance(outcome(after, answer), RefusalCode)


# --- any text ------------------------------------------------------------------------------------

ALPHABET = st.text(alphabet="ab x1-+@ \\\n\n\n<>=/*.,`\r\t\"':#{}()", max_size=300)
PIECES = st.lists(
    st.sampled_from([
        "--- a/train.py", "+++ b/train.py", "--- /dev/null", "+++ /dev/null", "@@ -1,3 +1,3 @@",
        "@@", " import math", "-RATE = 0.1", "+RATE = 0.2", " ", "", "```", "```diff",
        "diff --git a/train.py b/predict.py", "rename from train.py", "rename to predict.py",
        "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "train.py", "predict.py", "safe/data.txt",
        "*** Begin Patch", "*** Update File: predict.py", "*** Delete File: predict.py",
        "*** End Patch", "\\ No newline at end of file", "...", "-x = 1", "+x = 2",
        "deleted file mode 100644", "new file mode 120000", "--- a/predict.py", "+++ b/predict.py",
    ]),
    max_size=25,
).map("\n".join)  # fmt: skip


@MORE
@given(st.sampled_from(TREES), st.one_of(ALPHABET, PIECES))
def test_any_text_is_applied_or_refused(tree: Tree, answer: str) -> None:
    assert judge(tree, answer, PROTECTED, SYMLINKS).problem == ""


@MORE
@given(st.integers(0, 10**9))
def test_any_damage_to_a_right_diff_is_applied_or_refused(seed: int) -> None:
    draw = random.Random(seed)
    answers = [answer for answer, _ in right_answers(draw, 3)]
    assume(answers)
    damaged = mutate(draw, answers[0].text, answers[-1].text)
    assert judge(TREES[answers[0].tree], damaged, PROTECTED, SYMLINKS).problem == ""


@given(st.integers(0, 10**9))
def test_right_answers_in_every_notation_are_right_or_refused(seed: int) -> None:
    for answer, after in right_answers(random.Random(seed), 3):
        result = outcome(TREES[answer.tree], answer.text)
        assert isinstance(result, RefusalCode) or shape(result) == shape(after)


def test_most_right_answers_are_applied() -> None:
    """The others fit in several places, or need what their notation cannot say."""
    codes = [
        outcome(TREES[answer.tree], answer.text)
        for answer, after in right_answers(random.Random(0), 300)
        if not breaks_python(TREES[answer.tree], after)
    ]
    applied = sum(not isinstance(code, RefusalCode) for code in codes)
    assert applied >= APPLIED * len(codes)


def shape(tree: Tree) -> Tree:
    """The tree but for final newlines, which the notations drawn here do not express.

    Nor for byte order marks, which the edits drawn here move into the middle of files.
    """
    return {name: text.replace("\ufeff", "").rstrip("\n") for name, text in tree.items()}


@given(st.sampled_from(TREES), PIECES, st.integers(0, 10**9))
def test_protected_files_never_change(tree: Tree, pieces: str, seed: int) -> None:
    draw = random.Random(seed)
    other = {**tree, "predict.py": "x = 2\n", "safe/data.txt": "changed\n"}
    aimed = unified_diff(tree, other)
    answer = mutate(draw, aimed, pieces, draw.randrange(3))
    result = outcome(tree, answer, PROTECTED)
    after = tree if isinstance(result, RefusalCode) else result
    for name in tree.keys() | after.keys():
        if name == "predict.py" or name.startswith("safe/"):
            assert after.get(name) == tree.get(name)


@given(st.sampled_from(TREES), st.one_of(ALPHABET, PIECES))
def test_the_same_answer_has_the_same_outcome(tree: Tree, answer: str) -> None:
    def everything() -> object:
        try:
            return apply_answer(dict(tree), answer)
        except PatchRefused as refusal:
            return refusal.code, refusal.log

    first = everything()
    assert first == everything()
    assert not isinstance(first, tuple) or len(first[1]) <= MAX_LOG_CHARACTERS


@given(PROGRAM, PROGRAM, st.integers(0, 10**9))
def test_python_that_parsed_still_parses(before: str, after: str, seed: int) -> None:
    assume(before != after)
    answer = unified_diff({"train.py": before}, {"train.py": after})
    damaged = mutate(random.Random(seed), answer, answer, 2)
    result = outcome({"train.py": before}, damaged)
    files = {} if isinstance(result, RefusalCode) else result
    assert all(parses(text) for name, text in files.items() if name.endswith(".py"))
