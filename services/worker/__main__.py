"""`python -m services.worker`: a worker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from assay.domain.errors import AssayError
from assay.processes import read_settings
from assay.sandbox import SandboxError
from assay.telemetry import configure_logging
from services.worker.cli import Front
from services.worker.settings import PREFIX, WorkerSettings
from services.worker.supervisor import Worker


def main() -> int:
    """Run a worker from `ASSAY_WORKER_*`; the exit code is 2 for wrong settings.

    The first signal drains: nothing new is taken, and what is held gets `drain_seconds`. The
    second one ends it at once; what was held is tried again elsewhere. What SIGKILL leaves behind
    in containers is gone on with by the next worker on the same scratch folder.
    """
    settings = read_settings("assay worker", WorkerSettings)
    configure_logging("worker")
    secrets = {f"{PREFIX}TOKEN", f"{PREFIX}HELD_OUT_KEY"}
    for variable in [name for name in os.environ if name.upper() in secrets]:
        del os.environ[variable]  # nothing this process starts needs it
    os.umask(0o022)  # prepared data must be readable for the sandbox's user
    if settings.broker_url is not None:
        settings = settings.model_copy(update={"poll_seconds": 0.0})
    worker = Worker(settings)
    front = Front(worker, settings, settings.token.get_secret_value())
    front.open()
    _handle_signals(worker)
    try:
        worker.run()
    except (AssayError, SandboxError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        front.close()
    return 0


def _handle_signals(worker: Worker) -> None:
    seen: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        # From threads: this may have interrupted the worker while it holds one of its locks.
        seen.append(number)
        seconds = worker.drain_seconds if len(seen) == 1 else 0.0
        if seconds is not None:
            timer = threading.Timer(seconds, worker.stop)
            timer.daemon = True
            timer.start()
        if seconds is None or seconds > 0:
            threading.Thread(target=worker.drain, daemon=True).start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)


if __name__ == "__main__":
    sys.exit(main())
