"""The embedded service, killed every 30 seconds, and how soon it is ready with 10,000 ideas.

    python -m benchmarks.killed steady --minutes 10 --ideas 200
    python -m benchmarks.killed ready --ideas 10000 --starts 5

`steady` kills `assay serve` with SIGKILL every 30 seconds while one batch of `toy` ideas is
measured, then lets it finish, and checks that every idea succeeded once (the invariants of
`tests.support.faults`). `ready` submits one large batch, and kills and starts the service again,
idle and at work: how long it takes until it prints that it is ready, and until its API answers.
`ready` also starts it on an empty folder: on a busy machine only the two can be compared, and of
each the processor seconds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import about_machine
from tests.support.faults.embedded import EmbeddedService, kill_every

Found = dict[str, Any]
READY_SECONDS = 5.0


def steady(args: argparse.Namespace, folder: Path) -> Found:
    """Kill the service at fixed intervals while it works on one batch."""
    service = EmbeddedService(folder / "data", sandbox=args.sandbox, env={})
    lasting = args.minutes * 60
    found = kill_every(service, args.every, lasting=lasting, ideas=args.ideas, each=args.each)
    return {
        "kills": found.kills,
        "kills_that_hit_work": found.hit_work,
        "finished_at_kill": found.finished,
        "ready_s": found.ready_s,
        "recovered_s": found.recovered_s,
        "succeeded": found.report.counts["experiments_succeeded"],
        "doubled": found.report.counts["doubled"],
        "missed": found.report.violations,
    }


def ready(args: argparse.Namespace, folder: Path) -> Found:
    """Start the service again and again with a large batch waiting."""
    empty = EmbeddedService(folder / "empty", sandbox=args.sandbox, env={})
    first = [_start(empty, args.seconds) for _ in range(args.starts)]
    service = EmbeddedService(folder / "data", sandbox=args.sandbox, env={})
    service.start()
    service.submit(args.ideas)
    service.kill()
    found = [_start(service, args.seconds) for _ in range(args.starts)]
    states = service.states()
    longest = max(seconds for seconds, _ in found)
    missed = [f"ready after {longest} s > {READY_SECONDS:g} s"] if longest > READY_SECONDS else []
    return {
        "waiting": sum(states[name] for name in ("submitted", "implementing", "queued")),
        "ready_s": [seconds for seconds, _ in found],
        "ready_cpu_s": [cpu for _, cpu in found],
        "empty_ready_s": [seconds for seconds, _ in first],
        "empty_ready_cpu_s": [cpu for _, cpu in first],
        "missed": missed,
    }


def _start(service: EmbeddedService, lasting: float) -> tuple[float, float]:
    """Start it, let it work for a while and kill it.

    Returns the seconds, and the processor seconds, until it was ready and its API answered.
    """
    began = time.monotonic()
    service.start()
    with service.client() as client:
        client.version()
    seconds = time.monotonic() - began
    used = psutil.Process(service.pid).cpu_times()
    time.sleep(lasting)
    service.kill()
    return round(seconds, 2), round(used.user + used.system, 2)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.killed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(required=True, metavar="PART")

    def part(
        name: str, run: Callable[[argparse.Namespace, Path], Found], ideas: int
    ) -> argparse.ArgumentParser:
        found = parts.add_parser(name, help=(run.__doc__ or "").strip())
        found.set_defaults(run=run, benchmark=f"killed {name}")
        found.add_argument("--ideas", type=int, default=ideas)
        found.add_argument("--sandbox", default="auto")
        return found

    one = part("steady", steady, 200)
    one.add_argument("--minutes", type=float, default=10.0)
    one.add_argument("--every", type=float, default=30.0, help="Seconds between two kills.")
    one.add_argument("--each", type=float, default=4.0, help="Seconds that an idea takes.")
    one = part("ready", ready, 10_000)
    one.add_argument("--starts", type=int, default=5)
    one.add_argument("--seconds", type=float, default=5.0, help="Work between start and kill.")
    return parser


def main() -> None:
    """Run the part that is asked for; exit code 1 if it missed a bar."""
    args = _parser().parse_args()
    folder = Path(tempfile.mkdtemp(prefix="assay-killed-"))
    folder.chmod(0o755)  # sandboxed programs of other users look into it
    began, about = time.monotonic(), about_machine()
    try:
        found = {"benchmark": args.benchmark, "ideas": args.ideas, **args.run(args, folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found | about | {"seconds": round(time.monotonic() - began, 1)}))
    if found["missed"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
