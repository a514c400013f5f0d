"""How much of the worker an asynchronous search leaves idle while a model takes its time.

    python -m benchmarks.slots --decisions 16 --batch-size 2 --latency 20

The search is of `nanogpt` tiny, its ideator a scripted model behind the OpenAI wire format that
answers after `--latency` seconds; the ideas are carried out as they are written. Once a second the
worker is asked how many measurements it runs, from the first one of the search until its last
decision is submitted. Measurements of the baseline are busy slots as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assay.client import Client
from assay.contracts.batch import BatchOptions
from assay.contracts.search import SearchRequest
from assay.llm import open_ideator
from assay.search import SearchConfig, drive
from tests.support.provider.searching import MODEL, Line, SearchingProvider
from tests.support.service import ServiceProcess

#: So many values that ideas hardly repeat: identical codebases would be measured once.
LINES = [
    Line(
        "config.py",
        "    learning_rate: float = 0.003",
        [f"{0.001 + 0.00005 * step:.5f}" for step in range(100)],
    ),
    Line(
        "config.py",
        "    warmup_steps: int = 28",
        [str(step) for step in range(1, 120) if step != 28],
    ),
    Line("config.py", "    lr_floor: float = 0.1", [f"{0.005 * step:.3f}" for step in range(100)]),
    Line(
        "config.py", "    beta1: float = 0.9", [f"{0.8 + 0.001 * step:.3f}" for step in range(99)]
    ),
]


@dataclass
class Watcher:
    """Counts busy slots once a second, in a thread of its own."""

    client: Client
    search: str
    decisions: int
    slots: int
    busy: list[int] = field(default_factory=list)
    is_done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Count until the last decision is submitted or `is_done` is set."""
        while not self.is_done.wait(1.0):
            (worker,) = self.client.workers.list()
            count = min(len(worker.running), self.slots)
            if count or self.busy:
                self.busy.append(count)
            batches = list(self.client.batches.list(search=self.search))
            if len(batches) >= self.decisions:
                return


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the search and print the share of idle slots."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--decisions", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2, help="Measurements at the same time.")
    parser.add_argument("--latency", type=float, default=20.0, help="Seconds of an answer.")
    parser.add_argument("--baseline-seeds", type=int, default=2)
    args = parser.parse_args(arguments)
    config = SearchConfig.make(
        "thompson",
        {"keep": args.slots},
        BatchOptions(baseline_seeds=args.baseline_seeds, allow_unisolated=True),
        pause=False,
    )
    with (
        tempfile.TemporaryDirectory(prefix="assay-slots-") as name,
        SearchingProvider(LINES, seconds=args.latency) as provider,
    ):
        service = ServiceProcess(Path(name) / "data", cpus=args.slots, sandbox="auto")
        service.start()
        try:
            with service.client() as client, service.client() as other:
                search = client.searches.create(
                    SearchRequest(
                        environment="nanogpt",
                        profile="tiny",
                        strategy="thompson",
                        epochs=args.decisions,
                        batch_size=args.batch_size,
                        ideator=MODEL,
                        executor="offline:literal",
                        config=config.record(),
                    )
                )
                watcher = Watcher(other, search.id, args.decisions, args.slots)
                thread = threading.Thread(target=watcher.watch)
                thread.start()
                key = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": provider.openai_url}
                begun = time.monotonic()
                drive(client, search.id, open_ideator(MODEL, {**os.environ, **key}))
                seconds = time.monotonic() - begun
                watcher.is_done.set()
                thread.join()
                durations = [
                    experiment.seconds
                    for batch in client.batches.list(search=search.id)
                    for experiment in client.experiments.list(batch=batch.id)
                    if experiment.seconds is not None
                ]
        finally:
            service.stop()
    idle = 1 - sum(watcher.busy) / (args.slots * len(watcher.busy))
    print(f"{100 * idle:.1f} % of {args.slots} slots idle over {len(watcher.busy)} s")
    print(
        json.dumps(
            {
                "benchmark": "slots",
                "decisions": args.decisions,
                "experiments": len(durations),
                "slots": args.slots,
                "latency_s": args.latency,
                "median_experiment_s": round(statistics.median(durations), 1),
                "search_s": round(seconds, 1),
                "idle": round(idle, 3),
                "alternative": "full slots",
                "alternative_idle": 0.0,
            }
        )
    )


if __name__ == "__main__":
    main()
