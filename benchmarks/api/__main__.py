"""The API beside 100,000 experiments and 10 million curve points in Postgres, and under load.

    make bench-api                                         # half an hour on a busy machine
    python -m benchmarks.api --keep                        # the next run finds the database filled
    python -m benchmarks.api --keep --experiments 10000 --points 1000000 --seconds 60
    python -m benchmarks.api --keep --only requests

First every kind of request is timed, one after another, beside the full database and beside one
with 1,000 experiments: the ratio says what the size costs. Pages of searches with 800 ideas are
opened in Chromium, until their chart is drawn. Then the same work is measured twice:
alone, and while 200 clients follow its batches and 50 requests come per second. The load generator
has one core to itself (`--core`), the service and its trainings the others; Postgres is where its
own system puts it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.api.browser import LIMIT, Opened, opened
from benchmarks.api.filling import Filled, full_database
from benchmarks.api.load import Clients, compare
from benchmarks.api.requests import LIMITS, Latency, measure, paths_of
from benchmarks.machine import about_machine
from tests.support.databases import POSTGRES
from tests.support.stack import OWNER, Stack

#: The named alternative: the same requests beside so many experiments.
FEW, FEW_POINTS = 1_000, 100_000
FOLDER = Path("/var/tmp/assay-bench-api")


@contextmanager
def served(filled: Filled) -> Iterator[Stack]:
    """API, scheduler, an implement worker and a worker over a full database."""
    settings = {
        "ASSAY_SERVER_OBJECTS_URL": str(filled.objects),
        "ASSAY_IMPLEMENTER_STREAMS_PER_CLIENT": "1000",
        "ASSAY_IMPLEMENTER_STREAMS": "1000",
    }
    with tempfile.TemporaryDirectory(prefix="assay-api-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Stack(
            folder, database_url=filled.url, s3=False, sandbox="auto", settings=settings
        ) as stack:
            yield stack


def plain(value: Any) -> Any:
    """Figures as JSON can hold them."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def main() -> int:
    """Print the figures, what missed its bar, and a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--experiments", type=int, default=100_000)
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="Of each phase of the load.")
    parser.add_argument("--request-seconds", type=float, default=60.0)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0, help="Requests per second.")
    parser.add_argument("--ideas", type=int, help="Of each phase; by default 4 per second.")
    parser.add_argument("--core", type=int, default=1, help="The load generator's.")
    parser.add_argument("--keep", action="store_true", help="Keep the databases.")
    parser.add_argument("--only", choices=["requests", "page", "load"])
    args = parser.parse_args()
    machine = about_machine()
    requests: dict[str, Latency] = {}
    few: dict[str, Latency] = {}
    load: dict[str, Any] = {}
    page: Opened | None = None
    with ExitStack() as stack:
        filled = stack.enter_context(
            full_database(POSTGRES, FOLDER, OWNER, args.experiments, args.points, keep=args.keep)
        )
        print(f"{filled.experiments} experiments, {filled.mebibytes} MiB", flush=True)
        cores = set(range(psutil.cpu_count() or 1))
        os.sched_setaffinity(0, cores - {args.core} or cores)  # what is started inherits it
        if args.only in (None, "requests"):
            with (
                full_database(POSTGRES, FOLDER, OWNER, FEW, FEW_POINTS, keep=args.keep) as small,
                served(small) as service,
            ):
                few = measured(service, small, args.request_seconds)
        with served(filled) as service:
            if args.only in (None, "requests"):
                requests = measured(service, filled, args.request_seconds)
                for name, found in requests.items():
                    ratio = found.p50 / few[name].p50
                    print(f"{name:28} {found}  {ratio:5.2f} times p50 beside {FEW}", flush=True)
            if args.only in (None, "page"):
                page = opened(service.api_url, service.key, filled.searches)
                print(f"page of a search of 800 ideas: {page}", flush=True)
            if args.only in (None, "load"):
                ideas = args.ideas or int(4 * args.seconds)
                clients = Clients(args.streams, args.rate)
                paths = paths_of(filled)
                load = compare(service, paths, clients, args.seconds, ideas, args.core)
                print(json.dumps(plain(load), indent=2), flush=True)
    missed = [*missed_requests(requests), *missed_load(load)]
    if page is not None and page.worst > LIMIT:
        missed.append(f"page of a search: {page.worst:.2f} s > {LIMIT} s")
    for line in missed:
        print(f"missed: {line}")
    summary = {
        "benchmark": "api",
        "experiments": args.experiments,
        "points": args.points,
        **machine,
        "requests_ms": {name: [found.p50, found.p99] for name, found in requests.items()},
        "few_ms": {name: [found.p50, found.p99] for name, found in few.items()},
        "page_s": plain(page),
        "load": plain(load),
        "missed": len(missed),
    }
    print(json.dumps(summary))
    return 1 if missed else 0


def measured(service: Stack, filled: Filled, seconds: float) -> dict[str, Latency]:
    """How long each kind of request takes there."""
    headers = {"Authorization": f"Bearer {service.key}"}
    return measure(service.api_url, headers, paths_of(filled), seconds)


def missed_requests(found: dict[str, Latency]) -> list[str]:
    """Kinds of requests whose p99 is beyond its limit."""
    return [
        f"{name}: p99 {of.p99:g} ms > {LIMITS[name]} ms"
        for name, of in found.items()
        if of.p99 > LIMITS[name]
    ]


def missed_load(found: dict[str, Any]) -> list[str]:
    """What the load missed."""
    if not found:
        return []
    loaded, up = found["loaded"], found["cpu_per_measurement_up"]
    bars = {
        "events lost": (loaded["events_lost"], 0),
        "events doubled": (loaded["events_doubled"], 0),
        "streams that did not end": (loaded["streams_unfinished"], 0),
        "errors": (sum(loaded["errors"].values()), 0),
        "processor seconds per measurement, more by": (up, 0.2),
        "p99 of a sync in ms": (loaded["sync"].p99, 500),
    }
    return [f"{name}: {is_} > {most}" for name, (is_, most) in bars.items() if is_ > most]


if __name__ == "__main__":
    raise SystemExit(main())
