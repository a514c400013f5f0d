"""Text from users and models is read in linear time: 64 KB of it must not stop a service.

Regular expressions hold the interpreter's lock, so one that backtracks stops every request.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.analysis.text import clean, idea_title, one_line
from assay.evaluation.answers import extract_answer
from assay.llm.idea_answers import read_answer
from assay.llm.ideas import read_idea
from assay.llm.offline.settings import Settings
from assay.patching import PatchRefused, apply_answer
from assay.telemetry.secrets import redactor
from services.implementer.judging import crash_feedback
from services.worker.failures import last_traceback_line

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1 << 16
#: Processor seconds for one reader with one text. Quadratic readers take 15 to 45 seconds, linear
#: ones a few milliseconds.
SECONDS = 5
TRACEBACK = "Traceback (most recent call last):\n"


def apply(text: str) -> None:
    """The patcher, up to its refusal."""
    try:
        apply_answer({"a.py": "x = 1\n"}, text)
    except PatchRefused:
        return


READERS: dict[str, Callable[[str], object]] = {
    "read_answer": read_answer,
    "read_idea": read_idea,
    "idea_title": idea_title,
    "clean": clean,
    "one_line": lambda text: one_line(text, 80),
    "settings": Settings.read,
    "redactor": redactor([]),
    "crash_feedback": lambda text: crash_feedback("", text, {"a.py": "x = 1\n"}),
    "last_traceback_line": lambda text: last_traceback_line(text.encode()),
    "extract_answer": extract_answer,
    "apply_answer": apply,
}
STARTS = (
    "",
    "[Experiment] x\n",
    "[Experiment] x\n[Code Changes] y\n",
    "[End]",
    "<think>",
    "## Experiment 1: x\n",
    "<experiment>x</experiment>\n<code_changes>y",
    '[{"experiment": "x", "code": "y"}]\n',
    "Settings: x",
    TRACEBACK,
    TRACEBACK + '  File "',
    "\x1b[",
    "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n-- \n1.",
    "Answer: ",
    "https://",
)
UNITS = ("*", "#", "_", "`", " ", "\t", "\n", "1", "a", ":", ">", "=", "-", "<", '"', "|", "[")
UNITS += (
    "a.",
    "* ",
    "\n*",
    "| ",
    "|\n",
    "1.",
    "a ",
    " a",
    "<think>",
    "[End]*",
    "://",
    "a:",
    "{",
    "```\n",
    "# Idea 1: ",
)
UNITS += (
    "Changes:\n",
    "[Experiment]\n",
    "<idea>",
    "</think>\n",
    "<think>\n",
    "[Code] ",
    "```json\n[\n",
    '{"a":',
)


#: What the readers were once slow on.
FEW_STARTS, FEW_UNITS = ("", "[Experiment] x\n", "Settings: x"), ("*", " ", "\n", "a.")


def cases(every: bool) -> Iterator[tuple[str, str, str]]:
    for name in READERS:
        for start in STARTS if every else FEW_STARTS:
            for unit in UNITS if every else FEW_UNITS:
                yield name, start, unit


def read_all(every: bool) -> None:
    """Read every hostile text; the kernel ends the process at the first that takes too long."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    for name, start, unit in cases(every):
        if name == "apply_answer" and start[:3] != "---":
            continue  # tests/patching/test_hostile.py has the others
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = math.ceil(used.ru_utime + used.ru_stime + SECONDS)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
        sys.stdout.write(f"{name} {start[:40]!r} {unit!r}\n")
        sys.stdout.flush()
        READERS[name](start + unit * ((SIZE - len(start)) // len(unit)) + "!")
    sys.stdout.write("read all\n")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_text_takes_long_to_read(every: bool) -> None:
    code = f"from tests.attacks.test_hostile_text import read_all; read_all({every})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("read all\n"), f"{done.stdout[-200:]} {done.stderr[-2000:]}"


def test_ideas_are_read_as_before() -> None:
    text = "## 2. **[Experiment]**: try it **\n**[Code Changes]**: do it\n**[End]** \n\nbye"
    idea = read_idea(text)
    assert (idea.experiment, idea.code_changes) == ("try it **", "do it")
    assert idea_title("### [Experiment] **Faster** ##[Code Changes] y") == "**Faster**"
    assert idea_title("a # b") == "a # b"
    assert Settings.read("Settings: \t lr=0.1, recipe=muon \t\nx=1") == Settings(
        (("lr", "0.1"),), ("muon",)
    )
    assert Settings.read("Settings:\nlr=1") is None


def test_passwords_in_urls_are_hidden_whatever_stands_before() -> None:
    redact = redactor([])
    assert redact("a.b+postgresql://me:secret@db/x") == "a.b+postgresql://me:***@db/x"
    assert redact("(REDIS://:secret@db)") == "(REDIS://:***@db)"
    assert redact("https://db:80/x@y") == "https://db:80/x@y"
