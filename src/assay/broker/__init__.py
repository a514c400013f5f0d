"""Messages between processes, over Celery and Redis: fast, and never the truth.

A message says only "look at this row". Its receivers look at the rows on their own clock too, so
that Redis may lose, repeat or delay anything: it is disposable.

The listening side is a child process (`assay.broker.listen`), a Celery worker that does nothing
but write the key of a message to its parent (`Doorbell`). Whatever happens to it happens to
nothing else, and Celery never runs in a process that holds work.
"""

from assay.broker.doorbell import Doorbell
from assay.broker.names import queue_name, worker_user
from assay.broker.settings import BrokerAddress

__all__ = ["BrokerAddress", "Doorbell", "queue_name", "worker_user"]
