"""Server mode with a proxy on every connection between its parts.

Postgres (a cluster of its own), Redis and the object store are behind proxies; hosts are fake and
speak HTTP through proxies of their own. Intervals are tenths of what they are in production.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import Select, func, select, text

from assay.client import Client
from assay.contracts.batch import BatchRequest
from assay.domain.states import TERMINAL_MEASUREMENT
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import LocalStore, ObjectStore
from assay.storage.s3 import S3Store
from tests.support.faults.hosts.environment import profile_name, write_environment
from tests.support.faults.hosts.fleet import FleetThread
from tests.support.faults.hosts.options import HostOptions
from tests.support.faults.hosts.process import FleetProcess
from tests.support.faults.hosts.work import Mischief, Work
from tests.support.faults.invariants import Evidence, Report, settle
from tests.support.faults.proxy import Proxy
from tests.support.faults.timing import FINISH_SECONDS, TERMINAL, short_leases
from tests.support.postgres import PostgresServer
from tests.support.provider.counting import CountingProvider
from tests.support.service import toy_batch, toy_ideas
from tests.support.stack import BUCKET, Part, Stack
from tests.support.waiting import wait_until
from tests.support.warm_start import Spawn, spawn

SETTINGS = short_leases() | {
    "ASSAY_SCHEDULER_TICK_SECONDS": "0.2",
    "ASSAY_SCHEDULER_LEADER_SECONDS": "2",
    "ASSAY_SCHEDULER_RING_SECONDS": "[0.5, 1, 2]",
    "ASSAY_SCHEDULER_CORDON_SECONDS": "3",
    "ASSAY_SCHEDULER_STARTING_PER_WORKER": "8",
    "ASSAY_IMPLEMENTER_IDEA_LEASE_SECONDS": "4",
}
REAL = "real"
SYNC = 1.5  # of the real worker
WORK = Work(low=0.1, high=0.4, log_bytes=2000, piece_bytes=256, points=3)


@dataclass(frozen=True)
class Batch:
    """A batch that the API accepted."""

    id: str
    experiments: tuple[str, ...]


@dataclass
class Hosts:
    """A fleet, the network before it, and the class of hardware that is its alone."""

    fleet: FleetThread
    proxy: Proxy
    hardware_class: str
    hold: Path
    ids: dict[str, str] = field(default_factory=dict)

    def release(self) -> None:
        """Let runs come to their end."""
        self.hold.unlink(missing_ok=True)


class Arena:
    """The stack, its proxies, and what a test asks them."""

    def __init__(
        self,
        folder: Path,
        cluster: PostgresServer,
        *,
        settings: Mapping[str, str] = SETTINGS,
        implementers: int = 1,
        s3: bool = True,
        budget_seconds: float = 600.0,
        spawn: Spawn = spawn,
    ) -> None:
        """Without `s3`, objects are in a folder. `budget_seconds`: limit of a fake host's run."""
        self.folder = folder
        self.cluster = cluster
        self._settings = settings
        self._implementers = implementers
        self._s3 = s3
        self._budget_seconds = budget_seconds
        self._spawn = spawn
        self.journals = folder / "journals"
        self.accepted: list[str] = []
        self.crashes = 0
        self._verified: set[str] = set()
        self._steps = itertools.count()
        self._numbers = itertools.count()
        self._stack: Stack | None = None
        self._proxies: list[Proxy] = []
        self._exits = ExitStack()

    @property
    def stack(self) -> Stack:
        assert self._stack is not None
        return self._stack

    def __enter__(self) -> Arena:
        write_environment(self.folder / "environments", budget_seconds=self._budget_seconds)
        self.cluster.execute("DROP SCHEMA public CASCADE")
        self.cluster.execute("CREATE SCHEMA public")
        stack = Stack(
            self.folder / "stack",
            database_url=self.cluster.url,
            s3=self._s3,
            implementers=self._implementers,
            workers=0,
            settings=self._settings,
            spawn=self._spawn,
        )
        self._stack = stack
        assert stack.redis is not None
        self.db_proxy = self._proxy(self.cluster.port)
        self.redis_proxy = self._proxy(stack.redis.port)
        self.provider = self._exits.enter_context(CountingProvider())
        stack.database_url = self.cluster.url.replace(
            f":{self.cluster.port}/", f":{self.db_proxy.port}/"
        )
        stack.worker_broker = f"redis://127.0.0.1:{self.redis_proxy.port}/0"
        stack.configure(
            {
                "ASSAY_ENVIRONMENTS": str(self.folder / "environments"),
                "ASSAY_SERVER_BROKER_URL": stack.redis.url.replace(
                    f":{stack.redis.port}/", f":{self.redis_proxy.port}/"
                ),
                "OPENAI_API_KEY": "none",
                "OPENAI_BASE_URL": self.provider.openai_url,
            }
        )
        self.store: ObjectStore = LocalStore(stack.folder / "objects")
        if stack.s3 is not None:
            self.s3_proxy = self._proxy(stack.s3.port)
            endpoint = f"http://127.0.0.1:{self.s3_proxy.port}"
            stack.configure({"ASSAY_SERVER_S3_ENDPOINT_URL": endpoint})
            self.store = S3Store(
                BUCKET, "server-mode", endpoint_url=stack.s3.endpoint, region="us-east-1"
            )
        try:
            stack.start()
        except BaseException:
            self.__exit__()
            raise
        self.db = Database(self.cluster.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._heal_networks()
        if self._stack is not None:
            self._stack.stop(check=False)
        self._exits.close()
        if hasattr(self, "db"):
            self.db.dispose()

    def _proxy(self, port: int) -> Proxy:
        proxy = self._exits.enter_context(Proxy(port))
        self._proxies.append(proxy)
        return proxy

    # Hosts ---------------------------------------------------------------------------------

    def admit(self, name: str) -> tuple[str, str]:
        """Let a worker in over HTTP; its id and token."""
        answer = httpx2.post(
            f"{self.stack.api_url}/v1/workers",
            json={"name": name},
            headers={"Authorization": f"Bearer {self.stack.key}"},
            timeout=60,
        )
        answer.raise_for_status()
        body = answer.json()
        return body["id"], body["token"]

    @contextmanager
    def hosts(
        self,
        count: int = 2,
        *,
        work: Work = WORK,
        mischief: Mischief | None = None,
        held: bool = False,
        **options: Any,
    ) -> Iterator[Hosts]:
        """Fake hosts of a hardware class that only they have, behind a proxy.

        `held`: no run comes to its end before `release()`.
        """
        label = f"fake-{next(self._numbers)}"
        hold = self._hold(label, held)
        admitted = {f"{label}-{n}": self.admit(f"{label}-{n}") for n in range(count)}
        given = HostOptions(
            hardware_class=label,
            sync_seconds=0.4,
            poll_seconds=1.0,
            progress_seconds=0.1,
            patience_seconds=20,
            work=replace(work, hold=hold),
            mischief=mischief or Mischief(),
        )
        with Proxy(self.stack.port) as proxy:
            tokens = {name: token for name, (_, token) in admitted.items()}
            url = f"http://127.0.0.1:{proxy.port}"
            with FleetThread(url, tokens, self.journals, replace(given, **options)) as fleet:
                ids = {name: id_ for name, (id_, _) in admitted.items()}
                try:
                    yield Hosts(fleet, proxy, label, hold, ids)
                finally:
                    hold.unlink(missing_ok=True)
                    proxy.heal()

    def _hold(self, label: str, held: bool) -> Path:
        path = self.folder / f"{label}.hold"
        if held:
            path.touch()
        return path

    @contextmanager
    def fleet_process(self, count: int, *flags: str) -> Iterator[tuple[FleetProcess, Path]]:
        """The same in a process of its own, to be stopped and killed; its runs are held."""
        label = f"fake-{next(self._numbers)}"
        hold = self._hold(label, held=True)
        tokens = {f"{label}-{n}": self.admit(f"{label}-{n}")[1] for n in range(count)}
        given = ["--hardware-class", label, "--poll-seconds", "1", "--progress-seconds", "0.1"]
        process = FleetProcess(
            label,
            tokens,
            self.folder,
            api=self.stack.api_url,
            flags=[*given, "--patience-seconds", "20", "--hold", str(hold), *flags],
            spawn=self._spawn,
        )
        process.start()
        try:
            yield process, hold
        finally:
            hold.unlink(missing_ok=True)
            process.end()

    def real_worker(self) -> Part:
        """A real worker, with a broker and without isolation; started at the first use."""
        if REAL not in self.stack.workers:
            self.stack.add_worker(
                REAL,
                ASSAY_WORKER_HARDWARE_CLASS=REAL,
                ASSAY_WORKER_SYNC_SECONDS=str(SYNC),
                ASSAY_WORKER_POLL_SECONDS="0",
                ASSAY_WORKER_PROGRESS_SECONDS="0.2",
                ASSAY_WORKER_CPUS="4",
            )
        return self.stack.worker(REAL)

    # Work ----------------------------------------------------------------------------------

    def request(
        self, count: int, hardware_class: str, gpus: int = 1, *, executor: str | None = None
    ) -> BatchRequest:
        """A batch whose codebases nobody has asked for yet."""
        first = next(self._steps) * 40
        batch = toy_batch(toy_ideas(count, first=first))
        batch.hardware_class = hardware_class
        if hardware_class == REAL:
            batch.options.allow_unisolated = True
        else:
            batch.profile = profile_name(gpus)
        if executor is not None:
            batch.executor = executor
        return batch

    def submit(self, count: int, hardware_class: str, gpus: int = 1, **options: Any) -> Batch:
        """Submit a batch over HTTP; the same key on every try, as a careful client does."""
        request = self.request(count, hardware_class, gpus, **options)
        with self.client() as client:
            created = client.batches.create(request)
        return self.took(created.id)

    def took(self, batch: str) -> Batch:
        """Remember what was accepted."""
        experiments = self.column(
            select(schema.Experiment.id).where(schema.Experiment.batch_id == batch)
        )
        self.accepted.extend(experiments)
        return Batch(batch, tuple(experiments))

    def client(self) -> Client:
        """A client of the API with the owner's key."""
        return self.stack.client()

    def finish(self, batch: Batch, seconds: float = FINISH_SECONDS) -> None:
        """Wait until every experiment of a batch has ended, and what it is compared with.

        A baseline's measurement that has to be repeated ends after the experiments, and nobody
        would take it once the hosts of a test have gone.
        """
        table = schema.Experiment
        left = select(table.id).where(table.batch_id == batch.id, table.state.not_in(TERMINAL))
        hardware = select(schema.Batch.hardware_class).where(schema.Batch.id == batch.id)
        measured = schema.Measurement
        unmeasured = select(measured.id).where(
            measured.hardware_class == hardware.scalar_subquery(),
            measured.state.not_in({state.value for state in TERMINAL_MEASUREMENT}),
        )
        try:
            wait_until(
                lambda: not self.column(left) and not self.column(unmeasured),
                f"{batch.id} has ended",
                seconds,
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.describe(batch)}") from None

    def finish_all(self) -> None:
        """Wait until every experiment has ended."""
        table = schema.Experiment
        left = select(table.id).where(table.state.not_in(TERMINAL))
        wait_until(lambda: not self.column(left), "every experiment has ended", FINISH_SECONDS)

    def states(self, batch: Batch) -> Counter[str]:
        """How many experiments of a batch are in which state."""
        table = schema.Experiment
        return Counter(self.column(select(table.state).where(table.batch_id == batch.id)))

    def attempts(self, batch: Batch | None = None, **where: Any) -> list[schema.Attempt]:
        """Attempts (of a batch's experiments, baseline aside), oldest first."""
        table = schema.Attempt
        query = select(table).order_by(table.created_at, table.id)
        if batch is not None:
            link = schema.ExperimentMeasurement
            of_batch = select(link.measurement_id).where(link.experiment_id.in_(batch.experiments))
            query = query.where(table.measurement_id.in_(of_batch))
        for name, value in where.items():
            query = query.where(getattr(table, name) == value)
        with self.db.read() as session:
            return list(session.scalars(query))

    def wait_running(self, batch: Batch, count: int = 1, **where: Any) -> list[schema.Attempt]:
        """Wait until so many attempts of a batch run; returns them."""
        found: list[schema.Attempt] = []

        def running() -> bool:
            found[:] = self.attempts(batch, state="running", **where)
            return len(found) >= count

        wait_until(running, f"{count} attempts of {batch.id} run", FINISH_SECONDS)
        return found

    def column(self, query: Select[Any]) -> list[Any]:
        """The only column of a query."""
        with self.db.read() as session:
            return list(session.scalars(query))

    def count(self, table: type[schema.Base], *conditions: Any) -> int:
        """How many rows of a table there are."""
        query = select(func.count()).select_from(table).where(*conditions)
        return int(self.column(query)[0])

    def describe(self, batch: Batch) -> str:
        """What became of a batch, for a message."""
        attempts = [
            (a.measurement_id[-6:], a.number, a.worker_id[-6:], a.state, a.failure)
            for a in self.attempts(batch)
        ]
        logs = "\n".join(
            f"--- {part.name}\n{part.tail(1500)}" for part in self.stack.parts.values()
        )
        return f"{dict(self.states(batch))}\n{attempts}\n{logs}"

    # Faults --------------------------------------------------------------------------------

    @contextmanager
    def killed_at(self, part: Part, point: str, *, dies: bool = True) -> Iterator[Path]:
        """Restart a part so that it dies at a point, wait for that, and start it as it was.

        `dies=False`: the point is no death, so it is killed at the end.
        """
        mark = self.folder / f"{point}-{time.monotonic_ns()}"
        usual, env = part.command, dict(part.env)
        part.stop()
        part.command = [usual[0], "-m", "tests.support.faults.points", *usual[2:]]
        part.env |= {"ASSAY_FAULT_AT": point, "ASSAY_FAULT_MARK": str(mark)}
        try:
            part.start()
            yield mark
            if dies:
                what = f"{part.name} died at {point}"
                wait_until(lambda: not part.running, what, FINISH_SECONDS)
        finally:
            part.kill()
            part.command, part.env = usual, env
            part.start()
        assert mark.exists(), f"{part.name} died, and not at {point}:\n{part.tail()}"
        self.crashes += 1

    def heal(self) -> None:
        """Every network good, every process running."""
        self._heal_networks()
        if self._stack is None:
            return
        for part in self._stack.parts.values():
            if part.running:
                part.resume()
            elif self._stack.started:
                part.start()

    def _heal_networks(self) -> None:
        for proxy in self._proxies:
            proxy.heal()
        if not self.cluster.answers():
            self.cluster.start()

    def sound(self, *, again: bool = False, **more: Any) -> Report:
        """Check the invariants, once everything has come to rest.

        Stored files are read once, and all of them once more with `again`.
        """
        if again:
            self._verified.clear()
        evidence = Evidence(
            db=self.db,
            store=self.store,
            journals=self.journals,
            accepted=tuple(self.accepted),
            crashes=self.crashes,
            verified=self._verified,
            **more,
        )
        return settle(evidence).assert_sound()

    def execute(self, statement: str, **values: Any) -> None:
        """Run a statement on the database, as nobody but a test would."""
        with self.db.write() as session:
            session.execute(text(statement), values)
