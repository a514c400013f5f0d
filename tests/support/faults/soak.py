"""Server mode under load while everything is killed: nothing lost, nothing doubled, nothing left.

64 fake hosts with 8 GPUs each, in 8 processes, measure 2,000 ideas that are submitted over HTTP
and implemented by implement workers, on Postgres and Redis. Meanwhile API, scheduler, implement
workers, hosts, Redis and Postgres are killed, stopped, flushed and cut off at random, several at
a time. Then everything is repaired, and when all work has ended the seven invariants are checked.
`python -m benchmarks.chaos soak` runs it.
"""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from sqlalchemy import select

from assay.storage import schema
from assay.storage.database import Database
from tests.support.faults import trouble
from tests.support.faults.arena import Arena
from tests.support.faults.hosts.environment import profile_name
from tests.support.faults.hosts.process import FleetProcess
from tests.support.faults.invariants import Evidence, Report, check, settle
from tests.support.faults.proxy import Proxy
from tests.support.faults.timing import TERMINAL, short_leases
from tests.support.faults.trouble import Fault, Trouble
from tests.support.faults.waste import waste
from tests.support.postgres import PostgresServer
from tests.support.service import toy_batch, toy_ideas
from tests.support.waiting import wait_until

HARDWARE = "fake-gpu"
GPUS = 8
#: Share of measurements by how many GPUs they need.
SIZES = {1: 0.60, 2: 0.20, 4: 0.12, 8: 0.08}
BATCH = 50
PER_PROCESS = 8
#: Longer than in tests of one fault: here faults overlap, and the machine is full.
SOAK_LEASE = 12.0
LOAD = 0.55  # of all GPU-seconds, so that what is lost can be made up for
QUIET_SECONDS = 600.0
SETTINGS = short_leases(SOAK_LEASE) | {
    "ASSAY_SCHEDULER_LEADER_SECONDS": "5",
    "ASSAY_SCHEDULER_RING_SECONDS": "[1, 3, 6]",
    "ASSAY_SCHEDULER_CORDON_SECONDS": "20",
    "ASSAY_SCHEDULER_LONGEST_CORDON_SECONDS": "60",
    "ASSAY_IMPLEMENTER_RETRY_SECONDS": "1",
    "ASSAY_IMPLEMENTER_RESCAN_SECONDS": "5",
}


@dataclass(frozen=True)
class Plan:
    """How large and how long."""

    minutes: float
    seed: int
    hosts: int = 64
    ideas: int = 2000

    @property
    def processes(self) -> int:
        """Hosts live eight to a process."""
        return max(1, self.hosts // PER_PROCESS)

    @property
    def seconds(self) -> float:
        return self.minutes * 60

    @property
    def mean_length(self) -> float:
        """Of a run, so that the load lasts as long as the faults do."""
        gpus = sum(size * share for size, share in SIZES.items())
        capacity = self.hosts * GPUS * self.seconds
        return LOAD * capacity / (gpus * self.ideas)

    @property
    def fault_every(self) -> float:
        return min(12.0, max(2.0, self.seconds / 60))


@dataclass
class Submitted:
    """What a client was told was accepted."""

    batches: list[str] = field(default_factory=list)
    retries: int = 0


class Soak:
    """An arena with many hosts, and the client that submits to it."""

    def __init__(self, folder: Path, cluster: PostgresServer, plan: Plan) -> None:
        self.plan = plan
        self.submitted = Submitted()
        self.arena = Arena(
            folder,
            cluster,
            settings=SETTINGS,
            implementers=2,
            s3=False,
            budget_seconds=plan.mean_length * 4 + 60,
        )
        self.api_proxies: list[Proxy] = []
        self.fleets: list[FleetProcess] = []

    def __enter__(self) -> Soak:
        """Start servers, then hosts."""
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.arena.__enter__()
        for number in range(self.plan.processes):
            proxy = Proxy(self.arena.stack.port).__enter__()
            self.api_proxies.append(proxy)
            names = [f"f{number}-{n}" for n in range(PER_PROCESS)]
            fleet = FleetProcess(
                f"f{number}",
                {name: self.arena.admit(name)[1] for name in names},
                self.arena.folder,
                api=f"http://127.0.0.1:{proxy.port}",
                flags=self._flags(adopts=number % 2 == 0),
            )
            self.fleets.append(fleet)
            fleet.start(wait=False)
        for fleet in self.fleets:
            fleet.wait_ready()

    def __exit__(self, *_: object) -> None:
        """Stop hosts, then servers; Postgres stays."""
        for fleet in self.fleets:
            fleet.end()
        self.arena.__exit__()
        for proxy in self.api_proxies:
            proxy.__exit__()

    def _flags(self, *, adopts: bool) -> list[str]:
        mean = self.plan.mean_length
        flags = ["--hardware-class", HARDWARE, "--gpus", str(GPUS)]
        flags += ["--seconds", str(mean * 0.3), str(mean * 1.7)]
        flags += ["--poll-seconds", "3", "--progress-seconds", str(max(1.0, mean / 8))]
        flags += ["--patience-seconds", str(SOAK_LEASE * 5), "--failing", "0.05"]
        flags += ["--infrastructure", "0.01", "--log-bytes", "4000", "--points", "8"]
        return [*flags, "--adopt"] if adopts else flags

    def _http(self, method: str, path: str, **options: Any) -> httpx2.Response:
        stack = self.arena.stack
        headers = {"Authorization": f"Bearer {stack.key}", **options.pop("headers", {})}
        return httpx2.request(
            method, f"{stack.api_url}{path}", headers=headers, timeout=60, **options
        )

    # The client ----------------------------------------------------------------------------

    def submit_all(self, stop: threading.Event) -> None:
        """Submit every idea, a batch at a time, spread over most of the soak."""
        chance = random.Random(self.plan.seed)
        count = self.plan.ideas // BATCH
        pause = self.plan.seconds * 0.8 / count
        for number in range(count):
            size = chance.choices(list(SIZES), list(SIZES.values()))[0]
            self._submit(number, size, stop)
            if stop.wait(pause * chance.uniform(0.5, 1.5)):
                pause = 0.0

    def _submit(self, number: int, gpus: int, stop: threading.Event) -> None:
        """One batch, asked for until it is answered, under one key."""
        batch = toy_batch(toy_ideas(BATCH, first=number * BATCH))
        batch.profile, batch.hardware_class = profile_name(gpus), HARDWARE
        body = batch.model_dump_json()
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"soak-{number}"}
        while True:
            try:
                answer = self._http("POST", "/v1/batches", content=body, headers=headers)
            except httpx2.TransportError:
                answer = None
            if answer is not None and answer.status_code == 202:
                break
            if answer is not None and answer.status_code < 500:
                raise RuntimeError(f"a batch is refused: {answer.text}")
            self.submitted.retries += 1
            time.sleep(0.5)
        self.submitted.batches.append(answer.json()["id"])

    def remember(self) -> None:
        """Read from the API which experiments the accepted batches hold."""
        for batch in self.submitted.batches:
            query = {"batch": batch, "limit": str(BATCH)}
            page = self._http("GET", "/v1/experiments", params=query)
            page.raise_for_status()
            self.arena.accepted += [one["id"] for one in page.json()["data"]]

    # The end -------------------------------------------------------------------------------

    def heal(self) -> None:
        """Repair every network, and start every process again."""
        for proxy in self.api_proxies:
            proxy.heal()
        self.arena.heal()
        for fleet in self.fleets:
            if fleet.running:
                fleet.resume()
            else:
                fleet.start()

    def unfinished(self) -> int:
        """Return how many experiments have not ended."""
        return self.arena.count(schema.Experiment, schema.Experiment.state.not_in(TERMINAL))

    def left(self) -> list[str]:
        """Processes of this soak that still run; Postgres is meant to."""
        found = []
        for process in psutil.process_iter(["cmdline", "status", "environ"]):
            words = " ".join(process.info["cmdline"] or [])
            ours = str(self.arena.folder) in words or self._is_listener(process)
            dead = process.info["status"] == psutil.STATUS_ZOMBIE
            if ours and not dead and str(self.arena.cluster.data) not in words:
                found.append(f"{process.pid}: {words[:200]}")
        return found

    def _is_listener(self, process: psutil.Process) -> bool:
        environ = process.info["environ"] or {}
        url = environ.get("ASSAY_SERVER_DATABASE_URL", "")
        return f":{self.arena.db_proxy.port}/" in url


def faults(soak: Soak) -> list[Fault]:
    """Return everything that may break."""
    arena, lease = soak.arena, SOAK_LEASE
    stack, found = arena.stack, []
    for part in (stack.api, *stack.schedulers, *stack.implementers):
        found += [trouble.killed(part), trouble.stopped(part, lease)]
    for fleet, proxy in zip(soak.fleets, soak.api_proxies, strict=True):
        found += [trouble.hosts_killed(fleet, lease), trouble.hosts_stopped(fleet, lease)]
        found += [trouble.cut(f"network of {fleet.label}", proxy, lease)]
        found += [trouble.frozen(f"network of {fleet.label}", proxy, lease)]
    found.append(trouble.cut("network of Postgres", arena.db_proxy, lease))
    found.append(trouble.postgres_killed(arena.cluster, lease))
    assert stack.redis is not None
    return [*found, trouble.killed(stack.redis), trouble.flushed(stack.redis)]


def run(folder: Path, cluster: PostgresServer, plan: Plan) -> dict[str, Any]:
    """Run the whole soak, and return what came of it."""
    stop = threading.Event()
    with Soak(folder, cluster, plan) as soak:
        client = threading.Thread(target=soak.submit_all, args=(stop,), daemon=True)
        try:
            print(f"{plan.hosts} hosts are up; runs take {plan.mean_length:.1f} s on average")
            began = time.monotonic()
            troubles = Trouble(faults(soak), seed=plan.seed, every=plan.fault_every)
            client.start()
            troubles.start()
            _watch(soak, plan.seconds)
            troubles.stop()
            stop.set()
            soak.heal()
            client.join(QUIET_SECONDS)
            quiet = wait_until(
                lambda: soak.unfinished() == 0, "everything has ended", QUIET_SECONDS
            )
            soak.remember()
            took = time.monotonic() - began
            counts = troubles.counts
            soak.arena.crashes += counts["implementer killed"] + counts["implementer stopped"]
            settle(_evidence(soak))
        finally:
            stop.set()
    # Once more, now that nothing should run.
    report = check(_evidence(soak, processes=soak.left))
    (folder / "history.json").write_text(json.dumps([asdict(h) for h in troubles.history]))
    summary = _summary(soak, report, troubles, took, quiet)
    soak.arena.db.dispose()
    return summary


def _watch(soak: Soak, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 15))
        try:
            print(
                f"{max(left, 0):6.0f} s left, {soak.unfinished()} of what was accepted unfinished"
            )
        except Exception as error:  # the database is away just now
            print(f"{left:6.0f} s left, {type(error).__name__}")


def _evidence(soak: Soak, **more: Any) -> Evidence:
    arena = soak.arena
    return Evidence(
        db=arena.db,
        store=arena.store,
        journals=arena.journals,
        accepted=arena.accepted,
        crashes=arena.crashes,
        **more,
    )


def _summary(
    soak: Soak, report: Report, troubles: Trouble, took: float, quiet: float
) -> dict[str, Any]:
    counts, spent = report.counts, waste(soak.arena.db)
    ended = sum(counts[f"experiments_{state}"] for state in TERMINAL)
    return {
        "minutes": soak.plan.minutes,
        "hosts": soak.plan.hosts,
        "gpus": soak.plan.hosts * GPUS,
        "experiments": counts["experiments"],
        "succeeded": counts["experiments_succeeded"],
        "failed": counts["experiments_failed"],
        "failed_by_code": _failures(soak.arena.db),
        "results": counts["results"],
        "starts": counts["starts"],
        "attempts": {k: v for k, v in sorted(counts.items()) if k.startswith("attempts_")},
        "faults": sum(troubles.counts.values()),
        "faults_by_kind": dict(sorted(troubles.counts.items())),
        "faults_that_failed": troubles.wrong,
        "submissions_repeated": soak.submitted.retries,
        "lost": len(soak.submitted.batches) * BATCH - ended,
        "doubled": counts["doubled"],
        "leaked": sum(violation.startswith("I5") for violation in report.violations),
        "violations": report.violations[:50],
        "waste_ratio": round(spent.ratio, 4),
        "wasted_gpu_seconds": spent.by_cause,
        "gpu_seconds": round(spent.total, 1),
        "seconds": round(took, 1),
        "seconds_to_quiet": round(quiet, 1),
    }


def _failures(db: Database) -> dict[str, int]:
    found: dict[str, int] = {}
    with db.read() as session:
        for failure in session.scalars(select(schema.Experiment.failure)):
            if failure:
                found[failure["code"]] = found.get(failure["code"], 0) + 1
    return found
