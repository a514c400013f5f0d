"""Measure Assay's patching, and the alternatives, on answers whose right result is known.

python -m benchmarks.patching [--cases N] [--seed S] [--tools all|assay] [--json FILE]
                              [--failures N]
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.patching import table
from benchmarks.patching.corpus import Slot, fill, slots
from benchmarks.patching.model import Case
from benchmarks.patching.score import Outcome, seconds, with_assay
from benchmarks.patching.tools import with_tools


@dataclass(frozen=True)
class Job:
    seed: int
    tools: bool
    failures: bool


def measure(slot: Slot, job: Job) -> table.Result:
    """One slot from its number to its outcome; runs in a process of the pool."""
    found = fill(slot, job.seed)
    result = table.Result(slot.group, slot.modes, dropped=found.dropped)
    if found.case is None:
        return result
    outcome = with_assay(found.case)
    result.verdicts["Assay"] = outcome.verdict
    result.code = outcome.code
    result.seconds = seconds(found.case)
    if job.tools:
        for name, other in with_tools(found.case).items():
            result.verdicts[name] = other.verdict
    if job.failures and outcome.verdict != "correct":
        result.failure = described(slot, found.case, outcome)
    return result


def _clipped(text: str, lines: int) -> str:
    found = text[:20_000].split("\n")
    return "\n".join(found[:lines] + ["[...]"] * (len(found) > lines))


def described(slot: Slot, case: Case, outcome: Outcome) -> str:
    """A failure for people: the answer, what came of it, what should have come."""
    parts = [
        f"=== {slot.group}: {case.mode} (number {slot.number}): {outcome.verdict} {outcome.code}",
        f"kinds: {', '.join(case.kinds)}; protected: {case.protected}; links: {case.symlinks}",
        "--- answer", _clipped(case.answer, 120), "--- log", _clipped(outcome.log, 60),
    ]  # fmt: skip
    wanted = case.target if case.target is not None else case.base
    got = outcome.files if outcome.files is not None else case.base
    for path in sorted({*wanted, *got}):
        left, right = got.get(path, "no such file"), wanted.get(path, "no such file")
        if left != right:
            difference = difflib.unified_diff(
                left.split("\n"), right.split("\n"), f"{path}: got", "wanted", lineterm="", n=4
            )
            parts += ["--- what is missing", _clipped("\n".join(map(repr, difference)), 60)]
    return "\n".join(parts) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.patching")
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tools", choices=["all", "assay"], default="all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--failures", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    started = time.monotonic()
    job = Job(options.seed, options.tools == "all", options.failures > 0)
    plan = slots(options.cases, options.seed)
    with ProcessPoolExecutor(os.cpu_count() or 2) as pool:
        results = list(pool.map(partial(measure, job=job), plan, chunksize=8))
    failures = [result.failure for result in results if result.failure]
    for failure in failures[: options.failures]:
        print(failure)
    print(table.by_mode(results))
    print(table.by_tool(results))
    summary = table.summary(results, options.seed, time.monotonic() - started)
    print(table.closing(summary))
    line = json.dumps(summary)
    if options.json:
        options.json.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
