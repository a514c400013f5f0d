"""What the bundled environments reach on one GPU.

    make bench-gpu                                        # all parts, on a machine with a GPU
    python -m benchmarks.gpu --part training              # one of them, at most four minutes
    python -m benchmarks.gpu --dry-run                    # the same path on a CPU with toy sizes

    training    nanogpt `single-gpu` beside the same model in plain PyTorch: tokens/s, MFU, memory
    rollouts    samples of grpo's sampler beside others
    order       whether nanogpt `quick-gpu` at 45 s puts known edits into the right order
    isolation   whether trainings on one GPU see anything of each other

Each part writes its figures to its own file as it gets them (`FILE` without its suffix is their
folder), so that a kill loses nothing. What the machine lacks (packages, a sandbox, FineWeb) the
figures say. Prints what it measures as it goes; the last line is JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu import machine, report

PARTS = ("training", "rollouts", "order", "isolation")
"""Modules of this package with `run(seconds, dry_run)`; imported when their turn comes."""
SECONDS = 240.0
DRY_SECONDS = 20.0


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
    for part in arguments.part or PARTS:
        print(f"{summary['device']}: {part}", flush=True)
        summary["parts"][part] = measure(part, seconds, dry)
        arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    if arguments.long:
        from benchmarks.gpu import order

        summary["all_edits"] = order.full(dry)
        arguments.out.write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))
    return int(any("error" in found for found in summary["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
