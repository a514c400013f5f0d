"""`assay scheduler`: the clock as a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import typer

from assay.domain.ids import new_id
from assay.processes import Parts, announce, read_settings

COMMAND = "assay scheduler"


def scheduler() -> None:
    """Give queued measurements to workers, as one process of server mode, until SIGTERM.

    Everything is said by environment variables: ASSAY_SERVER_… and ASSAY_SCHEDULER_…. A second
    one waits, and takes over when the first is gone.
    """
    raise typer.Exit(schedule())


def schedule() -> int:
    """Schedule until SIGTERM; returns the exit code."""
    from assay.storage.connections import Connections, run_service
    from assay.storage.outbox import Topic
    from assay.storage.settings import ServerSettings
    from assay.telemetry.counts import serve_metrics
    from services.scheduler.clock import Scheduler
    from services.scheduler.settings import SchedulerSettings

    server = read_settings(COMMAND, ServerSettings)
    settings = read_settings(COMMAND, SchedulerSettings)

    def start(connections: Connections, parts: Parts) -> Callable[[], None]:
        holder = new_id("sch")
        clock = Scheduler(connections.db, settings, connections.relay.wake, holder=holder)
        connections.keep_users()
        parts.thread("scheduler", clock.run)
        own = (Topic.SCHEDULE, "")
        connections.listen([own], lambda _key: clock.wake(), clock.wake)
        port = serve_metrics(settings.metrics_host, settings.metrics_port)
        announce(holder=holder, metrics_port=port)
        return clock.stop

    return run_service("scheduler", server, start)
