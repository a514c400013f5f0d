"""Errors as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from assay.contracts.base import Problem, ProblemField
from assay.domain.errors import (
    AssayError,
    Conflict,
    Fenced,
    FieldError,
    Forbidden,
    Gone,
    InvalidInput,
    NotFound,
    TooMany,
    Unavailable,
)
from assay.domain.ids import new_id
from assay.telemetry.counts import FENCED, FORBIDDEN, PROBLEMS

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
_STATUS: list[tuple[type[AssayError], int, str]] = [
    (InvalidInput, 422, "The request is not valid"),
    (NotFound, 404, "Not found"),
    (Gone, 410, "Removed"),
    (Forbidden, 403, "Not allowed"),
    (Fenced, 409, "The lease has passed to somebody else"),
    (Conflict, 409, "Not possible in the current state"),
    (TooMany, 429, "Too many"),
    (Unavailable, 503, "Temporarily unavailable"),
]
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_REPORTS = {"fenced": FENCED, "forbidden": FORBIDDEN}
_UNREADABLE = (
    "the body cannot be read: it is not UTF-8, is nested too deeply, or holds an integer of "
    "thousands of digits"
)
#: What a message repeats of a request is cut: an answer must not grow with what was sent.
_MOST_DETAIL = 4_000
_MOST_POINTER = 200
_RETRY_AFTER = {"Retry-After": "5"}


class BadParameter(InvalidInput):
    """A query or path parameter is wrong."""

    code = "invalid_parameter"


def answer(
    request: Request,
    status: int,
    title: str,
    code: str,
    detail: str,
    fields: list[ProblemField] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """A problem as a response, counted by its code."""
    PROBLEMS.labels(code).inc()
    if code in _REPORTS and request.url.path.startswith("/internal/"):
        _REPORTS[code].inc()
    problem = Problem(
        type=f"/docs/errors#{code}",
        title=title,
        status=status,
        code=code,
        detail=_shown(detail, _MOST_DETAIL),
        instance=_shown(request.url.path, _MOST_DETAIL),
        request_id=request_id(request),
        errors=fields or [],
    )
    return JSONResponse(problem.wire(), status, headers, MEDIA_TYPE)


def _shown(text: str, most: int) -> str:
    """Text that an answer can carry: at most so long, and without lone surrogates."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return cut.encode("utf-8", "replace").decode()


def request_id(request: Request) -> str:
    """The id of a request, made when it is first asked for."""
    state: Any = request.state
    if not hasattr(state, "request_id"):
        state.request_id = new_id("req")
    return str(state.request_id)


def install(app: FastAPI) -> None:
    """Answer every error of the app with a problem."""
    app.add_exception_handler(AssayError, _library_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def of(
    request: Request, error: AssayError | HTTPException | RequestValidationError
) -> JSONResponse:
    """The answer to an error that does not reach the app's handlers."""
    if isinstance(error, AssayError):
        return _library_error(request, error)
    handler = _http_error if isinstance(error, HTTPException) else _validation_error
    return handler(request, error)


def _library_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AssayError)
    fields = [_field(f) for f in getattr(error, "fields", ())]
    if isinstance(error, BadParameter):
        return answer(request, 400, "A parameter is wrong", error.code, str(error), fields)
    for kind, status, title in _STATUS:
        if isinstance(error, kind):
            headers = _RETRY_AFTER if status in (429, 503) else None
            return answer(request, status, title, error.code, str(error), fields, headers)
    return answer(request, 500, "Internal error", error.code, str(error), fields)


def _field(error: FieldError) -> ProblemField:
    message = _shown(error.message, _MOST_DETAIL)
    return ProblemField(pointer=error.pointer, code=error.code, message=message)


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    details = error.errors()
    first = details[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        position = first["loc"][-1]
        detail = f"the body is not valid JSON: {reason} at character {position}"
        return answer(request, 400, "Malformed JSON", "malformed_json", detail)
    fields = [
        ProblemField(
            pointer=pointer(e["loc"]),
            code=str(e["type"]),
            message=str(e["msg"]).removeprefix("Value error, "),
        )
        for e in details[:20]
    ]
    detail = "; ".join(f"{f.pointer}: {f.message}" for f in fields)
    if first["loc"][0] in ("query", "path", "header"):
        return answer(request, 400, "A parameter is wrong", "invalid_parameter", detail, fields)
    return answer(request, 422, "The request is not valid", "validation_failed", detail, fields)


def pointer(location: tuple[Any, ...]) -> str:
    """A JSON pointer into the body, or the name of a parameter or header."""
    if location and location[0] in ("query", "path", "header"):
        return ".".join(map(str, location[1:]))
    return "/" + "/".join(_shown(str(part), _MOST_POINTER) for part in location[1:])


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    codes = {
        401: "unauthorized",
        403: "forbidden",
        404: "not_found",
        405: "method_not_allowed",
        400: "malformed_json",
        413: "body_too_large",
    }
    code = codes.get(error.status_code, "http_error")
    headers = dict(error.headers) if error.headers else None
    if error.status_code == 405:
        headers = {"Allow": ", ".join(_methods(request))}
    detail = error.detail
    if error.status_code == 400:  # JSON as far as it was read; FastAPI does not say what is wrong
        detail = _UNREADABLE
    if error.status_code == 404 and detail == "Not Found":
        detail = f"there is no {request.method} {request.url.path}; see /openapi.json"
    return answer(request, error.status_code, error.detail, code, detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """The methods that a path takes: several endpoints may share it."""
    scope = {"type": "http", "path": request.scope["path"], "headers": [], "root_path": ""}
    return [
        method
        for method in _METHODS
        if any(
            route.matches({**scope, "method": method})[0] is Match.FULL
            for route in request.app.router.routes
        )
    ]


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.exception("request %s failed", request_id(request), exc_info=error)
    detail = f"an unexpected error; the server's log has it under {request_id(request)}"
    return answer(request, 500, "Internal error", "internal", detail)
