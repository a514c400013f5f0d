"""What every server process holds open: database, objects, a relay, and the broker's users."""

from __future__ import annotations

from collections.abc import Callable

from assay.broker import Doorbell, queue_name
from assay.broker.acl import AccessList
from assay.processes import Parts, Stopped
from assay.storage.access import AccessKeeper
from assay.storage.notices import PostgresNotifier
from assay.storage.opening import check_migrated, open_database, open_dispatcher, open_store
from assay.storage.outbox import RelayLoop, Topic
from assay.storage.settings import ServerSettings
from assay.telemetry import configure_logging


def run_service(
    name: str,
    settings: ServerSettings,
    start: Callable[[Connections, Parts], Callable[[], None]],
) -> int:
    """Be a service's process until SIGTERM; returns the exit code.

    `start` is called when the database and the objects can be used, and returns what stops the
    service again.
    """
    configure_logging(name)
    parts = Parts()
    parts.heed_signals()
    connections = Connections(settings, parts)
    try:
        connections.wait()
    except Stopped:
        return 0
    stop = start(connections, parts)
    connections.start_relay()
    parts.wait()
    stop()
    connections.close()
    code = parts.join()
    connections.db.dispose()
    return code


class Connections:
    """Opened lazily: nothing is asked of any other server before it is needed."""

    def __init__(self, settings: ServerSettings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self.db = open_database(settings)
        self.store = open_store(settings)
        self.relay = RelayLoop(self.db, open_dispatcher(settings))
        self.access = (
            AccessKeeper(self.db, AccessList(settings.broker)) if settings.broker else None
        )
        self._doorbell: Doorbell | None = None

    def wait(self) -> None:
        """Wait for a database that was migrated, and for objects. Raises Stopped."""
        self._parts.keep_trying("use the database", lambda: check_migrated(self.db))
        self._parts.keep_trying("use the object store", self.store.check)

    def start_relay(self) -> None:
        """Relay messages in a thread."""
        self._parts.thread("relay", self.relay.run)

    def deliver_notices(self) -> None:
        """Deliver notices of what any process commits, in a thread, if they come from Postgres."""
        notifier = self.db.notifier
        if isinstance(notifier, PostgresNotifier):
            self._parts.thread("notices", notifier.run)

    def keep_users(self) -> None:
        """Keep the broker's users in step with the workers, in a thread."""
        if self.access is not None:
            self._parts.thread("access", self.access.run)

    def listen(
        self,
        topics: list[tuple[Topic, str]],
        handler: Callable[[str], None],
        missed: Callable[[], None],
    ) -> None:
        """Hear messages of these topics. The last must be this process's own."""
        broker = self._settings.broker
        if broker is None:
            return
        self._doorbell = Doorbell(
            lambda: broker,
            [queue_name(topic.value, key) for topic, key in topics],
            handler,
            on_hearing=missed,
            acknowledge=True,
        )
        self._doorbell.start()

    def close(self) -> None:
        """Stop threads and listener."""
        if self._doorbell is not None:
            self._doorbell.stop()
        self.relay.stop()
        if isinstance(self.db.notifier, PostgresNotifier):
            self.db.notifier.stop()
        if self.access is not None:
            self.access.stop()
