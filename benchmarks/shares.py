"""Two owners on one live service, one with a hundred times as many ideas as the other.

    python -m benchmarks.shares                  # half a minute

Both submit `toy` ideas that sleep, the large batch first, to an embedded service whose worker has
more slots than the host has cores. From the first attempt of the smaller batch until its last one
has been assigned, both have work: of the slot seconds in that time, each is due half. The share is
that of attempts in the database, from when they were assigned until they gave their slots back.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import select

from assay.client import Client
from assay.storage import schema
from assay.storage.database import Database
from benchmarks.machine import about_machine
from tests.support.service import ServiceProcess, toy_batch, toy_ideas

KEYS = {"large": "key-of-the-large-owner", "small": "key-of-the-small-owner"}
#: Of the slot seconds, how far from its half an owner may be.
MOST_OFF = 0.05
WAIT_SECONDS = 1800.0


@dataclass(frozen=True)
class Held:
    """A slot that an attempt had."""

    owner: str
    begin: datetime
    end: datetime


def attempts(url: str) -> list[Held]:
    """All attempts that gave their slots back."""
    db = Database(url)
    attempt, measurement = schema.Attempt, schema.Measurement
    with db.read() as session:
        rows = session.execute(
            select(measurement.owner, attempt.created_at, attempt.released_at).join(
                measurement, measurement.id == attempt.measurement_id
            )
        ).all()
    db.dispose()
    return [Held(owner, begin, end) for owner, begin, end in rows if end is not None]


def shares(held: list[Held]) -> dict[str, float]:
    """The part of the slot seconds that each owner had while both had work."""
    small = [each for each in held if each.owner == "small"]
    begin, end = min(each.begin for each in small), max(each.begin for each in small)
    seconds: dict[str, float] = defaultdict(float)
    for each in held:
        inside = (min(each.end, end) - max(each.begin, begin)).total_seconds()
        seconds[each.owner] += max(0.0, inside)
    total = sum(seconds.values())
    return {owner: round(seconds[owner] / total, 3) for owner in KEYS}


def main() -> int:
    """Print both shares; 1 if one is too far from half."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ideas", type=int, default=12, help="Ideas of the smaller owner.")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0, help="That an idea sleeps.")
    args = parser.parse_args()
    about, many = about_machine(), 100 * args.ideas
    folder = Path(tempfile.mkdtemp(prefix="assay-shares-"))
    folder.chmod(0o755)  # sandboxed programs of other users look into it
    service = ServiceProcess(folder, cpus=args.slots)
    service.env = {"ASSAY_IMPLEMENTER_API_KEYS": json.dumps(KEYS)}
    try:
        ready = service.start()
        with Client(ready["api"], api_key=KEYS["large"]) as large:
            ideas = toy_ideas(many, seconds=args.seconds)
            large.batches.create(toy_batch(ideas, baseline_seeds=0))
        with Client(ready["api"], api_key=KEYS["small"]) as small:
            ideas = toy_ideas(args.ideas, first=many, seconds=args.seconds)
            batch = small.batches.create(toy_batch(ideas, baseline_seeds=0)).id
            done = small.batches.wait(batch, timeout=WAIT_SECONDS)
        if done.counts.succeeded != args.ideas:
            raise RuntimeError(f"not all succeeded: {done.counts}")
        service.kill()
        found = shares(attempts(f"sqlite:///{ready['database']}"))
    finally:
        if service.running:
            service.kill()
        shutil.rmtree(folder, ignore_errors=True)
    is_missed = any(abs(share - 0.5) > MOST_OFF for share in found.values())
    summary = {"benchmark": "shares", "ideas": args.ideas, "many": many, "slots": args.slots}
    print(json.dumps({**summary, "shares": found, "missed": is_missed, **about}))
    return int(is_missed)


if __name__ == "__main__":
    raise SystemExit(main())
