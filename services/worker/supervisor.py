"""The worker: registers, keeps its leases alive, and works off what it is assigned."""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading
import time
from typing import NamedTuple

from assay.contracts.worker import (
    DeviceTrouble,
    HeldAttempt,
    SyncRequest,
    SyncResponse,
    WorkerRegistration,
)
from assay.domain.errors import AssayError, NotFound, Unavailable
from assay.domain.ids import new_id
from assay.telemetry import bind
from services.worker.api import StaleIncarnation, WorkerApi
from services.worker.assignment import Assignment, Held, StopReason
from services.worker.attempt import run_attempt
from services.worker.cache import BundleCache
from services.worker.folders import Scratch
from services.worker.gpus import open_gpus
from services.worker.host import Host, open_host
from services.worker.reaper import reaping
from services.worker.settings import WorkerSettings

_log = logging.getLogger(__name__)
_SHORTEST_PAUSE = 0.5
_GOODBYE_SECONDS = 5.0
_DRAIN_SECONDS = 30.0


class SandboxChoice(NamedTuple):
    """The sandbox of a worker, and why it was chosen."""

    name: str
    isolated: bool
    reason: str


class Worker:
    """One worker process's supervisor.

    `run` blocks until `stop` or a drain has ended; the other methods may be called from any
    thread, also before `run`. Signals are the caller's business.
    """

    def __init__(self, settings: WorkerSettings, *, api: WorkerApi | None = None) -> None:
        self._settings = settings
        self._api = api or WorkerApi(settings.api_url, settings.token.get_secret_value())
        self._held = Held()
        self._queue: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._draining = threading.Event()
        self._leaving = threading.Event()
        self._incarnation = new_id("inc")
        self._numbers = itertools.count(1)
        self._worker_id: str | None = None
        self._host: Host | None = None
        self.registered = threading.Event()
        self._away_since: float | None = None

    @property
    def id(self) -> str | None:
        """The id the API gave this worker; None before it is registered."""
        return self._worker_id

    @property
    def sandbox(self) -> SandboxChoice | None:
        """Which sandbox was chosen, and why; None before `run` has opened it."""
        if self._host is None:
            return None
        host = self._host
        return SandboxChoice(host.sandbox.name, host.isolated, str(host.info["sandbox"]))

    def ring(self) -> None:
        """Sync now instead of at the next turn: there is something to start or to stop."""
        self._wake.set()

    @property
    def drain_seconds(self) -> float | None:
        """How long a drain may take before what is held is ended; None: as long as it needs."""
        given = self._settings.drain_seconds
        has_gpus = self._host is not None and bool(self._host.gpus.devices)
        return _DRAIN_SECONDS if given is None and not has_gpus else given

    def drain(self) -> None:
        """Take nothing new and return from `run` when everything held has ended."""
        self._draining.set()
        self._leaving.set()
        self._wake.set()

    def stop(self) -> None:
        """End everything held, report it as to be tried again, and return from `run`."""
        self._stopping.set()
        self._leaving.set()
        for assignment in self._held.all():
            assignment.stop(StopReason.STOPPING)
        self._wake.set()

    def run(self) -> None:
        """Work until told to stop.

        Raises:
            Unavailable: another worker uses the same scratch folder.
            SandboxUnavailable: the sandbox that was asked for does not work here.
            InvalidInput: the GPUs that were asked for are not there, or of several kinds.
            ApiRefused: the API does not accept this worker (its token, for example).
            StaleIncarnation: another worker registered under this name.
        """
        scratch = Scratch(self._settings.scratch_folder)
        try:
            gpus = open_gpus(self._settings.gpus)
            host = open_host(
                self._settings, scratch, self._api, self._bundles(), gpus, self._leaving
            )
            self._host = host
            adopted = self._adopt(host)
            slots = self._start_slots(host, max(self._settings.cpus, len(adopted)))
            with reaping(host.sandbox_settings, self._settings.sync_seconds):
                try:
                    self._register(host, adopted)
                    self._loop(host)
                finally:
                    self._end(slots)
        finally:
            scratch.close()
            self._api.close()

    def _bundles(self) -> BundleCache:
        patience = self._settings.api_seconds
        return BundleCache(
            self._settings.cache,
            lambda sha256: self._api.bundle(sha256, patience=patience),
            held_out_key=self._settings.held_out_key.get_secret_value(),
        )

    def _adopt(self, host: Host) -> list[HeldAttempt]:
        """Go on with what a killed worker left, before the API is asked: it may be away, and
        budgets do not wait."""
        if not host.adopts:
            host.scratch.discard()
        for journal in host.scratch.journals:
            assignment = self._held.add(journal.notes.spec, journal)
            if assignment is not None:
                _log.info("%s: adopted (%s)", assignment.spec.attempt, journal.notes.phase)
                self._queue.put(assignment)
        return self._held.report()

    def _start_slots(self, host: Host, count: int) -> list[threading.Thread]:
        slots = [
            threading.Thread(target=self._slot, args=(host,), name=f"assay-slot-{n}", daemon=True)
            for n in range(count)
        ]
        for slot in slots:
            slot.start()
        return slots

    def _slot(self, host: Host) -> None:
        """A thread that lives as long as the worker, as sandboxes die with their thread."""
        while (assignment := self._queue.get()) is not None:
            spec = assignment.spec
            ids = {"attempt": spec.attempt, "measurement": spec.measurement}
            try:
                with bind(**ids, lease_token=spec.lease_token):
                    run_attempt(host, assignment)
            except Exception:
                _log.exception("%s: not handled", assignment.spec.attempt)
            finally:
                self._held.remove(assignment)
                if self._draining.is_set():
                    self._wake.set()

    def _register(self, host: Host, adopted: list[HeldAttempt]) -> None:
        """Announce this worker, however long the API is away."""
        devices = host.gpus.devices
        body = WorkerRegistration(
            name=self._settings.name,
            incarnation=self._incarnation,
            cpus=self._settings.cpus,
            memory_bytes=self._settings.memory_bytes,
            hardware_class=host.hardware_class,
            sandbox=host.sandbox.name,
            isolated=host.isolated,
            guarantees=host.guarantees,
            info=host.info,
            gpus=len(devices),
            devices=devices,
            version=str(host.info["assay"] or ""),
            adopted=adopted,
        )
        while not self._stopping.is_set():
            try:
                self._worker_id = self._api.register(body).id
            except Unavailable as error:
                self._note_away(error)
                self._stopping.wait(random.uniform(0.5, 1) * _SHORTEST_PAUSE * 2)
            else:
                self._note_back()
                self.registered.set()
                _log.info("registered as %s (%s)", self._settings.name, self._worker_id)
                return

    def _loop(self, host: Host) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            if self._draining.is_set() and not self._held.all():
                return
            began = time.monotonic()
            pause = self._sync(host)
            self._wake.wait(max(0.0, pause - (time.monotonic() - began)))

    def _sync(self, host: Host) -> float:
        """Sync once; returns after how many seconds, from its beginning, to do it again."""
        settings, worker_id = self._settings, self._worker_id
        if worker_id is None:
            return 0.0
        draining = self._draining.is_set()
        body = SyncRequest(
            incarnation=self._incarnation,
            number=next(self._numbers),
            held=self._held.report(),
            draining=draining,
            usable_gpus=host.gpus.usable(),
            troubles=[
                DeviceTrouble(uuid=uuid, state=trouble.state.value, detail=trouble.detail)
                for uuid, trouble in host.gpus.troubles().items()
            ],
            usable_cpus=None if host.gpus.devices else host.pressure.usable_cpus(),
            wait_seconds=0 if draining else settings.poll_seconds,
        )
        try:
            response = self._api.sync(worker_id, body)
        except StaleIncarnation:
            self._discard_everything()
            raise
        except NotFound:  # the API has forgotten its workers: what we hold is not ours
            self._discard_everything()
            self._incarnation = new_id("inc")
            self._register(host, [])
            return 0.0
        except AssayError as error:
            self._note_away(error)
            return _SHORTEST_PAUSE * 2
        self._note_back()
        self._take(response)
        if draining or settings.poll_seconds > 0:
            return 0.0 if response.assign and not draining else _SHORTEST_PAUSE
        return settings.sync_seconds * random.uniform(0.7, 0.9)

    def _take(self, response: SyncResponse) -> None:
        for attempt in response.fenced:
            self._held.stop(attempt, StopReason.FENCED)
        for attempt in response.stop:
            self._held.stop(attempt, StopReason.CANCELLED)
        for spec in response.assign:
            assignment = self._held.add(spec)
            if assignment is None:
                continue
            if self._stopping.is_set():
                assignment.stop(StopReason.STOPPING)
            self._queue.put(assignment)

    def _discard_everything(self) -> None:
        for assignment in self._held.all():
            assignment.stop(StopReason.FENCED)

    def _end(self, slots: list[threading.Thread]) -> None:
        """End what is held, wait for it, and tell the API that nothing of it runs."""
        self.stop()
        for _ in slots:
            self._queue.put(None)
        self._join(slots, self._settings.grace_seconds + _GOODBYE_SECONDS)
        for assignment in self._held.all():
            assignment.abandon.set()
        self._join(slots, _GOODBYE_SECONDS)
        left = [slot.name for slot in slots if slot.is_alive()]
        if left:
            _log.error("these slots did not end: %s", ", ".join(left))
        self._say_goodbye()

    @staticmethod
    def _join(slots: list[threading.Thread], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for slot in slots:
            slot.join(max(0.0, deadline - time.monotonic()))

    def _say_goodbye(self) -> None:
        if self._worker_id is None:
            return
        body = SyncRequest(
            incarnation=self._incarnation,
            number=next(self._numbers),
            held=self._held.report(),
            draining=True,
            wait_seconds=0,
        )
        try:
            self._api.sync(self._worker_id, body)
        except AssayError as error:  # its leases expire without it
            _log.info("the API was not told that this worker has ended: %s", error)

    def _note_away(self, error: AssayError) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            _log.warning("the API cannot be used, trying again: %s", error)

    def _note_back(self) -> None:
        if self._away_since is not None:
            _log.info("the API is back after %.1f s", time.monotonic() - self._away_since)
            self._away_since = None
