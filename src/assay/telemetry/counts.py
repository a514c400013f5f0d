"""What this process counts, for Prometheus. What the database knows is counted there.

Labels never hold ids or anything a client chose: each value is one of a few.
"""

from __future__ import annotations

import logging

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)

log = logging.getLogger(__name__)
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

#: A tick should take milliseconds; a request may wait for news up to half a minute.
_TICKS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_REQUESTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

REQUESTS = Counter(
    "assay_http_requests",
    "Requests by route and status.",
    ["method", "route", "status"],
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "assay_http_request_duration_seconds",
    "From the request to the last byte of the answer, waiting for news included.",
    ["method", "route"],
    buckets=_REQUESTS,
    registry=REGISTRY,
)
PROBLEMS = Counter(
    "assay_problems", "Answers that are problems, by error code.", ["code"], registry=REGISTRY
)
FENCED = Counter(
    "assay_reports_fenced",
    "Reports of workers refused because the lease had passed to somebody else.",
    registry=REGISTRY,
)
FORBIDDEN = Counter(
    "assay_reports_forbidden",
    "Reports of workers about attempts of another worker.",
    registry=REGISTRY,
)
DUPLICATES = Counter(
    "assay_reports_duplicate",
    "Ends of attempts that were reported again and dropped.",
    registry=REGISTRY,
)
DELIVERED = Counter(
    "assay_messages_delivered", "Messages given to the broker.", ["topic"], registry=REGISTRY
)
WEBHOOKS = Counter(
    "assay_webhook_requests",
    "Requests to receivers of webhooks: delivered, retried, failed (given up).",
    ["outcome"],
    registry=REGISTRY,
)
TICK_SECONDS = Histogram(
    "assay_scheduler_tick_duration_seconds",
    "Rounds of the scheduler while it leads.",
    buckets=_TICKS,
    registry=REGISTRY,
)
DECISIONS = Counter(
    "assay_scheduler_decisions",
    "What the scheduler decided: assigned, lost, returned, quarantined, cordoned.",
    ["decision"],
    registry=REGISTRY,
)


def serve_metrics(host: str, port: int | None) -> int | None:
    """Answer `GET /metrics` from a thread, for processes without an API. 0 takes any free port.

    Returns the port, or None where none was asked for.
    """
    if port is None:
        return None
    server, _thread = start_http_server(port, host, REGISTRY)
    taken = int(server.server_port)
    log.info("metrics at http://%s:%d/metrics", host, taken)
    return taken
