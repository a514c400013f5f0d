"""Server mode under load while everything is killed: nothing lost, nothing doubled, nothing left.

    python -m benchmarks.soak --minutes 20 --seed 0

64 fake hosts with 8 GPUs each, in 8 processes, measure 2,000 ideas that are submitted over HTTP
and implemented by implement workers, on Postgres and Redis. Meanwhile API, scheduler, implement
workers, hosts, Redis and Postgres are killed, stopped, flushed and cut off at random, several at
a time. Then everything is mended, and when all work has ended the seven invariants are checked
(`tests.support.faults.invariants`). The last line is JSON; the exit code is 1 if one does not
hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
from sqlalchemy import func, select

from assay.domain.states import TERMINAL_EXPERIMENT
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.support.faults import breaking
from tests.support.faults.hosts.environment import profile_name, write_environment
from tests.support.faults.hosts.process import FleetProcess
from tests.support.faults.invariants import Evidence, Report, check
from tests.support.faults.proxy import Proxy
from tests.support.faults.trouble import Fault, Trouble
from tests.support.faults.waste import Waste, waste
from tests.support.postgres import PostgresServer
from tests.support.service import toy_batch, toy_ideas
from tests.support.stack import Stack
from tests.support.waiting import wait_until

HARDWARE = "fake-gpu"
GPUS = 8
#: Share of measurements by how many GPUs they need.
SIZES = {1: 0.60, 2: 0.20, 4: 0.12, 8: 0.08}
BATCH = 50
PER_PROCESS = 8
LEASE = 12.0
LOAD = 0.55  # of all GPU-seconds, so that what is lost can be made up for
QUIET_SECONDS = 600.0
_TERMINAL = [s.value for s in TERMINAL_EXPERIMENT]
_STACK = {
    "ASSAY_SCHEDULER_LEASE_SECONDS": str(LEASE),
    "ASSAY_SCHEDULER_SUSPECT_SECONDS": str(LEASE / 2),
    "ASSAY_SCHEDULER_LEADER_SECONDS": "5",
    "ASSAY_SCHEDULER_RING_SECONDS": "[1, 3, 6]",
    "ASSAY_SCHEDULER_UNCLAIMED_SECONDS": str(LEASE),
    "ASSAY_SCHEDULER_CORDON_SECONDS": "20",
    "ASSAY_SCHEDULER_LONGEST_CORDON_SECONDS": "60",
    "ASSAY_IMPLEMENTER_LEASE_SECONDS": str(LEASE),
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
    experiments: list[str] = field(default_factory=list)
    retries: int = 0


class Soak:
    """The stack, its hosts and its client."""

    def __init__(self, folder: Path, cluster: PostgresServer, plan: Plan) -> None:
        self.folder = folder
        self.cluster = cluster
        self.plan = plan
        self.submitted = Submitted()
        self.db_proxy = Proxy(cluster.port)
        write_environment(folder / "environments", budget_seconds=plan.mean_length * 4 + 60)
        through = cluster.url.replace(f":{cluster.port}/", ":{port}/")
        self._through = through
        self.db = Database(cluster.url)
        self.stack = Stack(
            folder / "stack",
            database_url=cluster.url,
            s3=False,
            implementers=2,
            workers=0,
            settings=_STACK | {"ASSAY_ENVIRONMENTS": str(folder / "environments")},
        )
        self.api_proxies: list[Proxy] = []
        self.fleets: list[FleetProcess] = []

    def start(self) -> None:
        """Start servers, then hosts."""
        self.db_proxy.__enter__()
        self.stack.database_url = self._through.format(port=self.db_proxy.port)
        self.stack.start()
        for number in range(self.plan.processes):
            proxy = Proxy(self.stack.port)
            proxy.__enter__()
            self.api_proxies.append(proxy)
            tokens = {f"f{number}-{n}": self._admit(f"f{number}-{n}") for n in range(PER_PROCESS)}
            fleet = FleetProcess(
                f"f{number}",
                tokens,
                self.folder,
                api=f"http://127.0.0.1:{proxy.port}",
                flags=self._flags(adopts=number % 2 == 0),
            )
            self.fleets.append(fleet)
            fleet.start(wait=False)
        for fleet in self.fleets:
            fleet.wait_ready()

    def _flags(self, *, adopts: bool) -> list[str]:
        mean = self.plan.mean_length
        flags = ["--hardware-class", HARDWARE, "--gpus", str(GPUS)]
        flags += ["--seconds", str(mean * 0.3), str(mean * 1.7)]
        flags += ["--poll-seconds", "3", "--progress-seconds", str(max(1.0, mean / 8))]
        flags += ["--patience-seconds", str(LEASE * 5), "--failing", "0.05"]
        flags += ["--infrastructure", "0.01", "--log-bytes", "4000", "--points", "8"]
        return [*flags, "--adopt"] if adopts else flags

    def _admit(self, name: str) -> str:
        answer = self._http("POST", "/v1/workers", json={"name": name})
        answer.raise_for_status()
        return str(answer.json()["token"])

    def _http(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.stack.key}", **options.pop("headers", {})}
        return httpx2.request(
            method, f"{self.stack.api_url}{path}", headers=headers, timeout=60, **options
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
        """Which experiments the accepted batches hold, as the API tells."""
        for batch in self.submitted.batches:
            query = {"batch": batch, "limit": str(BATCH)}
            page = self._http("GET", "/v1/experiments", params=query)
            page.raise_for_status()
            self.submitted.experiments += [one["id"] for one in page.json()["data"]]

    # The end -------------------------------------------------------------------------------

    def heal(self) -> None:
        """Every network good, every process running."""
        for proxy in (self.db_proxy, *self.api_proxies):
            proxy.heal()
        if not self.cluster.answers():
            self.cluster.start()
        for part in self.stack.parts.values():
            if part.running:
                part.resume()
            else:
                part.start()
        for fleet in self.fleets:
            if fleet.running:
                fleet.resume()
            else:
                fleet.start()

    def unfinished(self) -> int:
        """How many experiments have not ended."""
        table = schema.Experiment
        query = select(func.count()).select_from(table).where(table.state.not_in(_TERMINAL))
        with self.db.read() as session:
            return int(session.scalars(query).one())

    def end(self) -> None:
        """Stop hosts, then servers; Postgres stays."""
        for fleet in self.fleets:
            fleet.end()
        self.stack.stop(check=False)
        for proxy in (self.db_proxy, *self.api_proxies):
            proxy.__exit__()

    def left(self) -> list[str]:
        """Processes of this soak that still run; Postgres is meant to."""
        found = []
        for process in psutil.process_iter(["cmdline", "status", "environ"]):
            words = " ".join(process.info["cmdline"] or [])
            ours = str(self.folder) in words or self._is_listener(process)
            dead = process.info["status"] == psutil.STATUS_ZOMBIE
            if ours and not dead and str(self.cluster.data) not in words:
                found.append(f"{process.pid}: {words[:200]}")
        return found

    def _is_listener(self, process: psutil.Process) -> bool:
        environ = process.info["environ"] or {}
        url = environ.get("ASSAY_SERVER_DATABASE_URL", "")
        return f":{self.db_proxy.port}/" in url


def faults(soak: Soak) -> list[Fault]:
    """Everything that may break."""
    stack, found = soak.stack, []
    for part in (stack.api, *stack.schedulers, *stack.implementers):
        found += [breaking.killed(part), breaking.stopped(part, LEASE)]
    for fleet, proxy in zip(soak.fleets, soak.api_proxies, strict=True):
        found += [breaking.hosts_killed(fleet, LEASE), breaking.hosts_stopped(fleet, LEASE)]
        found += [breaking.cut(f"network of {fleet.label}", proxy, LEASE)]
        found += [breaking.frozen(f"network of {fleet.label}", proxy, LEASE)]
    found.append(breaking.cut("network of Postgres", soak.db_proxy, LEASE))
    found.append(breaking.postgres_killed(soak.cluster, LEASE))
    assert stack.redis is not None
    return [*found, breaking.killed(stack.redis), breaking.flushed(stack.redis)]


def run(folder: Path, cluster: PostgresServer, plan: Plan) -> dict[str, Any]:
    """The whole soak; returns what came of it."""
    soak = Soak(folder, cluster, plan)
    stop = threading.Event()
    client = threading.Thread(target=soak.submit_all, args=(stop,), daemon=True)
    try:
        soak.start()
        print(f"{plan.hosts} hosts are up; runs take {plan.mean_length:.1f} s on average")
        began = time.monotonic()
        trouble = Trouble(faults(soak), seed=plan.seed, every=plan.fault_every)
        client.start()
        trouble.start()
        _watch(soak, plan.seconds)
        trouble.stop()
        stop.set()
        soak.heal()
        client.join(QUIET_SECONDS)
        quiet = wait_until(lambda: soak.unfinished() == 0, "everything has ended", QUIET_SECONDS)
        soak.remember()
        took = time.monotonic() - began
        _settle(soak)
    finally:
        stop.set()
        soak.end()
    report = check(_evidence(soak, trouble))
    (folder / "history.json").write_text(json.dumps([asdict(h) for h in trouble.history]))
    return _summary(soak, report, trouble, waste(soak.db), took, quiet)


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


def _settle(soak: Soak) -> None:
    """Wait until hosts have said that what was lost is gone."""
    table = schema.Attempt
    held = select(func.count()).select_from(table).where(table.released_at.is_(None))

    def free() -> bool:
        with soak.db.read() as session:
            waiting = session.scalars(select(func.count()).select_from(schema.Outbox)).one()
            return session.scalars(held).one() == 0 and waiting == 0

    try:
        wait_until(free, "every slot is free and every message delivered", 90)
    except TimeoutError as error:  # the check says which
        print(error)


def _evidence(soak: Soak, trouble: Trouble) -> Evidence:
    return Evidence(
        db=soak.db,
        store=LocalStore(soak.folder / "stack" / "objects"),
        journals=soak.folder / "journals",
        accepted=soak.submitted.experiments,
        processes=soak.left,
        crashes=trouble.counts["implementer killed"] + trouble.counts["implementer stopped"],
    )


def _summary(
    soak: Soak, report: Report, trouble: Trouble, spent: Waste, took: float, quiet: float
) -> dict[str, Any]:
    counts = report.counts
    lost = counts["experiments"] - sum(counts[f"experiments_{s}"] for s in _TERMINAL)
    return {
        "benchmark": "soak",
        "minutes": soak.plan.minutes,
        "seed": soak.plan.seed,
        "hosts": soak.plan.hosts,
        "gpus": soak.plan.hosts * GPUS,
        "experiments": counts["experiments"],
        "succeeded": counts["experiments_succeeded"],
        "failed": counts["experiments_failed"],
        "failed_by_code": _failures(soak.db),
        "results": counts["results"],
        "starts": counts["starts"],
        "attempts": {k: v for k, v in sorted(counts.items()) if k.startswith("attempts_")},
        "faults": sum(trouble.counts.values()),
        "faults_by_kind": dict(sorted(trouble.counts.items())),
        "faults_that_failed": trouble.wrong,
        "submissions_repeated": soak.submitted.retries,
        "lost": lost + len(soak.submitted.batches) * BATCH - counts["experiments"],
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


def main() -> None:
    """Soak, print, and fail if an invariant does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--ideas", type=int, default=2000)
    parser.add_argument("--keep", action="store_true", help="Leave logs and journals.")
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    plan = Plan(minutes=args.minutes, seed=args.seed, hosts=args.hosts, ideas=args.ideas)
    folder = Path(tempfile.mkdtemp(prefix="assay-soak-"))
    folder.chmod(0o711)
    try:
        with PostgresServer(folder / "postgres") as cluster:
            summary = run(folder, cluster, plan)
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"logs, journals and history are in {folder}")
    print(json.dumps(summary))
    if summary["violations"] or summary["faults_that_failed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
