"""What `git diff` writes is read as the same edit as our own diff."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from assay.patching import PatchRefused, RefusalCode, apply_answer, unified_diff
from tests.patching.trees import Tree, breaks_python, edits, outcome
from tests.support.needs import require_git

FEW = settings(
    max_examples=min(40, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
#: Every line another one, so that three lines of context are enough for git's diff.
DISTINCT = st.lists(st.integers(0, 10**6), min_size=8, max_size=40, unique=True)


class Git:
    """A repository that nobody's settings reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run("init", "-q")

    def run(self, *arguments: str, read: str = "") -> str:
        quiet = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "HOME": "/nowhere"}
        done = subprocess.run(
            ["git", "-c", "core.autocrlf=false", *arguments],
            cwd=self.folder, env={**os.environ, **quiet}, input=read.encode(),
            capture_output=True, check=True,
        )  # fmt: skip
        return done.stdout.decode()

    def tree(self, files: Tree, executable: Sequence[str] = ()) -> str:
        """The id of a stored tree."""
        for path in self.folder.iterdir():
            if path.name != ".git":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            path.chmod(0o755 if name in executable else 0o644)
        self.run("add", "-A")
        return self.run("write-tree").strip()

    def files(self) -> Tree:
        """What stands in the folder."""
        paths = [path.relative_to(self.folder) for path in self.folder.rglob("*")]
        return {
            str(path): (self.folder / path).read_bytes().decode()
            for path in paths
            if path.parts[0] != ".git" and (self.folder / path).is_file()
        }

    def diff(self, before: Tree, after: Tree, *flags: str, executable: Sequence[str] = ()) -> str:
        one = self.tree(before)
        return self.run("diff", "-M", *flags, one, self.tree(after, executable))


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    require_git()
    return Git(tmp_path_factory.mktemp("git"))


@FEW
@given(trees=edits())
def test_the_diff_of_git_is_read_like_our_own(git: Git, trees: tuple[Tree, Tree]) -> None:
    before, after = trees
    assume(not breaks_python(before, after))
    diff = git.diff(before, after, "-U1000", "--text")
    assert apply_answer(before, diff).files == after
    assert apply_answer(before, unified_diff(before, after)).files == after


@FEW
@given(trees=edits())
def test_three_lines_of_context_are_refused_or_right(git: Git, trees: tuple[Tree, Tree]) -> None:
    before, after = trees
    assume(not breaks_python(before, after))
    result = outcome(before, git.diff(before, after, "--text"))
    assert result in (after, RefusalCode.AMBIGUOUS, RefusalCode.ALREADY_APPLIED)


@FEW
@given(
    numbers=DISTINCT,
    at=st.integers(0, 7),
    new=st.sampled_from(["moved.txt", "deep/er/n.txt", "n two.txt"]),
    edited=st.booleans(),
    mode=st.booleans(),
)
def test_renames_and_modes_of_git(
    git: Git, numbers: list[int], at: int, new: str, edited: bool, mode: bool
) -> None:
    text = "".join(f"value {number}\n" for number in numbers)
    lines = text.splitlines(keepends=True)
    if edited:
        lines[at] = "changed\n"
    before, after = {"pkg/n.txt": text, "k": "k\n"}, {new: "".join(lines), "k": "k\n"}
    diff = git.diff(before, after, executable=[new] if mode else [])
    assert "rename from pkg/n.txt" in diff
    result = apply_answer(before, diff)
    assert result.files == after
    [record] = result.report.files
    assert (record.path, record.change, record.renamed_from) == (new, "renamed", "pkg/n.txt")


def test_a_change_of_mode_with_an_edit_is_the_edit(git: Git) -> None:
    before, after = (
        {"run.sh": "set -e\npython train.py\n"},
        {"run.sh": "set -eu\npython train.py\n"},
    )
    diff = git.diff(before, after, executable=["run.sh"])
    assert "old mode 100644\nnew mode 100755" in diff
    assert apply_answer(before, diff).files == after


def test_a_change_of_mode_alone_is_refused(git: Git) -> None:
    tree = {"run.sh": "set -e\n"}
    diff = git.diff(tree, tree, executable=["run.sh"])
    assert "new mode 100755" in diff
    with pytest.raises(PatchRefused) as caught:
        apply_answer(tree, diff)
    assert caught.value.code == RefusalCode.NO_DIFF


@pytest.mark.parametrize("flags", [(), ("--no-renames",), ("-U0",), ("--full-index",), ("-R",)])
def test_files_that_come_and_go(git: Git, flags: tuple[str, ...]) -> None:
    before = {"gone.txt": "g\nh\n", "empty gone.txt": "", "keep.txt": "k\n", "e.py": "x = 1\n"}
    after = {"sub/new.txt": "n\n\nm", "empty.txt": "", "keep.txt": "k\n", "e.py": "x = 2\n"}
    diff = git.diff(before, after, *flags)
    start, end = (after, before) if "-R" in flags else (before, after)
    assert apply_answer(start, diff).files == end


def test_git_reads_our_diff_the_same(git: Git) -> None:
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
    git.tree(before)
    diff = unified_diff(before, after)
    git.run("apply", read=diff)
    assert git.files() == after
    assert apply_answer(before, diff).files == after
