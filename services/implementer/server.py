"""The API as a process of its own, over Postgres, an object store and, if there is one, Redis."""

from __future__ import annotations

import logging
import sys

from assay.domain.errors import Conflict
from assay.environments.catalog import Catalog
from assay.processes import WRONG_SETTINGS, Parts, announce, read_settings
from assay.storage import workers
from assay.storage.connections import Connections
from assay.storage.opening import migrate, open_database
from assay.storage.settings import ServerSettings
from assay.telemetry import configure_logging
from services.implementer.binding import NO_KEYS, bind, is_loopback, url_of
from services.implementer.context import Context
from services.implementer.http import http_server
from services.implementer.settings import ImplementerSettings

log = logging.getLogger(__name__)
COMMAND = "assay serve"
_PORT_REMEDY = "choose another with ASSAY_IMPLEMENTER_HOST and ASSAY_IMPLEMENTER_PORT"


def serve_api() -> int:
    """Serve the API until SIGTERM; returns the exit code.

    It listens at once, so that `/readyz` can say what it waits for; until then other requests are
    answered with 503.
    """
    server, settings = _settings()
    configure_logging("api")
    try:
        bound = bind(settings.host, settings.port, _PORT_REMEDY)
    except Conflict as error:
        sys.stderr.write(f"{COMMAND}: {error}\n")
        return 1
    parts = Parts()
    parts.heed_signals()
    connections = Connections(server, parts)
    context = Context(connections.db, connections.store, Catalog(), settings)
    context.on_commit = connections.relay.wake
    if connections.access is not None:
        context.on_worker = connections.access.poke
        context.probes["broker"] = connections.access.probe
    http = http_server(context, here_only=is_loopback(settings.host))
    url = url_of(settings.host, bound)
    parts.thread("api", lambda: http.run(sockets=[bound]))
    parts.thread("preparation", lambda: _prepare(context, connections, parts, url))
    parts.wait()
    http.should_exit = True
    connections.close()
    code = parts.join()
    connections.db.dispose()
    return code


def _prepare(context: Context, connections: Connections, parts: Parts, url: str) -> None:
    """Wait for what the API needs, and say when it is there."""
    parts.keep_trying("migrate the database", lambda: migrate(context.db))
    parts.keep_trying("admit workers", lambda: _admit(context))
    parts.keep_trying("use the object store", context.store.check)
    connections.start_relay()
    connections.deliver_notices()
    connections.keep_users()
    announce(api=url)


def migrate_database() -> int:
    """Bring the database to this version's schema, and end."""
    server = read_settings("assay migrate", ServerSettings)
    configure_logging("migrate")
    parts = Parts()
    parts.heed_signals()
    db = open_database(server)
    revision = parts.keep_trying("migrate the database", lambda: migrate(db))
    db.dispose()
    announce(revision=revision)
    return 0


def _settings() -> tuple[ServerSettings, ImplementerSettings]:
    server = read_settings(COMMAND, ServerSettings)
    settings = read_settings(COMMAND, ImplementerSettings)
    if not is_loopback(settings.host) and not settings.api_keys:
        sys.stderr.write(f"{COMMAND}: ASSAY_IMPLEMENTER_HOST={settings.host} {NO_KEYS}\n")
        sys.exit(WRONG_SETTINGS)
    return server, settings


def _admit(context: Context) -> None:
    """Admit the workers that the settings name. Those who were admitted before stay."""
    for name, token in context.settings.workers.items():
        workers.admit(context.db, name, token.get_secret_value())
    context.on_worker()
