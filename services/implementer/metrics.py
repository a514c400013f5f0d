"""`GET /metrics`: what this process counts, and what the database knows."""

from __future__ import annotations

import operator
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from assay.domain.errors import Unavailable
from assay.storage.database import Database
from assay.storage.statistics import WAITS, Ended, Key, Ledger, Present, Tally, present
from assay.telemetry.counts import REGISTRY

#: The database is not asked more often, however many scrape.
CACHE_SECONDS = 5.0
OTHER = "other"
_CLASS = "hardware_class"
Fold = Callable[[float, float], float]


class Metrics:
    """What a scrape is answered with."""

    def __init__(self, db: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._own = CollectorRegistry()
        self._own.register(DatabaseCollector(db, clock))

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(REGISTRY) + generate_latest(self._own)


class DatabaseCollector(Collector):
    """Reads the database at a scrape, at most every few seconds by `clock`."""

    def __init__(self, db: Database, clock: Callable[[], float]) -> None:
        self._db = db
        self._clock = clock
        self._ledger = Ledger(db)
        self._names = Names()
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._families: list[Metric] = []

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not need the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if self._clock() - self._read_at >= CACHE_SECONDS:
                self._families = list(self._read())
                self._read_at = self._clock()
            yield from self._families

    def _read(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("assay_database_up", "1 if the database answers.")
        yield up
        try:
            with self._db.snapshot() as session:
                now, ended = present(self._db, session), self._ledger.read(session)
        except Unavailable:
            up.add_metric([], 0)
            return
        up.add_metric([], 1)
        yield from _present(now, self._names)
        yield from _ended(ended, self._names)


class Names:
    """Bounds the names in labels, which others choose: codes and hardware classes come from
    workers and evaluators, models and hardware classes from callers.

    The first `MOST` of a kind keep their names, so that no count ever falls.
    """

    MOST = 50

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = defaultdict(set)

    def few(
        self, kind: str, tally: Mapping[Key, float], at: int = 0, fold: Fold = operator.add
    ) -> Tally:
        """The same numbers, with few names in that place of the keys; `fold` joins the others."""
        found, known = Tally(), self._known[kind]
        for key, value in tally.items():
            name = str(key[at])
            if len(known) < self.MOST:
                known.add(name)
            if name not in known:
                key = (*key[:at], OTHER, *key[at + 1 :])
            found[key] = fold(found[key], value)
        return found


def _present(now: Present, names: Names) -> Iterator[Metric]:
    size = ["hardware_class", "gpus", "cpus"]
    waiting = {(w.size.hardware_class, w.size.gpus, w.size.cpus): w for w in now.queue}
    yield _gauge(
        "assay_queue_measurements",
        "Measurements that wait, by what they need.",
        size,
        names.few(_CLASS, {key: w.measurements for key, w in waiting.items()}),
    )
    yield _gauge(
        "assay_queue_oldest_wait_seconds",
        "How long the oldest of them has waited.",
        size,
        names.few(_CLASS, {key: w.oldest_seconds for key, w in waiting.items()}, fold=max),
    )
    for name, text, counts in (
        ("assay_attempts", "Attempts that have not ended, by state.", now.attempts),
        ("assay_experiments", "Experiments by state.", now.experiments),
        (
            "assay_workers",
            "Workers by state; `silent`, `cordoned` and `draining` ones get no new work.",
            now.workers,
        ),
    ):
        yield _gauge(name, text, ["state"], {(state,): n for state, n in counts.items()})
    for field, name, text in (
        ("gpus", "assay_gpus_installed", "GPUs of active workers."),
        ("usable_gpus", "assay_gpus_usable", "Those that are healthy."),
        ("held_gpus", "assay_gpus_held", "Those that attempts hold."),
        ("cpus", "assay_cpus_installed", "Cores of active workers."),
        ("held_cpus", "assay_cpus_held", "Those that attempts hold."),
    ):
        values: dict[Key, float] = {(c,): getattr(h, field) for c, h in now.hosts.items()}
        yield _gauge(name, text, ["hardware_class"], names.few(_CLASS, values))
    for name, text, value in (
        ("assay_outbox_messages", "Messages that wait to be delivered.", now.outbox),
        ("assay_outbox_oldest_seconds", "Age of the oldest.", now.outbox_seconds),
        (
            "assay_leader_lease_seconds",
            "What is left of the scheduler's lease; below 0 nobody schedules.",
            now.leader_seconds,
        ),
    ):
        yield _gauge(name, text, [], {(): value})


def _ended(ended: Ended, names: Names) -> Iterator[Metric]:
    attempts = names.few("cause", ended.attempts, at=1)
    yield _counter(
        "assay_attempts_finished",
        "Attempts by how they ended and why; `counted` if they decided their measurement.",
        ["state", "cause", "counted"],
        {(s, c, "yes" if counted else "no"): n for (s, c, counted), n in attempts.items()},
    )
    for unit, tally in (("gpu", ended.gpu_seconds), ("cpu", ended.cpu_seconds)):
        used, wasted = Tally(), Tally()
        for (_, cause, counted), seconds in names.few("cause", tally, at=1).items():
            used[()] += seconds
            if not counted:
                wasted[cause,] += seconds
        text = f"{unit.upper()}-seconds that attempts held from their assignment to their end"
        yield _counter(f"assay_used_{unit}_seconds", f"{text}.", [], used)
        yield _counter(
            f"assay_wasted_{unit}_seconds", f"{text} and decided nothing.", ["cause"], wasted
        )
    yield _counter(
        "assay_rings_resent",
        "Messages repeated because no worker had claimed the attempt.",
        [],
        {(): ended.rings},
    )
    yield _counter(
        "assay_measurements_failed",
        "Measurements that failed, by code.",
        ["code"],
        names.few("cause", ended.failures),
    )
    yield _waits(ended)
    for name, text, labels, tally in (
        ("assay_llm_calls", "Calls of models.", ["model", "state"], ended.calls),
        ("assay_llm_cost_dollars", "What they cost.", ["model"], ended.dollars),
        ("assay_llm_tokens", "What they read and wrote.", ["model", "direction"], ended.tokens),
    ):
        yield _counter(name, text, labels, names.few("model", tally))


def _waits(ended: Ended) -> Metric:
    family = HistogramMetricFamily(
        "assay_queue_wait_seconds",
        "From being queued to the first assignment.",
        labels=["gpus"],
    )
    for (gpus,), total in ended.wait_seconds.items():
        count, buckets = 0.0, []
        for at, bound in enumerate([*map(str, WAITS), "+Inf"]):
            count += ended.waits.get((gpus, at), 0.0)
            buckets.append((bound, count))
        family.add_metric([str(gpus)], buckets, total)
    return family


def _gauge(name: str, text: str, labels: list[str], values: dict[Key, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items(), key=str):
        family.add_metric([str(part) for part in key], value)
    return family


def _counter(name: str, text: str, labels: list[str], values: dict[Key, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items(), key=str):
        family.add_metric([str(part) for part in key], value)
    return family
