"""How many ideas come to a result, with and without telling their author what was wrong.

    python -m benchmarks.execution_rate [--only TEXT] [--faults LIST] [--keep FOLDER]

The cases of the corpus go through the embedded service, over HTTP, under two policies. Their
author is scripted, no LLM: a server on this machine that gives each case's answer, and its
correction once it is told what was wrong. Ends with a failure where a case ends otherwise than
its fault says.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from benchmarks.execution_rate import table
from benchmarks.execution_rate.corpus import FAULTS, Case, load
from benchmarks.execution_rate.policies import FEEDBACK, FIRST_DIFF, measure


def arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.execution_rate", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--faults", help=f"cases with these, of {','.join(FAULTS)}")
    parser.add_argument("--keep", type=Path, help="leave the data folders of both services here")
    return parser.parse_args()


def chosen(only: str, faults: str | None) -> list[Case]:
    """The cases that are meant.

    Raises:
        ValueError: there is no such fault, or no such case.
    """
    wanted = set(faults.split(",")) if faults else set(FAULTS)
    if unknown := sorted(wanted - set(FAULTS)):
        raise ValueError(f"no such fault: {', '.join(unknown)}; they are {', '.join(FAULTS)}")
    cases = [case for case in load() if only in case.name and case.fault in wanted]
    if not cases:
        raise ValueError("no case is left")
    return cases


def compare(cases: list[Case], folder: Path) -> int:
    """Measure both policies and print what came of them; the exit code."""
    first = measure(FIRST_DIFF, cases, folder / "first")
    feedback = measure(FEEDBACK, cases, folder / "feedback")
    found = table.problems(first, feedback)
    print(f"{len(cases)} cases; their author is scripted, no LLM\n")
    print(table.by_fault(first, feedback), table.costs(first, feedback), sep="\n\n")
    print("", table.funnel(first), table.funnel(feedback), "", sep="\n")
    for problem in found:
        print(f"NOT AS EXPECTED: {problem}\n")
    print(json.dumps(table.summary(first, feedback, found)))
    return 1 if found else 0


def main() -> int:
    options = arguments()
    try:
        cases = chosen(options.only, options.faults)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        return compare(cases, options.keep)
    with tempfile.TemporaryDirectory(prefix="assay-execution-") as folder:
        os.chmod(folder, 0o755)
        return compare(cases, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
