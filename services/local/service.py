"""API, implement pool, scheduler and worker in one process, over SQLite and a local folder.

The parts meet only where they meet in production: in the database, in the object store, over HTTP
(the worker), and through a dispatcher, which here calls the other part directly. So the same
guarantees hold, and `kill -9` loses nothing that was accepted.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import SecretStr

from assay.domain.errors import InvalidInput, Unavailable
from assay.environments.catalog import Catalog
from assay.sqlite_log import find_damage
from assay.storage import workers
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from assay.storage.outbox import RelayLoop, Topic
from services.implementer.binding import NO_KEYS, bind, url_of
from services.implementer.context import Context
from services.implementer.driving import SearchDrivers
from services.implementer.http import http_server
from services.implementer.pool import ImplementPool
from services.implementer.settings import ImplementerSettings
from services.implementer.webhooks import WebhookSender
from services.local.lock import DataLock
from services.local.settings import LocalSettings
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings
from services.worker.supervisor import Worker

log = logging.getLogger(__name__)
WORKER_NAME = "local"
RELAY_SECONDS = 1.0
SWITCH_SECONDS = 0.0005
_PORT_REMEDY = "choose another port with --port (0 takes any free one)"


class InProcessDispatcher:
    """Delivers a message by calling the part that handles its topic."""

    def __init__(self, handlers: dict[Topic, Callable[[str], None]]) -> None:
        self._handlers = handlers

    def send(self, topic: Topic, key: str) -> None:
        self._handlers[topic](key)


class LocalService:
    """The embedded service: `start`, wait for `failed` or a signal, `stop`."""

    def __init__(self, settings: LocalSettings) -> None:
        self.settings = settings
        self.failed = threading.Event()
        self.failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start every part and wait until work can be accepted.

        Raises:
            Conflict: another process serves this data folder, or the port is taken.
            InvalidInput: the API would be open to other machines without an API key.
            Unavailable: the data folder cannot be used, its database is damaged, or the worker
                does not start.
        """
        api_settings = ImplementerSettings()
        if not self.settings.listens_here_only and not api_settings.api_keys:
            raise InvalidInput(f"--host {self.settings.host} {NO_KEYS}")
        # Parts of this process wait for one another in short turns; Python's usual 5 ms before a
        # busy thread lets another one in would be most of what an experiment costs.
        sys.setswitchinterval(SWITCH_SECONDS)
        self._lock = _lock(self.settings)
        self._socket = bind(self.settings.host, self.settings.port, _PORT_REMEDY)
        self.api_url = url_of(self.settings.host, self._socket)
        self._lock.describe(api=self.api_url)
        self._open_stores(api_settings)
        self._start_api()
        self.pool = ImplementPool(self.context)
        self.searches = SearchDrivers(self.context)
        self.webhooks = WebhookSender(self.context)
        self.relay = self._make_relay()
        self.context.on_commit = self.relay.wake
        self.scheduler = Scheduler(
            self.db, SchedulerSettings(), self.relay.wake, holder="local"
        )  # the lock on the data folder keeps a second one away
        self._start_worker()
        self._thread("relay", self.relay.run)
        self._thread("scheduler", self.scheduler.run)
        self.pool.start()
        self.searches.start()
        self.webhooks.start()

    def _open_stores(self, api_settings: ImplementerSettings) -> None:
        _check_log(self.settings.database_path)
        self.db = Database(self.settings.url)
        self.db.migrate()
        self.store = LocalStore(self.settings.objects_path)
        self.store.check()
        self.context = Context(
            self.db, self.store, Catalog(), api_settings, own_worker=WORKER_NAME
        )

    def _start_api(self) -> None:
        self._server = http_server(self.context, here_only=self.settings.listens_here_only)
        self._thread("api", lambda: self._server.run(sockets=[self._socket]))

    def _start_worker(self) -> None:
        token = workers.new_token()
        workers.admit(self.db, WORKER_NAME, token)
        data = self.settings.data_dir.resolve()
        values: dict[str, object] = {
            "api_url": self.api_url,
            "token": SecretStr(token),
            "name": WORKER_NAME,
            "scratch": data / "scratch",
            "sandbox": self.settings.sandbox,
            "poll_seconds": 0,  # the dispatcher rings the worker itself
        }
        if "ASSAY_WORKER_HELD_OUT_KEY" not in os.environ:
            values["held_out_key"] = SecretStr(_held_out_key(data))
        if "ASSAY_WORKER_CACHE" not in os.environ:
            values["cache"] = data / "cache"
        if self.settings.cpus is not None:
            values["cpus"] = self.settings.cpus
        self.worker = Worker(WorkerSettings.model_validate(values))
        self._thread("worker", self.worker.run)
        while not self.worker.registered.wait(0.05):
            if self.failed.is_set():
                raise Unavailable(f"the worker does not start: {self.failure}")

    def _thread(self, name: str, target: Callable[[], object]) -> None:
        """A part's thread. A part that dies takes the service down: half a service is none."""

        def guarded() -> None:
            try:
                target()
            except BaseException as error:
                self.failure = error
                log.exception("the %s died", name)
                self.failed.set()

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _make_relay(self) -> RelayLoop:
        dispatcher = InProcessDispatcher(
            {
                Topic.IMPLEMENT: self.pool.look_at,
                Topic.IMPLEMENTER: lambda _: self._look_again(),
                Topic.DRIVE: lambda _: self.searches.look(),
                Topic.SCHEDULE: lambda _: self.scheduler.wake(),
                Topic.WEBHOOK: lambda _: self.webhooks.look(),
                Topic.WORKER: self._ring_worker,
            }
        )
        return RelayLoop(self.db, dispatcher, poll_seconds=RELAY_SECONDS)

    def _look_again(self) -> None:
        self.pool.look_again()
        self.searches.look_again()

    def _ring_worker(self, worker_id: str) -> None:
        """Our own worker asks when it is rung; any other waits at the API."""
        if worker_id == self.worker.id:
            self.worker.ring()
        else:
            self.context.doorbells.ring(worker_id)

    def stop(self) -> None:
        """Stop every part. What ran is tried again by the next process."""
        self.worker.stop()
        self.searches.stop()
        self.webhooks.stop()
        self.pool.stop()
        self.scheduler.stop()
        self.relay.stop()
        for thread in self._threads:
            if thread.name != "api":
                thread.join(15)
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(10)
        self.db.dispose()
        self._lock.release()


def _lock(settings: LocalSettings) -> DataLock:
    try:
        lock = DataLock(settings.data_dir.resolve())
    except OSError as error:
        raise Unavailable(
            f"the data folder {settings.data_dir} cannot be used: {error.strerror}; "
            "choose another with --data-dir"
        ) from error
    lock.acquire()
    return lock


def _check_log(database: Path) -> None:
    """Refuse a log of which SQLite would drop committed transactions without a word."""
    damage = find_damage(database)
    if damage is None:
        return
    if not damage.certain:
        log.warning("%s-wal: %s; it is dropped", database, damage.message)
        return
    raise Unavailable(
        f"the database is damaged: of {database}-wal, {damage.message}; restore a backup "
        "(docs/operations.md, Backup), or move that file away to go on without it",
        code="database_damaged",
    )


def _held_out_key(folder: Path) -> str:
    """This installation's own key, made at its first start: generated held-out data is then known
    to nobody, and the same for everything that is measured here."""
    path = folder / "held-out.key"
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        unfinished.touch(mode=0o600)
        with unfinished.open("w") as file:
            file.write(secrets.token_hex(16))
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    key = path.read_text().strip()
    if not key:
        log.warning("%s is empty: generated held-out data is the public one", path)
    return key
