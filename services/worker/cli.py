"""`assay worker`: a worker as a process of its own, which a broker may ring."""

from __future__ import annotations

import threading

import typer

from assay.broker import BrokerAddress, Doorbell, queue_name, worker_user
from assay.processes import announce
from services.worker.settings import WorkerSettings
from services.worker.supervisor import Worker


def worker() -> None:
    """Measure on this host until SIGTERM."""
    from services.worker.__main__ import main

    raise typer.Exit(main())


class Front:
    """What surrounds a worker: the line that says that it is ready, and a doorbell.

    Without a broker the worker asks at the API every few seconds; with one it is told at once, and
    asks every `sync_seconds` all the same.
    """

    def __init__(self, worker: Worker, settings: WorkerSettings, token: str) -> None:
        self._worker = worker
        self._settings = settings
        self._token = token
        self._doorbell: Doorbell | None = None
        self._lock = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Wait, in a thread, until the worker is registered: only then it has an id."""
        threading.Thread(target=self._open, name="front", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            self._closed = True
        if self._doorbell is not None:
            self._doorbell.stop()

    def _open(self) -> None:
        self._worker.registered.wait()
        with self._lock:
            if self._closed:
                return
            if self._settings.broker_url is not None:
                self._doorbell = self._listen(self._settings.broker_url)
        choice = self._worker.sandbox
        announce(
            worker=self._worker.id,
            name=self._settings.name,
            sandbox=choice.name if choice else None,
            isolated=choice.isolated if choice else None,
        )

    def _listen(self, url: str) -> Doorbell:
        worker_id = self._worker.id or ""
        address = BrokerAddress.parse(url, credentials=False)
        own = address.signed_in(worker_user(worker_id), self._token)
        bell = Doorbell(
            lambda: own,
            [queue_name("worker", worker_id)],
            lambda _key: self._worker.ring(),
            on_hearing=self._worker.ring,
        )
        bell.start()
        return bell
