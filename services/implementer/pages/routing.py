"""Routes of pages: their errors are pages too, and without a key a browser is asked to log in."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from assay.domain.errors import AssayError, InvalidInput
from services.implementer import problems
from services.implementer.pages.rendering import render

#: Fields of a form, at most; the largest has nine.
_MOST_FIELDS = 50


class PageRoute(APIRoute):
    """A route whose errors are answered with HTML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def page(request: Request) -> Response:
            try:
                return await handle(request)
            except (AssayError, HTTPException, RequestValidationError) as error:
                return _error_page(request, error)

        return page


def page_router() -> APIRouter:
    """Return a router for pages. They are no part of the API's description."""
    return APIRouter(
        route_class=PageRoute, default_response_class=HTMLResponse, include_in_schema=False
    )


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a submitted form; of a repeated one, the last.

    Raises:
        InvalidInput: the body is not a form in UTF-8.
    """
    body = await request.body()
    try:
        pairs = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=bool(body),
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError as error:
        raise InvalidInput(f"the form cannot be read: {error}") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


FormDep = Annotated[dict[str, str], Depends(form)]


def see(path: str) -> RedirectResponse:
    """Return what sends a browser on after a form, so that reloading does not repeat it."""
    return RedirectResponse(path, 303)


def see_made(answer: Response, kind: str) -> RedirectResponse:
    """Return what sends a browser on to what the API made: an answer with its id."""
    return see(f"/{kind}/{json.loads(bytes(answer.body))['id']}")


def _error_page(
    request: Request, error: AssayError | HTTPException | RequestValidationError
) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 401:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        wanted = asked if request.method == "GET" else "/"
        return see(f"/login?{urlencode({'next': wanted})}")
    answer = problems.of(request, error)
    page = render(
        request, "error.html", answer.status_code, problem=json.loads(bytes(answer.body))
    )
    if (retry_after := answer.headers.get("Retry-After")) is not None:
        page.headers["Retry-After"] = retry_after
    return page
