"""The command that puts seeded faults to the tests, on a project of one module."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import seeded_faults
from benchmarks.seeded_faults import Copies, Examination, Fault, Outcome, Runner, summary

pytestmark = pytest.mark.slow
FILES = {
    "src/sums.py": "def add(a: int, b: int) -> int:\n    return a + b\n",
    "tests/test_add.py": "from sums import add\ndef test_add():\n    assert add(2, 3) == 5\n",
    "tests/test_none.py": "def test_none():\n    pass\n",
    "tests/test_broken.py": "def test_broken():\n    assert False\n",
    "tests/seeded_faults/01-minus.patch": """\
It subtracts, so that every sum
is wrong.

Tests: tests/test_none.py tests/test_add.py

--- a/src/sums.py
+++ b/src/sums.py
@@ -1,2 +1,2 @@
 def add(a: int, b: int) -> int:
-    return a + b
+    return a - b
""",
}
Examine = Callable[..., Outcome]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    monkeypatch.setattr(seeded_faults, "ROOT", folder)
    monkeypatch.setattr(seeded_faults, "PATCHES", folder / "tests" / "seeded_faults")
    monkeypatch.setattr(seeded_faults, "TIERS", {"default": [], "all": []})
    return folder


@pytest.fixture
def examine(project: Path, tmp_path: Path) -> Examine:
    """Put the fault to these tests."""

    def run(*tests: str, whole: bool = False) -> Outcome:
        fault = Fault.read(project / "tests" / "seeded_faults" / "01-minus.patch")
        copies = Copies(tmp_path, None)
        return Examination(copies, Runner(0, 60), "default", tests).examine(fault, whole=whole)

    return run


def test_a_patch_says_what_and_where(project: Path) -> None:
    fault = Fault.read(project / "tests" / "seeded_faults" / "01-minus.patch")
    assert fault.summary == "It subtracts, so that every sum is wrong."
    assert (fault.file, fault.module) == ("src/sums.py", "sums")
    assert fault.tests == ("tests/test_none.py", "tests/test_add.py")


def test_a_fault_is_caught_in_a_copy(examine: Examine, project: Path) -> None:
    outcome = examine()
    assert (outcome.state, outcome.test) == ("default", "tests/test_add.py::test_add")
    assert (project / "src/sums.py").read_text() == FILES["src/sums.py"]


def test_a_fault_that_no_test_sees_is_missed(examine: Examine) -> None:
    outcome = examine("tests/test_none.py")
    assert outcome.state == "missed"
    found = summary([outcome])
    assert (found["faults"], found["caught_all"], found["missed"]) == (1, 0, ["01-minus"])


def test_a_test_that_fails_anyway_catches_nothing(examine: Examine) -> None:
    outcome = examine("tests/test_broken.py")
    assert outcome.state == "error"
    assert "without the fault" in outcome.test


def test_code_from_elsewhere_is_an_error(examine: Examine, project: Path, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(FILES["src/sums.py"])
    (project / "tests" / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    )
    outcome = examine("tests/test_none.py")
    assert outcome.state == "error"
    assert "not from the copy" in outcome.test


def test_tests_that_are_not_there_are_an_error(examine: Examine) -> None:
    assert examine("tests/test_gone.py").state == "error"
