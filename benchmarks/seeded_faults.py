"""Do the tests catch mistakes that matter?

    python -m benchmarks.seeded_faults [--only NN] [--tier default|all] [--whole] [tests ...]

Applies each patch of `tests/seeded_faults/` to a fresh copy of the working tree, one at a time,
and runs tests there until the first one fails. A patch holds one mistake that is easy to make and
names, in a line `Tests:`, where a test should catch it; name tests on the command line to run
those instead. A fault that they miss is also put to the whole tier with `--whole`.

A fault counts as caught only if the copy's code was what the tests imported, and if the test that
failed passes in a copy without the fault. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests" / "seeded_faults"
State: TypeAlias = Literal["default", "all", "missed", "error"]
#: Options of pytest by tier.
TIERS: dict[str, list[str]] = {
    "default": ["-m", "not slow"],
    "all": ["--hypothesis-profile", "long"],
}
#: In a copy: a test that says which code it sees, and what it said.
PROBE, SEEN = "tests/test_seeded_fault_probe.py", "seen.txt"
_PROBE = """
import importlib
from pathlib import Path

def test_probe() -> None:
    module = importlib.import_module({module!r})
    Path({seen!r}).write_text(module.__file__ or "")
"""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
#: Exit codes of pytest. A run that `-x` stops ends with 2 since pytest 9.2, as an interrupted one
#: does; only the first names a test that failed.
PASSED, FAILED = 0, (1, 2)


class RunError(Exception):
    """The tests could not be run, so nothing is known about the fault."""


@dataclass(frozen=True)
class Fault:
    """A patch: what is wrong, which file it changes, and where a test should catch it."""

    path: Path
    summary: str
    file: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def module(self) -> str:
        """The dotted name of the module that it changes."""
        parts = Path(self.file).with_suffix("").parts
        return ".".join(parts[1:] if parts[0] == "src" else parts)

    @classmethod
    def read(cls, path: Path) -> Fault:
        """Read a patch and the lines before its diff."""
        header, _, diff = path.read_text().partition("\n--- a/")
        summary, _, tests = header.partition("\nTests: ")
        return cls(path, " ".join(summary.split()), diff.split("\n")[0], tuple(tests.split()))


@dataclass(frozen=True)
class Outcome:
    """The result for one fault; `test` is the first one that failed, or the reason of an error."""

    fault: Fault
    state: State
    test: str
    seconds: float


class Copies:
    """Copies of the working tree as it was at the start, or of a commit."""

    def __init__(self, folder: Path, commit: str | None) -> None:
        self._folder = folder
        self._plain = folder / "plain"
        if commit is None:
            _copy_working_tree(self._plain)
        else:
            _copy_commit(self._plain, commit)
        # Its test sees whether the patches apply, which the one in a copy no longer does.
        shutil.rmtree(self._plain / PATCHES.relative_to(ROOT), ignore_errors=True)

    @contextmanager
    def open(self, name: str) -> Iterator[Path]:
        """Make a copy, and remove it at the end."""
        copy = self._folder / name
        shutil.copytree(self._plain, copy, symlinks=True)
        try:
            yield copy
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def apply(fault: Fault, copy: Path, *options: str) -> None:
    """Apply a patch to a copy. Raises RunError."""
    command = ["git", "apply", *options, str(fault.path)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"the patch does not apply: {done.stderr.strip()}")


def _copy_working_tree(target: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in os.fsdecode(listed.stdout).rstrip("\0").split("\0"):
        if (ROOT / name).exists():  # a deleted file is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def _copy_commit(target: Path, commit: str) -> None:
    target.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=target, input=archive, check=True)


@dataclass(frozen=True)
class Runner:
    """Runs tests in copies."""

    workers: int
    limit: float

    def run(self, copy: Path, module: str, tests: Sequence[str], tier: str) -> str | None:
        """Return the first test that fails in a copy, or None.

        Raises:
            RunError: the tests did not run to their end, or not on the code of the copy.
        """
        probe, seen = copy / PROBE, copy / SEEN
        probe.write_text(_PROBE.format(module=module, seen=str(seen)))
        seen.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", PROBE, *tests, *TIERS[tier]]
        command += ["-x", "-q", "-rfE", "--no-header", "-p", "no:cacheprovider"]
        command += ["-n", str(self.workers)] if self.workers else []
        # A fault often changes a character within the same second: size and time of the source
        # would not tell a module's bytecode from the one before.
        variables = {
            "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "400",
        }
        try:
            done = subprocess.run(
                command,
                cwd=copy,
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=self.limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"the tests took longer than {self.limit:g} s") from None
        failed = _FAILED.findall(done.stdout)
        if done.returncode != PASSED and not (done.returncode in FAILED and failed):
            raise RunError(f"pytest: exit code {done.returncode}: {done.stdout[-2000:]}")
        found = Path(seen.read_text()) if seen.exists() else None
        if found is None or not found.is_relative_to(copy):
            raise RunError(f"{module} is imported from {found}, not from the copy")
        return failed[0] if failed else None


class Examination:
    """Puts faults to tests."""

    def __init__(self, copies: Copies, runner: Runner, tier: str, named: Sequence[str]) -> None:
        self._copies = copies
        self._runner = runner
        self._tiers = ["default", "all"] if tier == "all" else ["default"]
        self._named = named

    def examine(self, fault: Fault, *, whole: bool) -> Outcome:
        """Return whether tests catch a fault, and which test does."""
        started = time.monotonic()
        state: State
        with self._copies.open(fault.name) as copy:
            try:
                apply(fault, copy)
                state, test = self._catch(copy, fault, whole=whole)
            except RunError as error:
                state, test = "error", str(error)
        return Outcome(fault, state, test, time.monotonic() - started)

    def _catch(self, copy: Path, fault: Fault, *, whole: bool) -> tuple[State, str]:
        rounds = [list(self._named or fault.tests)]
        if whole:
            rounds.append(["tests"])
        for tests in rounds:
            for tier in self._tiers:
                failed = self._runner.run(copy, fault.module, tests, tier)
                if failed is not None:
                    self._confirm(copy, fault, failed)
                    return ("default" if tier == "default" else "all"), failed
        return "missed", ""

    def _confirm(self, copy: Path, fault: Fault, test: str) -> None:
        """Take the fault out again and make sure that the test which failed passes."""
        apply(fault, copy, "--reverse")
        if self._runner.run(copy, fault.module, [test], "all") is not None:
            raise RunError(f"{test} fails without the fault, too")


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the numbers of a run and the names of the faults that were not caught."""
    states = [outcome.state for outcome in outcomes]
    return {
        "benchmark": "seeded_faults",
        "faults": len(outcomes),
        "caught_default": states.count("default"),
        "caught_all": states.count("default") + states.count("all"),
        "missed": [o.fault.name for o in outcomes if o.state == "missed"],
        "errors": [o.fault.name for o in outcomes if o.state == "error"],
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
    }


def show(outcome: Outcome) -> None:
    """Print a line of the table."""
    said = {"missed": "MISSED", "error": f"ERROR: {outcome.test}"}.get(outcome.state, outcome.test)
    tier = outcome.state if outcome.state in TIERS else "-"
    print(f"{outcome.fault.name:40} {tier:8} {outcome.seconds:6.1f} s  {said}", flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.seeded_faults",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tests", nargs="*", help="run these instead of the ones a patch names")
    parser.add_argument("--only", action="append", metavar="NN", help="this fault; repeatable")
    parser.add_argument("--tier", choices=list(TIERS), default="default", help="which tests run")
    parser.add_argument("--whole", action="store_true", help="after a miss, run the whole tier")
    parser.add_argument("--commit", help="copy this commit instead of the working tree")
    parser.add_argument("--jobs", type=int, default=1, help="faults at the same time")
    parser.add_argument("--workers", type=int, default=2, help="test processes per fault; 0: none")
    parser.add_argument("--limit", type=float, default=900, help="seconds per run of tests")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the command. Returns 1 if a fault was missed or could not be tried."""
    options = parse()
    faults = [Fault.read(path) for path in sorted(PATCHES.glob("*.patch"))]
    if options.only:
        faults = [f for f in faults if f.name.partition("-")[0] in options.only]
    with tempfile.TemporaryDirectory(prefix="seeded-faults-") as folder:
        copies = Copies(Path(folder), options.commit)
        runner = Runner(options.workers, options.limit)
        examination = Examination(copies, runner, options.tier, options.tests)
        outcomes = []
        with ThreadPoolExecutor(options.jobs) as pool:
            for outcome in pool.map(
                lambda fault: examination.examine(fault, whole=options.whole), faults
            ):
                show(outcome)
                outcomes.append(outcome)
    found = summary(outcomes)
    print(json.dumps(found))
    return 1 if found["missed"] or found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
