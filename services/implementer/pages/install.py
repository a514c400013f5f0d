"""Put the pages into the app."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.implementer.pages import (
    batches,
    comparison,
    documentation,
    environments,
    experiments,
    failures,
    login,
    overview,
    searches,
    starting,
    submission,
    tags,
    workers,
)
from services.implementer.pages.rendering import STATIC


class _Static(StaticFiles):
    """Files of the dashboard. Pages name them with a digest, so a browser may keep them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["X-Content-Type-Options"] = "nosniff"
        if scope["query_string"].startswith(b"v="):
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def install(app: FastAPI) -> None:
    """Add the pages, their files and the documentation to the app."""
    for module in (
        overview,
        searches,
        batches,
        experiments,
        environments,
        tags,
        workers,
        failures,
        comparison,
        submission,
        starting,
        documentation,
        login,
    ):
        app.include_router(module.router)
    app.mount("/static", _Static(directory=STATIC), name="static")
