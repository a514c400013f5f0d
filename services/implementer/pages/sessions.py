"""How a browser shows whose API key it has: a cookie that stands for the key.

The cookie names the owner and when it ends, signed with the owner's key. The key itself is not in
it, nothing of it is stored, it outlives a restart, and replacing the key ends all its sessions.
"""

from __future__ import annotations

import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from hashlib import sha256
from http.cookies import SimpleCookie

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from services.implementer.context import Context

COOKIE = "assay_session"
SECONDS = 30 * 24 * 3600
_PURPOSE = "assay browser session 1"


class Sessions:
    """Middleware that gives a request with a valid session the key which the session stands for.

    Everything behind it then decides as for a program that sends this key. A request that has an
    `Authorization` header keeps it. The cookie is `SameSite=Strict`, and `RefuseForeign`, which
    comes before, refuses what another site makes a browser send.
    """

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._context.settings.api_keys:
            headers = Headers(scope=scope)
            sent = cookie_parser(headers.get("cookie", "")).get(COOKIE)
            owner = None if sent is None else session_owner(self._context, sent)
            if owner is not None and "authorization" not in headers:
                value = f"Bearer {_key(self._context, owner)}".encode()
                scope = {**scope, "headers": [*scope["headers"], (b"authorization", value)]}
        await self._app(scope, receive, send)


def session_owner(context: Context, token: str) -> str | None:
    """Return whose session a cookie's value is; None if it is forged, has ended or is no value."""
    name, _, rest = token.partition(".")
    until, _, signature = rest.partition(".")
    try:
        owner = urlsafe_b64decode(name.encode()).decode()
    except (NotBase64, UnicodeError, ValueError):
        return None
    if owner not in context.settings.api_keys or not until.isdecimal() or len(until) > 12:
        return None
    expected = _sign(context, owner, int(until))
    is_signed = hmac.compare_digest(signature.encode(), expected.encode())
    return owner if is_signed and time.time() < int(until) else None


def open_session(request: Request, response: Response, owner: str) -> None:
    """Give the browser a session of this owner."""
    context: Context = request.app.state.context
    until = int(time.time()) + SECONDS
    name = urlsafe_b64encode(owner.encode()).decode()
    value = f"{name}.{until}.{_sign(context, owner, until)}"
    _set(request, response, value, SECONDS)


def close_session(request: Request, response: Response) -> None:
    """Have the browser forget its session."""
    _set(request, response, "", 0)


def _set(request: Request, response: Response, value: str, seconds: int) -> None:
    cookie: SimpleCookie = SimpleCookie({COOKIE: value})
    morsel = cookie[COOKIE]
    morsel["path"], morsel["samesite"], morsel["max-age"] = "/", "Strict", str(seconds)
    morsel["httponly"] = True
    # A proxy that ends TLS says so; who forges the header only makes the own cookie stricter.
    if "https" in (request.url.scheme, request.headers.get("x-forwarded-proto")):
        morsel["secure"] = True
    response.headers.append("Set-Cookie", morsel.OutputString())


def _sign(context: Context, owner: str, until: int) -> str:
    said = f"{_PURPOSE}\n{owner}\n{until}".encode()
    return hmac.new(_key(context, owner).encode(), said, sha256).hexdigest()


def _key(context: Context, owner: str) -> str:
    return context.settings.api_keys[owner].get_secret_value()
