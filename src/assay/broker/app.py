"""The Celery application of both sides, with every setting that matters said.

Not set: time limits and recycling of children belong to pools of processes, and the listener has
none (pool `solo`): its task writes one line.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.entity import Queue

#: A queue that nobody reads and nobody writes to for so long is forgotten by Redis.
QUEUE_SECONDS = 3600.0
VISIBILITY_SECONDS = 300
SOCKET_SECONDS = 30
CONNECT_SECONDS = 5


def celery_app(url: str, **transport: Any) -> Celery:
    """An application on the broker at `url`. `transport` overrides options of the transport."""
    app: Celery = Celery("assay", broker=url, set_as_current=False)
    app.conf.update(
        result_backend=None,
        task_ignore_result=True,  # the truth is the database
        task_serializer="json",
        accept_content=["json"],
        task_acks_late=True,
        task_reject_on_worker_lost=True,  # safe: to look twice changes nothing
        task_acks_on_failure=True,
        task_acks_on_timeout=True,  # a message that fails must not come again for ever
        worker_prefetch_multiplier=1,
        worker_concurrency=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=2,  # then the process ends, and its parent starts another
        task_publish_retry=False,  # the relay sends again; nothing waits for Redis
        task_create_missing_queues=True,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_SECONDS,  # the same for everybody on this Redis
            "unacked_restore_interval": 10,
            "unacked_restore_throttle": 1,  # sweeps every 10 s instead of every 100
            "unacked_mutex_expire": 30,
            "priority_steps": [0],  # one key per queue
            "socket_timeout": SOCKET_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": 25,
            "retry_on_timeout": True,
            **transport,
        },
    )
    return app


class DirectQueue(Queue):
    """A queue that messages reach by its name alone: no binding is kept in Redis, which may lose
    it and which a worker's user may not write."""

    def queue_bind(self, nowait: bool = False, channel: Any = None) -> None:
        """Nothing to do."""


def queue(name: str, *, expires: float | None = None) -> DirectQueue:
    """The queue of that name."""
    make: Any = DirectQueue  # kombu says no types
    return make(name, exchange="", routing_key=name, expires=expires)  # type: ignore[no-any-return]
