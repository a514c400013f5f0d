"""Ask for the key of a request before its body is read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.domain.errors import AssayError
from services.implementer import problems
from services.implementer.context import Context
from services.implementer.dependencies import acting_in, owner_of, worker_of

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS"})


class RequireKey:
    """Middleware that refuses requests with a body whose sender has no API key or worker token.

    FastAPI reads and parses the body of a request before it calls what an endpoint depends on, so
    those without a key could make the service parse what they like. Endpoints ask again: whom a
    request belongs to is decided there.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outside = scope["type"] == "http" and acting_in(scope) is None
        if outside and scope["method"] not in _WITHOUT_BODY:
            try:
                await self._check(scope["path"], Headers(scope=scope).get("authorization"))
            except (AssayError, HTTPException) as error:
                await problems.of(Request(scope), error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _check(self, path: str, authorization: str | None) -> None:
        if path.startswith("/internal/v1/"):
            await worker_of(self._context, authorization)
        elif path.startswith("/v1/"):
            owner_of(self._context, authorization)
