"""Answers made to be slow, large or crooked end soon, in little memory, and as declared."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from assay.patching import PatchRefused, RefusalCode, apply_answer
from tests.support.patching.hostile import HOSTILE, SMALL
from tests.support.patching.invariants import judge

ROOT = Path(__file__).resolve().parents[2]
#: Processor time: another process's load does not count. Above five times what the slowest takes.
SECONDS, PEAK_BYTES = 10.0, 200e6
FUZZ = [sys.executable, "-m", "benchmarks.fuzz_patching"]


#: Take a second and more each; the others meet the same bounds.
LONG = {
    "1 MB line",
    "10,000 sections of one file",
    "100 hunks upon hunks",
    "2,000 elisions",
    "2,000 files of one base name",
    "2,000 hunks that fit in 2,000 places",
    "2,000 lines paraphrased",
    "20 hunks of 100 lines paraphrased",
    "20 hunks of equal lines of two kinds",
    "20,000 added lines in 300 places",
    "20,000 elif",
    "20,000 lines of one name",
    "20,000 lines of two kinds",
    "200 hunks of 20 lines paraphrased",
    "3,000 files",
    "300 hunks that fit in 3,000 places",
    "350 added lines in each of 99 files",
    "5,000 V4A updates",
    "5,000 blocks",
    "5,000 empty blocks",
    "5,000 renames in a row",
    "6,000 elisions",
    "8 hunks of 2,000 indentations",
    "990 hunks in named functions",
    "990 hunks upon hunks",
}


@pytest.mark.timeout(600)  # for one that never ends; SECONDS is the bound
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in HOSTILE],
)
def test_time_and_memory_are_bounded_and_invariants_hold(name: str) -> None:
    files, answer = HOSTILE[name]()
    verdict = judge(files, answer)
    assert verdict.problem == ""
    assert verdict.seconds < SECONDS
    tracemalloc.start()  # slows everything down, so it watches a run of its own
    try:
        with contextlib.suppress(PatchRefused):
            apply_answer(files, answer)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES


@pytest.mark.parametrize(
    "text", ["\0", "\ud800", "\udc00\ud83d", "\u202e", "\u2066", "\x1b[2J", "\x07", "\x85", "\x7f"]
)
def test_such_a_character_in_a_name_is_refused(text: str) -> None:
    for name in (f"no{text}tes.txt", f"new{text}.txt", f"folder{text}/new.txt"):
        answer = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n"
        with pytest.raises(PatchRefused):
            apply_answer(dict(SMALL), answer)


@pytest.mark.parametrize("text", ["\0", "\ud800", "\udc00\ud83d"])
def test_such_a_character_enters_no_file(text: str) -> None:
    answer = f"--- a/notes.txt\n+++ b/notes.txt\n@@ -1,3 +1,3 @@\n a\n-b\n+B{text}\n c\n"
    with pytest.raises(PatchRefused):
        apply_answer(dict(SMALL), answer)


@pytest.mark.parametrize("name", ["10 MB of prose", "10 MB diff", "10 MB without a line end"])
def test_what_is_too_long_is_refused_as_such(name: str) -> None:
    files, answer = HOSTILE[name]()
    with pytest.raises(PatchRefused) as caught:
        apply_answer(files, answer)
    assert caught.value.code == RefusalCode.TOO_LARGE


@pytest.mark.parametrize(
    "name",
    ["50,000 equal lines", "300 hunks that fit in 3,000 places", "50,000 equal lines, but one"],
)
def test_what_has_no_one_place_is_refused(name: str) -> None:
    files, answer = HOSTILE[name]()
    with pytest.raises(PatchRefused) as caught:
        apply_answer(files, answer)
    assert caught.value.code in (
        RefusalCode.AMBIGUOUS, RefusalCode.NO_MATCH, RefusalCode.TOO_LARGE, RefusalCode.CONFLICT
    )  # fmt: skip


def test_a_deep_base_does_not_stop_an_edit_elsewhere() -> None:
    """The interpreter cannot parse the base, so nobody can ask that the result parses."""
    files = {"deep.py": f"a = 1\nb = 2\nx = {'(' * 5_000}{')' * 5_000}\n"}
    answer = "--- a/deep.py\n+++ b/deep.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 3\n"
    assert apply_answer(files, answer).files["deep.py"].startswith("a = 1\nb = 3\nx = ((")


@pytest.mark.slow
def test_the_fuzzer_finds_nothing_in_a_few_executions() -> None:
    done = subprocess.run(
        [*FUZZ, "--executions", "1500", "--seed", "7", "--engine", "plain"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["executions"] == 3_000
    assert row["applied"] > 100
    assert {"no_match", "ambiguous", "malformed", "bad_path", "protected"} <= set(row["codes"])
    assert row["problems"] == 0


def test_the_table_of_hostile_inputs_is_printed() -> None:
    done = subprocess.run(
        [*FUZZ, "--hostile", "NUL in a"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert (row["inputs"], row["bad"]) == (3, 0)
