"""Refuse what web pages make a browser send. `create_app` puts this before every endpoint.

A browser sends requests of any page to any address its user can reach, a service on loopback
included. The page cannot read the answer, but the request would already have had its effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.implementer import problems

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_FORM = "application/x-www-form-urlencoded"
#: Workers send files and logs there as they are. A page cannot: no form makes a PUT.
_BYTES = re.compile(r"/internal/v1/attempts/[^/]+/(artifacts|logs)/[^/]+")


@dataclass(frozen=True)
class _Refusal:
    status: int
    title: str
    code: str
    detail: str


_CROSS_SITE = _Refusal(
    403,
    "Sent by another site",
    "cross_site",
    "a browser sent this for a page of another site; only programs and pages of this address "
    "may change anything here",
)
_NOT_JSON = _Refusal(
    415,
    "Not JSON",
    "unsupported_media_type",
    "the API takes JSON; send the header `Content-Type: application/json`, or no body at all",
)
_UNKNOWN_HOST = _Refusal(
    403,
    "Unknown host",
    "unknown_host",
    "a service on a loopback address answers to `localhost` and IP addresses only; use one of "
    "them, or have the proxy set the Host header to one",
)


class RefuseForeign:
    """Middleware that refuses state-changing requests of pages of other sites.

    The rules are those of `http.CrossOriginProtection` in Go: `Sec-Fetch-Site` decides, and
    `Origin` where a browser does not send it. Requests with neither come from programs, which
    pass. What is left, forms of old browsers, is refused because it is not JSON. Only the pages
    of the dashboard take forms, and only from a browser that says they come from this address.

    `here_only`: the service listens on a loopback address. A page whose name resolves to that
    address (DNS rebinding) counts as the same origin, and is told by its name in `Host`.
    """

    def __init__(self, app: ASGIApp, *, here_only: bool = False) -> None:
        self._app = app
        self._here_only = here_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        response = problems.answer(
            Request(scope), refusal.status, refusal.title, refusal.code, refusal.detail
        )
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> _Refusal | None:
        headers = Headers(scope=scope)
        if self._here_only and not _is_local_name(headers.get("host", "")):
            return _UNKNOWN_HOST
        if scope["method"] in _SAFE:
            return None
        if _is_cross_site(headers):
            return _CROSS_SITE
        if _is_json(headers) or _takes_bytes(scope):
            return None
        if _is_form_of_a_page(scope, headers):
            return None if _says_where_from(headers) else _CROSS_SITE
        return _NOT_JSON


def _is_cross_site(headers: Headers) -> bool:
    sites = headers.getlist("sec-fetch-site")
    if sites:
        return not _OWN_SITES.issuperset(sites)
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        host = urlsplit(origin).netloc
    except ValueError:  # not an address at all
        return True
    return not host or host.lower() != headers.get("host", "").lower()  # `null` has no host


def _is_form_of_a_page(scope: Scope, headers: Headers) -> bool:
    is_page = not scope["path"].startswith(("/v1/", "/internal/"))
    return is_page and headers.get("content-type", "").partition(";")[0].strip() == _FORM


def _says_where_from(headers: Headers) -> bool:
    """Whether `_is_cross_site` had anything to judge by: every browser sends it with a form."""
    return "sec-fetch-site" in headers or "origin" in headers


def _is_json(headers: Headers) -> bool:
    """Whether the body is JSON, or there is none. A form names its type even without fields."""
    kinds = headers.getlist("content-type")
    if kinds:
        return all(k.partition(";")[0].strip().lower() == "application/json" for k in kinds)
    return headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers


def _takes_bytes(scope: Scope) -> bool:
    return scope["method"] == "PUT" and _BYTES.fullmatch(scope["path"]) is not None


def _is_local_name(host: str) -> bool:
    """Whether a `Host` is `localhost` or an address: an attacker's name is neither."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
