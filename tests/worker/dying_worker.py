"""A worker that kills itself at the point that `KILL_POINT` names; see `test_adoption`."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from assay.sandbox.docker.engine import Engine
from assay.sandbox.docker.link import Link
from services.worker import __main__ as worker
from services.worker.api import WorkerApi
from services.worker.journal import Journal, Phase

KEPT: list[str] = []
"""Containers of trainings: those of the probes at the start do not count."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(
    function: Callable[..., Any], wanted: Callable[..., object] = lambda *_: True
) -> Callable[..., Any]:
    def replaced(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        if wanted(*arguments):
            die()
        return result

    return replaced


def remembering(create: Callable[..., str]) -> Callable[..., str]:
    def replaced(self: Engine, config: Any, name: str | None = None) -> str:
        container = create(self, config, name)
        KEPT.extend([container] if name else [])
        return container

    return replaced


Engine.create = remembering(Engine.create)  # type: ignore[method-assign]
POINTS: dict[str, tuple[type, str, Callable[..., object]]] = {
    "created": (Engine, "create", lambda *_: KEPT),
    "started": (Engine, "start", lambda _, container: container in KEPT),
    "ordered": (Link, "order", lambda _, order, *__: order["keep"]),
    "uploaded": (WorkerApi, "upload", lambda *_: True),
    "finished": (WorkerApi, "finish", lambda *_: True),
}


def dying_in(phase: Phase) -> Callable[..., None]:
    noted = Journal.note

    def note(self: Journal, **changes: Any) -> None:
        noted(self, **changes)
        if self.notes.phase is phase:
            die()

    return note


def main() -> int:
    point = os.environ["KILL_POINT"]
    if point in POINTS:
        owner, name, wanted = POINTS[point]
        setattr(owner, name, dying_after(getattr(owner, name), wanted))
    else:
        Journal.note = dying_in(Phase(point))  # type: ignore[method-assign]
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
