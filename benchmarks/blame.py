"""Who is blamed on a host that is too busy: good ideas, and ideas that end badly by themselves.

    python -m benchmarks.blame --processors 0.2 --toy 32 --nanogpt 8

`assay serve`, with all that it starts, gets a fifth of one processor. Good ideas must all be
scored. Those that sleep, deadlock, end by a signal of their own or leave children behind must be
blamed, and tried twice at most, and the worker must not be cordoned. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assay.client import Client
from assay.contracts.batch import BatchRequest, IdeaRequest
from assay.environments import Catalog
from tests.support.busy_host import busy_host, join_files
from tests.support.service import ServiceProcess, toy_ideas

#: What a bad idea does in place of the walk, and the code of the failure it deserves.
BAD = {
    "sleeps": ("import time; time.sleep(10_000)", "wall_budget_exceeded"),
    "deadlocks": (
        "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "wall_budget_exceeded",
    ),
    "ends itself": ("import signal; os.kill(os.getpid(), signal.SIGTERM)", "crashed"),
    "says 137": ("os._exit(137)", "crashed"),
    "forks and hangs": (
        "import time; [os.fork() for _ in range(3)]; time.sleep(10_000)",
        "wall_budget_exceeded",
    ),
}
_LINE = "RESTARTS = 1"


def bad_ideas() -> list[IdeaRequest]:
    """Ideas for `toy` that end badly, each in its own way."""
    return [
        IdeaRequest(
            client_key=name,
            text=(
                f"[Experiment] It {name}.\n[Code Changes]\nIn `search.py`:\n<<<<<<< SEARCH\n"
                f"{_LINE}\n=======\n{_LINE}\n{code}\n>>>>>>> REPLACE\n[End]"
            ),
        )
        for name, (code, _) in BAD.items()
    ]


def nanogpt_ideas(count: int) -> list[IdeaRequest]:
    """Good ideas for `nanogpt`: each sets another learning rate."""
    (knob,) = [k for k in Catalog().get("nanogpt").manifest.knobs if k.name == "learning_rate"]
    name, _, value = knob.line.partition(" = ")
    number = float(value.split("#")[0])
    return [
        IdeaRequest(
            client_key=f"rate-{n}",
            text=(
                f"[Experiment] Learn at another rate ({n}).\n[Code Changes]\nIn `{knob.file}`:\n"
                f"<<<<<<< SEARCH\n{knob.line}\n=======\n{name} = {number * (0.8 + 0.05 * n):.6f}\n"
                ">>>>>>> REPLACE\n[End]"
            ),
        )
        for n in range(count)
    ]


def submit(client: Client, environment: str, ideas: list[IdeaRequest]) -> str:
    """Submit a batch without a baseline; return its id."""
    request = BatchRequest.model_validate(
        {
            "environment": environment,
            "profile": "tiny",
            "ideas": [idea.model_dump() for idea in ideas],
            "options": {"baseline_seeds": 0, "novelty": "allow", "repairs": 0},
        }
    )
    return client.batches.create(request).id


def ends(client: Client, batch: str) -> Iterator[End]:
    """How the ideas of a finished batch ended."""
    for experiment in client.experiments.list(batch=batch):
        failure = experiment.failure
        attempts = [
            attempt
            for measurement in client.measurements.list(experiment=experiment.id)
            for attempt in measurement.attempts
        ]
        yield End(
            str(experiment.idea.client_key),
            experiment.state,
            failure.code if failure else "",
            [attempt.failure.code if attempt.failure else "" for attempt in attempts],
        )


@dataclass(frozen=True)
class End:
    """How an idea ended: `tries` are the codes of its attempts, empty for one that was scored."""

    name: str
    state: str
    code: str
    tries: list[str]

    @property
    def is_right(self) -> bool:
        """Whether a good idea was scored, or a bad one blamed and tried twice at most."""
        if self.name not in BAD:
            return self.state == "succeeded"
        own = [code for code in self.tries if code == self.code]
        return self.code == BAD[self.name][1] and len(own) <= 2


@contextmanager
def confined(folder: Path, processors: float) -> Iterator[ServiceProcess]:
    """A service that gets, with all that it starts, so much of the processors."""
    with busy_host(processors=processors) as groups:
        service = ServiceProcess(folder)
        join = "; ".join(f"open({path!r}, 'w').write('0')" for path in join_files(groups))
        run = "import runpy; runpy.run_module('assay.cli', run_name='__main__', alter_sys=True)"
        service.launcher = ["-c", f"{join}; {run}"]
        service.start()
        try:
            yield service
        finally:
            service.stop()


def main() -> int:
    """Run, print what became of whom, and fail if anybody is blamed wrongly."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processors", type=float, default=0.2)
    parser.add_argument("--toy", type=int, default=32)
    parser.add_argument("--nanogpt", type=int, default=8)
    parser.add_argument("--limit", type=float, default=5400, help="seconds for all")
    given = parser.parse_args()
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="assay-blame-") as folder,
        confined(Path(folder), given.processors) as service,
        service.client() as client,
    ):
        batches = {"toy": submit(client, "toy", [*toy_ideas(given.toy), *bad_ideas()])}
        if given.nanogpt:
            batches["nanogpt"] = submit(client, "nanogpt", nanogpt_ideas(given.nanogpt))
        for batch in batches.values():
            left = given.limit - (time.monotonic() - started)
            client.batches.wait(batch, timeout=max(1.0, left))
        found = {name: list(ends(client, batch)) for name, batch in batches.items()}
        (worker,) = client.workers.list()
    wrong = [end for each in found.values() for end in each if not end.is_right]
    for name, each in found.items():
        for (idea, state), count in Counter(
            (end.name if end.name in BAD else "good", f"{end.state} {end.code}") for end in each
        ).items():
            print(f"{name:8} {idea:16} {count:3} x {state}")
        tries = Counter(code or "scored" for end in each for code in end.tries)
        print(f"{name:8} attempts: {dict(tries)}")
    for end in wrong:
        print(f"WRONG: {end}")
    line = {
        "name": "blame",
        "processors": given.processors,
        "good": sum(end.name not in BAD for each in found.values() for end in each),
        "bad": sum(end.name in BAD for each in found.values() for end in each),
        "wrong": len(wrong),
        "cordoned": worker.state != "active" or worker.cordoned_until is not None,
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(line))
    return 1 if wrong or line["cordoned"] else 0


if __name__ == "__main__":
    sys.exit(main())
