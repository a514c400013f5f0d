"""Logging in and out. Where the service has no API keys, everybody is in."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request, Response
from starlette.exceptions import HTTPException

from services.implementer.dependencies import ContextDep, owner_of
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import form, page_router, see
from services.implementer.pages.sessions import close_session, open_session

router = page_router()
Next = Annotated[str, Query(max_length=2_000)]


@router.get("/login")
def ask(request: Request, context: ContextDep, next: Next = "/") -> Response:  # noqa: A002
    """Ask for an API key."""
    if not context.settings.api_keys:
        return see("/")
    return render(request, "login.html", next=own_path(next), wrong=False)


@router.post("/login")
def log_in(
    request: Request, context: ContextDep, fields: Annotated[dict[str, str], Depends(form)]
) -> Response:
    """Open a session for the owner of a key."""
    wanted = own_path(fields.get("next", "/"))
    try:
        owner = owner_of(context, f"Bearer {fields.get('key', '').strip()}")
    except HTTPException:
        return render(request, "login.html", 401, next=wanted, wrong=True)
    response = see(wanted)
    open_session(request, response, owner)
    return response


@router.post("/logout")
def log_out(request: Request) -> Response:
    """End the session of this browser."""
    response = see("/login")
    close_session(request, response)
    return response


def own_path(path: str) -> str:
    """Return a path of this service; `/` in place of an address elsewhere."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_own and "\\" not in path else "/"
