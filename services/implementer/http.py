"""The HTTP server of the API, as a process of its own and beside everything else."""

from __future__ import annotations

import uvicorn

from services.implementer.app import create_app
from services.implementer.context import Context


def http_server(context: Context, *, here_only: bool) -> uvicorn.Server:
    """A server of the app. `here_only`: it listens where no other machine can connect."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(context, here_only=here_only),
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=3,
            lifespan="off",
        )
    )
