"""What endpoints ask for: the context, who is asking, a page, and no unknown parameters."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, HTTPException, Path, Query, Request
from fastapi.dependencies.models import Dependant
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from assay.contracts.annotation import TagName
from assay.contracts.base import MAX_INTEGER, Name, ShortName
from assay.domain.errors import Forbidden
from services.implementer.context import Context
from services.implementer.problems import BadParameter

IdPath = Annotated[ShortName, Path()]
NamePath = Annotated[Name, Path()]
IdQuery = Annotated[ShortName | None, Query()]
NameQuery = Annotated[Name | None, Query()]
TagQuery = Annotated[TagName | None, Query()]
LOCAL_OWNER = "local"
MAX_PAGE = 200
#: Epochs come with the text of all their ideas.
MAX_EPOCHS = 20


async def get_context(request: Request) -> Context:
    """The context of the app."""
    context: Context = request.app.state.context
    return context


ContextDep = Annotated[Context, Depends(get_context)]


@dataclass(frozen=True)
class Acting:
    """This process, which holds a search and drives it for its owner (`driving.py`).

    It stands in the scope of a request under `ACTING`. Servers make scopes from nothing but the
    connection, so no request that came over a network has it: there is no secret to lose.
    """

    owner: str
    search: str
    holder: str


ACTING = "assay.acting"


def acting_in(scope: Scope) -> Acting | None:
    """Who acts for an owner in this process; None for every request from outside."""
    found = scope.get(ACTING)
    return found if isinstance(found, Acting) else None


def owner_of(context: Context, authorization: str | None) -> str:
    """Whose API key a header holds; `local` where no keys are configured.

    Raises:
        HTTPException: 401, it holds none.
    """
    keys = context.settings.api_keys
    if not keys:
        return LOCAL_OWNER
    sent = bearer(authorization)
    for owner, key in keys.items():
        if sent and hmac.compare_digest(sent.encode(), key.get_secret_value().encode()):
            return owner
    raise HTTPException(
        401, "send a valid API key: `Authorization: Bearer …`", {"WWW-Authenticate": "Bearer"}
    )


async def get_owner(
    request: Request, context: ContextDep, authorization: Annotated[str | None, Header()] = None
) -> str:
    """Whose API key was sent, or for whom this process acts; `local` where no keys are
    configured."""
    acting = acting_in(request.scope)
    return acting.owner if acting is not None else owner_of(context, authorization)


async def get_holder(request: Request, search_id: IdPath) -> str | None:
    """The process of the service that drives this search and sends this; None for a client.

    Raises:
        Forbidden: it acts for the owner of another search.
    """
    acting = acting_in(request.scope)
    if acting is not None and acting.search != search_id:
        raise Forbidden(f"this process drives {acting.search}, not {search_id}")
    return None if acting is None else acting.holder


async def may_scrape(
    context: ContextDep, authorization: Annotated[str | None, Header()] = None
) -> None:
    """Who may read metrics: with API keys, whoever sends one of them, or the token for metrics.

    Where a request comes from says nothing: behind a proxy, everybody comes from this machine.
    """
    token, sent = context.settings.metrics_token, bearer(authorization)
    if token and sent and hmac.compare_digest(sent.encode(), token.get_secret_value().encode()):
        return
    owner_of(context, authorization)


OwnerDep = Annotated[str, Depends(get_owner)]
HolderDep = Annotated[str | None, Depends(get_holder)]


async def get_administrator(request: Request, context: ContextDep, owner: OwnerDep) -> str:
    """Who may change workers: the owners that are named, or, with one API key or none, anybody."""
    if acting_in(request.scope) is not None:
        raise Forbidden("a search changes no workers")
    named, keys = context.settings.admins, context.settings.api_keys
    if owner in named or (not named and len(keys) <= 1):
        return owner
    raise Forbidden(
        f"{owner!r} may not change workers; ASSAY_IMPLEMENTER_ADMINS names those who may"
    )


async def worker_of(context: Context, authorization: str | None) -> str:
    """The id of the worker whose token a header holds.

    Raises:
        HTTPException: 401, it holds none.
        Unavailable: the database cannot be used.
    """
    token = bearer(authorization)
    worker_id: str | None = None
    if token:
        tokens = context.tokens
        worker_id = tokens.remembered(token) or await run_in_threadpool(tokens.look_up, token)
    if worker_id is None:
        raise HTTPException(401, "send a valid worker token", {"WWW-Authenticate": "Bearer"})
    return worker_id


async def get_worker(
    context: ContextDep, authorization: Annotated[str | None, Header()] = None
) -> str:
    """The id of the worker whose token was sent."""
    return await worker_of(context, authorization)


WorkerDep = Annotated[str, Depends(get_worker)]


def bearer(authorization: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


@dataclass(frozen=True)
class PageRequest:
    """Which page of a list is asked for."""

    limit: int
    cursor: str | None


Cursor = Annotated[str | None, Query(max_length=500, pattern=r"^[A-Za-z0-9_=-]+$")]


async def get_page(
    limit: Annotated[
        int, Query(ge=1, le=MAX_INTEGER, description=f"At most {MAX_PAGE}; more is cut.")
    ] = 50,
    cursor: Cursor = None,
) -> PageRequest:
    """The page asked for; a limit that is too large is cut, not refused."""
    return PageRequest(min(limit, MAX_PAGE), cursor)


async def get_epoch_page(
    limit: Annotated[
        int, Query(ge=1, le=MAX_INTEGER, description=f"At most {MAX_EPOCHS}; more is cut.")
    ] = MAX_EPOCHS,
    cursor: Cursor = None,
) -> PageRequest:
    """The page of epochs asked for; a limit that is too large is cut, not refused."""
    return PageRequest(min(limit, MAX_EPOCHS), cursor)


PageDep = Annotated[PageRequest, Depends(get_page)]
EpochPageDep = Annotated[PageRequest, Depends(get_epoch_page)]
KeyDep = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="Repeating a request under the same key does not carry it out again.",
    ),
]


async def refuse_unknown_parameters(request: Request) -> None:
    """A misspelt parameter must not be ignored: it would silently change what is asked."""
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if dependant is None:
        return
    known = _query_names(dependant)
    for name, value in request.query_params.multi_items():
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise BadParameter(
                f"unknown query parameter {name!r}; this endpoint takes: {listed}",
                code="unknown_parameter",
            )
        if "\x00" in value:
            raise BadParameter.field(name, "must not contain NUL bytes", "invalid_parameter")
    if "\x00" in request.url.path or "%00" in str(request.url):
        raise BadParameter("the path must not contain NUL bytes")


def _query_names(dependant: Dependant) -> set[str]:
    names = {p.alias for p in dependant.query_params}
    return names.union(*(_query_names(d) for d in dependant.dependencies))
