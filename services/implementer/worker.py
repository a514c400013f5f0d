"""An implement worker: turns ideas into codebases, as one of several processes."""

from __future__ import annotations

from assay.domain.ids import new_id
from assay.environments.catalog import Catalog
from assay.processes import Parts, Stopped, announce, read_settings
from assay.storage.connections import Connections
from assay.storage.outbox import Topic
from assay.storage.settings import ServerSettings
from assay.telemetry import configure_logging
from assay.telemetry.counts import serve_metrics
from services.implementer.context import Context
from services.implementer.pool import ImplementPool
from services.implementer.settings import ImplementerSettings

COMMAND = "assay implement-worker"


def implement() -> int:
    """Implement ideas until SIGTERM; returns the exit code."""
    server = read_settings(COMMAND, ServerSettings)
    settings = read_settings(COMMAND, ImplementerSettings)
    configure_logging("implement-worker")
    parts = Parts()
    parts.heed_signals()
    connections = Connections(server, parts)
    try:
        connections.wait()
    except Stopped:
        return 0
    holder = new_id("imp")
    context = Context(connections.db, connections.store, Catalog(), settings, holder=holder)
    context.on_commit = connections.relay.wake
    pool = ImplementPool(context)
    connections.start_relay()
    pool.start()

    def heard(key: str) -> None:
        if key == holder:
            pool.look_again()
        else:
            pool.look_at(key)

    topics = [(Topic.IMPLEMENT, ""), (Topic.IMPLEMENTER, holder)]
    connections.listen(topics, heard, pool.rescan)
    port = serve_metrics(settings.metrics_host, settings.metrics_port)
    announce(holder=holder, metrics_port=port)
    parts.wait()
    pool.stop()
    connections.close()
    code = parts.join()
    connections.db.dispose()
    return code
