"""The same no-op workload through plain Celery on Redis: no leases, no results, no guarantees.

python -m benchmarks.execution.celery_alone redis://…   # the worker of the comparison
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from celery import Celery

from tests.support.stack import Redis

QUEUE = "noop"


def application(url: str) -> Celery:
    """Celery as its tutorial has it, but for what would slow it down."""
    app = Celery("noop", broker=url)
    app.conf.update(task_ignore_result=True, task_default_queue=QUEUE)

    @app.task(name="noop")
    def noop(key: str) -> str:
        return key

    return app


def measure(redis: Redis, number: int) -> dict[str, Any]:
    """How many messages one Celery worker takes in a second, sending not counted."""
    app = application(redis.url)
    with app.connection_for_write() as connection:
        for key in range(number):
            app.send_task("noop", (str(key),), connection=connection)
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.execution.celery_alone", redis.url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with redis.connection() as connection:
            left = number
            while left > number * 0.95:  # it has started
                left = int(connection.llen(QUEUE))
                time.sleep(0.01)
            began, first = time.perf_counter(), left
            while left > number * 0.05:
                left = int(connection.llen(QUEUE))
                time.sleep(0.01)
            took = time.perf_counter() - began
    finally:
        os.killpg(worker.pid, signal.SIGKILL)  # its shutdown may wait for ever for its children
        worker.wait(30)
    return {"per_second": round((first - left) / took, 1)}


if __name__ == "__main__":
    application(sys.argv[1]).worker_main(
        ["worker", "--concurrency=2", "--loglevel=ERROR", "--without-gossip", "--without-mingle"]
    )
