"""Run a service's module with one moment at which it is killed, or one sense that lies.

    ASSAY_FAULT_AT=scheduler-before-commit ASSAY_FAULT_MARK=/tmp/mark \\
        python -m tests.support.faults.points assay.cli scheduler

The process ends like one that is killed (`os._exit`, nothing cleans up) the first time it comes
to that point. The mark is written just before, which proves that it got there; a process that
finds the mark passes the point, so that a restarted one goes on.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILLED = 137


def _die() -> None:
    mark = Path(os.environ["ASSAY_FAULT_MARK"])
    if mark.exists():
        return
    mark.write_text(str(os.getpid()))
    os._exit(KILLED)


def _around(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _before(owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Die before a call."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if when(*args, **kwargs):
                _die()
            return original(*args, **kwargs)

        return wrapped

    _around(owner, name, wrap)


def _after(owner: Any, name: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Die after a call has come back."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            if when(*args, **kwargs):
                _die()
            return answer

        return wrapped

    _around(owner, name, wrap)


def _assigning(*, committed: bool) -> None:
    """Around the commit of the first transaction that assigns."""
    from sqlalchemy.orm import Session

    from assay.storage import assignments

    assigned: set[int] = set()

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def assign(db: Any, session: Session, *args: Any, **kwargs: Any) -> Any:
            made = original(db, session, *args, **kwargs)
            if made:
                assigned.add(id(session))
            return made

        return assign

    _around(assignments, "assign", wrap)
    die = _after if committed else _before
    die(Session, "commit", lambda session: id(session) in assigned)


def _relay_sent() -> None:
    """After a message was sent, before it is deleted."""
    from assay.broker.dispatch import CeleryDispatcher

    _after(CeleryDispatcher, "send")


def _storing(suffix: str, *, stored: bool) -> None:
    """Before or after an object with that ending is stored."""
    from assay.storage.objects import LocalStore
    from assay.storage.s3 import S3Store

    die = _after if stored else _before
    for store in (LocalStore, S3Store):
        die(store, "put", lambda _self, key, *_: key.endswith(suffix))


def _answer_recorded() -> None:
    """An answer is on record, and nobody has judged it."""
    from services.implementer.judges import Judges

    _before(Judges, "judge")


def _batch_committed() -> None:
    """The batch is stored, and nobody has been told."""
    from assay.storage import idempotency

    _after(idempotency, "once")


def _claimed() -> None:
    """The attempt is this worker's, and nothing has been started."""
    from services.worker.api import WorkerApi

    _after(WorkerApi, "claim")


def _started() -> None:
    """The sandbox runs, and nobody has been told."""
    from services.worker.sampler import Sampler

    _before(Sampler, "add")


def _finishing() -> None:
    """Everything is measured, and nobody has been told."""
    from services.worker.api import WorkerApi

    _before(WorkerApi, "finish")


def _wall_clock(hours: float) -> None:
    """The time of day is wrong by hours, and jumps to and fro."""
    real = time.time

    def lying() -> float:
        now = real()
        return now + (hours if int(now) % 2 else -hours) * 3600

    time.time = lying
    Path(os.environ["ASSAY_FAULT_MARK"]).write_text(str(lying() - real()))


POINTS: dict[str, Callable[[], None]] = {
    "scheduler-before-commit": lambda: _assigning(committed=False),
    "scheduler-after-commit": lambda: _assigning(committed=True),
    "relay-sent": _relay_sent,
    "codebase-before-upload": lambda: _storing(".zip", stored=False),
    "codebase-after-upload": lambda: _storing(".zip", stored=True),
    "manifest-before": lambda: _storing("/manifest.json", stored=False),
    "manifest-after": lambda: _storing("/manifest.json", stored=True),
    "answer-recorded": _answer_recorded,
    "batch-committed": _batch_committed,
    "worker-claimed": _claimed,
    "worker-started": _started,
    "worker-finishing": _finishing,
    "wall-clock": lambda: _wall_clock(2),
}


def main() -> None:
    """Install the point that `ASSAY_FAULT_AT` names, and run the module of the arguments."""
    POINTS[os.environ["ASSAY_FAULT_AT"]]()
    module, *rest = sys.argv[1:]
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
