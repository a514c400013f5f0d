"""What `unified_diff` writes, `apply_answer` reads back, and so does `git apply`."""

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.patching import PatchRefused, apply_answer, unified_diff

# Few different lines make repeats likely; the odd ones look like parts of a diff.
LINES = st.sampled_from(
    ["a", "b", "", "  x", "-- a", "++ b", "@@", "+", "-", "a\r", "```", "\\ No", "diff --git", " "]
)
TEXT = st.builds(
    lambda lines, final: "\n".join(lines) + ("\n" if final and lines else ""),
    st.lists(LINES, max_size=14),
    st.booleans(),
)
TREE = st.dictionaries(
    st.sampled_from(["m.txt", "a/m.txt", "b/m.txt", "notes and more.md", "x.toml"]),
    TEXT,
    max_size=3,
)


@settings(max_examples=300, deadline=None)
@given(before=TREE, after=TREE, fenced=st.booleans())
def test_diff_then_apply_gives_after(before, after, fenced):
    diff = unified_diff(before, after)
    answer = f"Here it is.\n\n```diff\n{diff}```\n\nDone." if fenced else diff
    if before == after:
        assert diff == ""
        return
    assert apply_answer(before, answer).files == after


@settings(max_examples=300, deadline=None)
@given(tree=TREE, answer=st.text(alphabet="ab-+@ \\\n<>=/", max_size=200))
def test_any_text_is_applied_or_refused(tree, answer):
    copy = dict(tree)
    with contextlib.suppress(PatchRefused):
        assert apply_answer(tree, answer).files != copy
    assert tree == copy


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_reads_the_same(tmp_path: Path):
    before = {
        "same.txt": "x\n",
        "edit.txt": "".join(f"{i}\n" for i in range(30)),
        "repeat.txt": "x\n" * 40,
        "bare.txt": "a\nb",
        "gone.txt": "g\n",
        "empty_gone.txt": "",
    }
    after = {
        "same.txt": "x\n",
        "edit.txt": before["edit.txt"].replace("4\n", "four\n").replace("\n20\n", "\n"),
        "repeat.txt": "x\n" * 20 + "y\n" + "x\n" * 20,
        "bare.txt": "a\nb\nc",
        "sub/new.txt": "n",
        "empty_new.txt": "",
    }
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    diff = unified_diff(before, after)
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, text=True, check=True)
    left = {
        str(path.relative_to(tmp_path)): path.read_text()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert left == after
    assert apply_answer(before, diff).files == after
