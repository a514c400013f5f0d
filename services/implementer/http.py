"""The HTTP server of the API, as a process of its own and beside everything else."""

from __future__ import annotations

import uvicorn

from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.open_connections import allow_connections, bounded_protocol


def http_server(context: Context, *, here_only: bool) -> uvicorn.Server:
    """A server of the app. `here_only`: it listens where no other machine can connect."""
    most = allow_connections(context.settings.connections)
    return uvicorn.Server(
        uvicorn.Config(
            create_app(context, here_only=here_only),
            http=bounded_protocol(most),
            limit_concurrency=most + 1,  # answers 503 from this number of connections on
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=3,
            lifespan="off",
        )
    )
