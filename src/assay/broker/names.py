"""Names of queues and users in Redis, and the tasks that are sent.

Every key of a queue begins with the queue's name, so that a worker's user can be held to its own.
"""

from __future__ import annotations

PREFIX = "assay"
LOOK = "assay.look"
ECHO = "assay.echo"
#: Topics of which every receiver has a queue of its own, named by the message's key.
_ADDRESSED = frozenset({"worker", "implementer"})


def queue_name(topic: str, key: str = "") -> str:
    """The queue that carries a topic; `key` says whose it is where everybody has one."""
    return f"{PREFIX}.{topic}.{key}" if topic in _ADDRESSED else f"{PREFIX}.{topic}"


def worker_user(worker_id: str) -> str:
    """The Redis user of a worker. Its password is the worker's token."""
    return f"worker.{worker_id}"
