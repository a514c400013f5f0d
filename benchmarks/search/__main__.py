"""Which strategy of search finds the best codebase for the same cost?

    python -m benchmarks.search measure --stop-after 60
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks.calibrate.__main__ import stopping
from benchmarks.search.measure import measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("measure", help="train what the table lacks")
    table.add_argument("--stop-after", type=float, metavar="MINUTES")
    table.add_argument("--parallel", type=int, default=1, help="runs side by side (default: 1)")
    given = parser.parse_args(arguments)
    with stopping(given.stop_after) as stop:
        done = measure(stop, parallel=given.parallel)
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
