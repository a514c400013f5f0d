"""What the bundled environments reach on one GPU.

    make bench-gpu                                        # all parts, on a machine with a GPU
    python -m benchmarks.gpu --part training              # one of them, at most four minutes
    python -m benchmarks.gpu --dry-run                    # the same path on a CPU with toy sizes

    training    nanogpt `single-gpu` beside the same model in plain PyTorch: tokens/s, MFU, memory
    rollouts    samples of grpo's sampler beside others
    order       whether nanogpt `quick-gpu` at 45 s puts known edits into the right order
    isolation   whether trainings on one GPU see anything of each other
    service     nanogpt `quick-gpu` through `assay serve`: worker, sandbox and evaluation

Each part writes its figures to its own file as it gets them (`FILE` without its suffix is their
folder), so that a kill loses nothing. What the machine lacks (packages, a sandbox, FineWeb) the
figures say. Prints what it measures as it goes; the last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine, report

PARTS = ("training", "rollouts", "order", "isolation", "service")
"""Modules of this package with `run(seconds, dry_run)`; imported when their turn comes."""
SECONDS = 240.0
DRY_SECONDS = 20.0


def measure_apart(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of a part, measured in a process of its own: what it leaves in the memory of a
    GPU would be in the way of the next one."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--out", str(arguments.out)]
    command += ["--dry-run"] if arguments.dry_run else []
    command += ["--long"] if arguments.long else []
    code = subprocess.run(command, check=False).returncode
    found = report.saved(part)
    return found if code in (0, 1) else found | {"error": f"it ended with code {code}"}


def measure(part: str, seconds: float, dry_run: bool) -> dict[str, Any]:
    """The figures of a part. One that failed says why, beside what it had measured by then."""
    began = time.monotonic()
    try:
        found = importlib.import_module(f"benchmarks.gpu.{part}").run(seconds, dry_run)
    except ModuleNotFoundError as error:
        found = report.saved(part) | {"error": f"the package {error.name} is absent"}
    except Exception as error:
        traceback.print_exc()
        found = report.saved(part) | {"error": f"{type(error).__name__}: {error}"}
    found["took_seconds"] = round(time.monotonic() - began, 1)
    report.save(part, found)
    return dict(found)


def every_edit(dry_run: bool) -> Any:
    """The full table of the committed edits."""
    from benchmarks.gpu import order

    return order.full(dry_run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="Only this; repeatable.")
    parser.add_argument("--dry-run", action="store_true", help="Toy sizes on a CPU.")
    parser.add_argument("--long", action="store_true", help="Four times as long, and all edits.")
    parser.add_argument("--out", type=Path, default=Path(".assay/bench-gpu.json"))
    arguments = parser.parse_args()
    dry = arguments.dry_run
    if not dry and not machine.uuids():
        parser.exit(1, "there is no GPU here, or no driver; try --dry-run\n")
    seconds = DRY_SECONDS if dry else SECONDS * (4 if arguments.long else 1)
    report.open_folder(arguments.out.with_suffix(""))
    summary: dict[str, Any] = {"name": "gpu", "dry_run": dry, **machine.facts(), "parts": {}}
    parts = arguments.part or PARTS
    for part in parts:
        print(f"{summary['device']}: {part}", flush=True)
        if len(parts) > 1:
            summary["parts"][part] = measure_apart(part, arguments)
        else:
            summary["parts"][part] = measure(part, seconds, dry)
            if part == "order" and arguments.long:
                summary["parts"][part] |= {"all_edits": every_edit(dry)}
                report.save(part, summary["parts"][part])
        arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))
    return int(any("error" in found for found in summary["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
