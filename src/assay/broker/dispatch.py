"""The sending side: a `Dispatcher` (see `assay.storage.outbox`) that publishes with Celery."""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from assay.broker.app import QUEUE_SECONDS, celery_app, queue
from assay.broker.names import LOOK, queue_name
from assay.broker.settings import BrokerAddress
from assay.domain.errors import Unavailable

SEND_SECONDS = 5


class CeleryDispatcher:
    """Publishes messages. It connects when the first is sent; used from one thread at a time."""

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self._app: Celery | None = None

    def send(self, topic: str, key: str) -> None:
        """Publish a message.

        Raises:
            Unavailable: the broker did not take it within seconds.
        """
        name = queue_name(topic, key)
        try:
            self._connected().send_task(
                LOOK, args=[key], queue=queue(name, expires=QUEUE_SECONDS), ignore_result=True
            )
        except (KombuError, RedisError, OSError) as error:
            self.close()
            raise Unavailable(
                f"the broker {self._address} takes no messages: {error}; receivers look on their "
                "own clock meanwhile",
                code="broker_unavailable",
            ) from error

    def close(self) -> None:
        """Close its connections; the next message opens them again."""
        app, self._app = self._app, None
        if app is not None:
            app.close()

    def _connected(self) -> Celery:
        if self._app is None:
            self._app = celery_app(
                self._address.url,
                socket_timeout=SEND_SECONDS,
                socket_connect_timeout=SEND_SECONDS,
                retry_on_timeout=False,
            )
        return self._app
