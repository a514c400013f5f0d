"""`python -m assay.broker.listen`: hears messages and writes their keys to its parent.

It reads one line of JSON from its standard input: the broker's address, with credentials (so that
they stand neither in the arguments nor in the environment), the queues, and which of them is its
own. After that every line there is the number of a test: a message to the own queue, which proves
that messages arrive. When the input ends, the parent is gone, and so is this process.

Lines it writes: `ready`, `look <key>`, `echo <number>`, `log <text>`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import warnings
from dataclasses import dataclass

from celery import Celery
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.signals import setup_logging, worker_ready

from assay.broker.app import celery_app, queue
from assay.broker.names import ECHO, LOOK


@dataclass(frozen=True)
class Hearing:
    """What to listen to."""

    url: str
    queues: list[str]
    own: str
    #: Whether a message that this process took along when it died is delivered again. It needs
    #: three more keys in Redis, and comes minutes later than the receiver's own clock.
    acknowledge: bool


class _Parent:
    """The pipe to the parent: whole lines, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, word: str, text: str = "") -> None:
        line = " ".join(f"{word} {text}".split())
        try:
            with self._lock:
                os.write(1, f"{line}\n".encode())
        except OSError:
            os._exit(0)  # nobody listens any more


class _Lines(logging.Handler):
    def __init__(self, parent: _Parent) -> None:
        super().__init__(logging.WARNING)
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        self._parent.write("log", record.getMessage()[:500])


def main() -> None:
    """Listen until the parent is gone."""
    # Celery advises against the superuser since pickles can be code; only JSON is accepted here.
    warnings.simplefilter("ignore", SecurityWarning)
    # Nothing that runs here is long, and what becomes of it at a lost connection is settled.
    warnings.simplefilter("ignore", CPendingDeprecationWarning)
    hearing = Hearing(**json.loads(sys.stdin.readline()))
    parent = _Parent()
    app = _listener(hearing, parent)
    threading.Thread(target=_obey, args=(app, hearing.own), daemon=True).start()
    worker = app.Worker(
        pool="solo",
        concurrency=1,
        hostname=f"{hearing.own}@{os.getpid()}",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="WARNING",
    )
    worker.start()
    sys.exit(worker.exitcode or 0)


def _listener(hearing: Hearing, parent: _Parent) -> Celery:
    shared = hearing.queues[0]
    app = celery_app(
        hearing.url,
        ack_emulation=hearing.acknowledge,
        unacked_key=f"{shared}.unacked",
        unacked_index_key=f"{shared}.unacked_index",
        unacked_mutex_key=f"{shared}.unacked_mutex",
    )
    app.conf.task_queues = [queue(name) for name in hearing.queues]

    @app.task(name=LOOK)  # type: ignore[untyped-decorator]
    def look(key: str) -> None:
        parent.write("look", key)

    @app.task(name=ECHO)  # type: ignore[untyped-decorator]
    def echo(number: str) -> None:
        parent.write("echo", number)

    setup_logging.connect(lambda **_: _log_to(parent), weak=False)
    worker_ready.connect(lambda **_: parent.write("ready"), weak=False)
    return app


def _log_to(parent: _Parent) -> None:
    logging.getLogger().handlers[:] = [_Lines(parent)]


def _obey(app: Celery, own: str) -> None:
    for line in sys.stdin:
        try:
            app.send_task(ECHO, args=[line.strip()], queue=queue(own))
        except Exception as error:  # the parent misses the echo, which is what it asks about
            logging.getLogger(__name__).warning("cannot send a test to %s: %s", own, error)
    os._exit(0)


if __name__ == "__main__":
    main()
