"""`python -m services.worker`: a worker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType

from pydantic import ValidationError

from assay.domain.errors import AssayError
from assay.sandbox import SandboxError
from services.worker.settings import PREFIX, WorkerSettings
from services.worker.supervisor import Worker


def main() -> int:
    """Run a worker from `ASSAY_WORKER_*`; the exit code is 2 for wrong settings.

    The first signal drains: nothing new is taken, and what is held gets `drain_seconds`. The
    second one ends it at once; what was held is tried again elsewhere.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        for problem in error.errors():
            where = PREFIX + "_".join(map(str, problem["loc"])).upper() if problem["loc"] else ""
            sys.stderr.write(f"{where}{': ' if where else ''}{problem['msg']}\n")
        return 2
    secrets = {f"{PREFIX}TOKEN", f"{PREFIX}HELD_OUT_KEY"}
    for variable in [name for name in os.environ if name.upper() in secrets]:
        del os.environ[variable]  # nothing this process starts needs it
    os.umask(0o022)  # prepared data must be readable for the sandbox's user
    worker = Worker(settings)
    _handle_signals(worker, settings.drain_seconds)
    try:
        worker.run()
    except (AssayError, SandboxError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _handle_signals(worker: Worker, drain_seconds: float) -> None:
    seen: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        # From threads: this may have interrupted the worker while it holds one of its locks.
        seen.append(number)
        first = len(seen) == 1 and drain_seconds > 0
        timer = threading.Timer(drain_seconds if first else 0, worker.stop)
        timer.daemon = True
        timer.start()
        if first:
            threading.Thread(target=worker.drain, daemon=True).start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


if __name__ == "__main__":
    sys.exit(main())
