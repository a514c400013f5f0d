"""The patches that `python -m benchmarks.seeded_faults` applies: each still fits the code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.needs import require_git

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
PATCHES = sorted(FOLDER.glob("*.patch"))


def test_all_of_them_apply() -> None:
    require_git()
    command = ["git", "apply", "--check", *map(str, PATCHES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_thirty_in_as_many_modules() -> None:
    changed = [
        line.removeprefix("+++ b/")
        for patch in PATCHES
        for line in patch.read_text().splitlines()
        if line.startswith("+++ ")
    ]
    assert len(PATCHES) == len(changed) == len(set(changed)) == 30
    assert [patch.name[:3] for patch in PATCHES] == [f"{n:02d}-" for n in range(1, 31)]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_it_says_what_is_wrong_and_where_a_test_catches_it(patch: Path) -> None:
    header, _, _ = patch.read_text().partition("\n--- a/")
    said, _, named = header.partition("\nTests: ")
    assert len(said.split()) > 10
    assert named.split()
    for test in named.split():
        assert (ROOT / test).exists(), f"{patch.name} names {test}, which is not there"
