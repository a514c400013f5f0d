"""An implement worker: turns ideas into codebases, drives searches and sends to webhooks, as one
of several processes."""

from __future__ import annotations

from collections.abc import Callable

from assay.domain.ids import new_id
from assay.environments.catalog import Catalog
from assay.processes import Parts, announce, read_settings
from assay.storage.connections import Connections, run_service
from assay.storage.outbox import Topic
from assay.storage.settings import ServerSettings
from assay.telemetry.counts import serve_metrics
from services.implementer.context import Context
from services.implementer.driving import SearchDrivers
from services.implementer.pool import ImplementPool
from services.implementer.settings import ImplementerSettings
from services.implementer.webhooks import WebhookSender

COMMAND = "assay implement-worker"


def implement() -> int:
    """Implement ideas until SIGTERM; returns the exit code."""
    server = read_settings(COMMAND, ServerSettings)
    settings = read_settings(COMMAND, ImplementerSettings)

    def start(connections: Connections, _parts: Parts) -> Callable[[], None]:
        holder = new_id("imp")
        context = Context(connections.db, connections.store, Catalog(), settings, holder=holder)
        context.on_commit = connections.relay.wake
        pool = ImplementPool(context)
        searches = SearchDrivers(context)
        webhooks = WebhookSender(context)
        pool.start()
        searches.start()
        webhooks.start()

        def heard(key: str) -> None:
            if key == holder:
                pool.look_again()
                searches.look_again()
            elif key.startswith("srch_"):
                searches.look()
            elif key.startswith("whk_"):
                webhooks.look()
            else:
                pool.look_at(key)

        def missed() -> None:
            pool.rescan()
            searches.look()
            webhooks.look()

        def stop() -> None:
            searches.stop()
            webhooks.stop()
            pool.stop()

        topics = [
            (Topic.IMPLEMENT, ""),
            (Topic.DRIVE, ""),
            (Topic.WEBHOOK, ""),
            (Topic.IMPLEMENTER, holder),
        ]
        connections.listen(topics, heard, missed)
        port = serve_metrics(settings.metrics_host, settings.metrics_port)
        announce(holder=holder, metrics_port=port)
        return stop

    return run_service("implement-worker", server, start)
