"""One line and two counts per request, under an id that the answer carries too."""

from __future__ import annotations

import logging
import time

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.domain.ids import new_id
from assay.telemetry.counts import REQUEST_SECONDS, REQUESTS
from assay.telemetry.logs import ACCESS, bind, keep

log = logging.getLogger(ACCESS)
REQUEST_ID = "X-Request-Id"
#: Path parameters whose values are ids; names of files and environments are no business of a log.
IDS = frozenset({"attempt", "batch", "experiment", "implementation", "measurement", "search"})
IDS |= {"worker"}
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_PREFIXES = frozenset({"", "/v1", "/internal/v1"})
_UNKNOWN = "unknown"


class Observe:
    """Gives every request an id, counts it and logs it when it has been answered.

    What workers and probes ask all the time is logged for debugging only, unless it went wrong.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.monotonic(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with bind(request_id=request_id):
            try:
                await self._app(scope, receive, noted)
            finally:
                _note(scope, status, time.monotonic() - began)


def _note(scope: Scope, status: int, seconds: float) -> None:
    method = scope["method"] if scope["method"] in _METHODS else _UNKNOWN
    route = route_of(scope)
    REQUESTS.labels(method, route, str(status)).inc()
    REQUEST_SECONDS.labels(method, route).observe(seconds)
    level = logging.INFO
    if status < 400 and (route.startswith("/internal/") or not route.startswith("/v1/")):
        level = logging.DEBUG
    if not log.isEnabledFor(level):
        return
    log.log(
        level,
        "request",
        extra={
            "method": method,
            "route": route,
            "status": status,
            "duration_seconds": round(seconds, 6),
            "client": (scope.get("client") or ("",))[0],
            **ids_of(scope.get("path_params", {})),
        },
    )


def route_of(scope: Scope) -> str:
    """The template of the path that was asked for, or `unknown`: paths of clients are no labels.

    A route knows its template below the prefix that its router was included with.
    """
    template = getattr(scope.get("route"), "path", "")
    try:
        below = template.format(**scope.get("path_params", {}))
    except (IndexError, KeyError, ValueError):
        return _UNKNOWN
    prefix = scope["path"].removesuffix(below) if template else ""
    return f"{prefix}{template}" if template and prefix in _PREFIXES else _UNKNOWN


def ids_of(parameters: dict[str, str]) -> dict[str, str]:
    """Those path parameters that are ids, cut to the length of one."""
    named = {name.removesuffix("_id"): value for name, value in parameters.items()}
    return {name: str(named[name])[:64] for name in IDS & named.keys()}


async def bind_ids(request: Request) -> None:
    """Every line of an endpoint names what it is about. As a coroutine, since what a coroutine
    binds holds for the rest of the request."""
    if found := ids_of(request.path_params):
        keep(**found)
