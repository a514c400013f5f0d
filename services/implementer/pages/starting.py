"""Starting a search that the service drives."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ValidationError

from assay.contracts.base import Name
from assay.contracts.search import SearchRequest
from assay.domain.errors import AssayError, InvalidInput
from assay.domain.isolation import is_offline
from assay.search.config import SearchConfig
from assay.search.strategy import strategy_names
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, OwnerDep
from services.implementer.pages.forms import Wrong, number, optional, wrong_fields
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import FormDep, page_router, see_made
from services.implementer.routers import environments as environments_api
from services.implementer.routers import searches as api

router = page_router()
_EMPTY = {
    "profile": "",
    "strategy": "evolution",
    "ideator": "offline:ideator",
    "executor": "offline:literal",
    "epochs": "5",
    "batch_size": "8",
    "seed": "0",
    "confirm": "2",
    "confirm_seeds": "5",
    "max_cost_usd": "",
    "base": "",
}


@router.get("/start")
def ask(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    profile: Annotated[Name | None, Query()] = None,
) -> Response:
    """Ask what to search. `profile` is an environment and its profile: nanogpt/tiny."""
    given = {**_EMPTY, "profile": profile or "", "key": secrets.token_urlsafe(12)}
    return _form(request, context, owner, given)


@router.post("/start")
def start(request: Request, context: ContextDep, owner: OwnerDep, fields: FormDep) -> Response:
    """Start the search once per form, and show it."""
    given = {**_EMPTY, "key": secrets.token_urlsafe(12), **fields}
    try:
        wanted = SearchRequest.model_validate(_request(given))
        answer = api.create(wanted, context, owner, fields.get("key") or None)
    except (ValidationError, AssayError) as error:
        return _form(request, context, owner, given, wrong=wrong_fields(error))
    return see_made(answer, "searches")


def _form(
    request: Request,
    context: Context,
    owner: str,
    given: dict[str, str],
    *,
    wrong: list[Wrong] | None = None,
) -> Response:
    return render(
        request,
        "start.html",
        422 if wrong else 200,
        owner=owner,
        given=given,
        environments=environments_api.list_(context).data,
        strategies=strategy_names(),
        wrong=wrong or [],
    )


def _request(given: dict[str, str]) -> dict[str, Any]:
    """What the form says, as the body of `POST /v1/searches`. That is checked afterwards.

    Raises:
        InvalidInput: there is no such strategy, or a model is paid for and no cap is set.
    """
    environment, _, profile = given["profile"].partition("/")
    models = (given["ideator"].strip(), given["executor"].strip())
    cap = optional(given["max_cost_usd"])
    if cap is None and not all(map(is_offline, models)):
        raise InvalidInput.field("/caps/max_cost_usd", "set a cap: these models cost money")
    config = SearchConfig.make(given["strategy"]).record()
    config |= {name: number(given[name]) for name in ("confirm", "confirm_seeds")}
    return {
        "environment": environment,
        "profile": profile,
        "strategy": given["strategy"],
        "seed": number(given["seed"]),
        "epochs": number(given["epochs"]),
        "batch_size": number(given["batch_size"]),
        "ideator": models[0],
        "executor": models[1],
        "base": optional(given["base"]),
        "config": config,
        "caps": {"max_cost_usd": cap},
        "driver": "service",
    }
