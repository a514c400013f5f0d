"""Submitting ideas: what they would cost first, then the batch."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from assay.contracts.base import Name
from assay.contracts.batch import BatchRequest
from assay.domain.errors import AssayError
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, OwnerDep
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import form, page_router, see
from services.implementer.problems import pointer
from services.implementer.routers import batches as api
from services.implementer.routers import environments as environments_api

router = page_router()
#: Between two ideas of the form.
_BETWEEN = re.compile(r"^-{3,}[ \t]*$", re.MULTILINE)
_EMPTY = {
    "environment": "",
    "profile": "",
    "executor": "offline:literal",
    "ideas": "",
    "seeds": "0",
    "baseline_seeds": "",
    "max_cost_usd": "",
    "base": "",
}


@dataclass(frozen=True)
class Wrong:
    """Why a form was refused; `pointer` is the field of the request, if it is one."""

    pointer: str
    message: str


@router.get("/submit")
def ask(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    environment: Annotated[Name | None, Query()] = None,
    profile: Annotated[Name | None, Query()] = None,
) -> Response:
    """Ask for ideas."""
    given = {"environment": environment or "", "profile": profile or ""}
    return _form(request, context, owner, {**_EMPTY, **given, "key": secrets.token_urlsafe(12)})


@router.post("/submit")
def submit(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    fields: Annotated[dict[str, str], Depends(form)],
) -> Response:
    """Price the ideas, or submit them once per form."""
    given = {**_EMPTY, "key": secrets.token_urlsafe(12), **fields}
    dry_run = fields.get("action") != "submit"
    try:
        wanted = BatchRequest.model_validate(_request(given))
        answer = api.submit(
            "POST /v1/batches",
            wanted,
            context,
            owner,
            fields.get("key") or None,
            dry_run=dry_run,
        )
    except ValidationError as error:
        wrong = [
            Wrong(pointer(("body", *e["loc"])), e["msg"].removeprefix("Value error, "))
            for e in error.errors()[:10]
        ]
        return _form(request, context, owner, given, wrong=wrong)
    except AssayError as error:
        fields_ = getattr(error, "fields", ())
        wrong = [Wrong(each.pointer, each.message) for each in fields_] or [Wrong("", str(error))]
        return _form(request, context, owner, given, wrong=wrong)
    assert isinstance(answer, JSONResponse)
    body = json.loads(bytes(answer.body))
    if dry_run:
        return _form(request, context, owner, given, priced=body)
    return see(f"/batches/{body['id']}")


def _form(
    request: Request,
    context: Context,
    owner: str,
    given: dict[str, str],
    *,
    wrong: list[Wrong] | None = None,
    priced: dict[str, Any] | None = None,
) -> Response:
    return render(
        request,
        "submit.html",
        422 if wrong else 200,
        owner=owner,
        given=given,
        environments=environments_api.list_(context).data,
        wrong=wrong or [],
        priced=priced,
    )


def _request(given: dict[str, str]) -> dict[str, Any]:
    """What the form says, as the body of `POST /v1/batches`. That is checked afterwards."""
    environment, _, profile = given["profile"].partition("/")
    texts = [text.strip() for text in _BETWEEN.split(given["ideas"])]
    options = {
        "seeds": [_number(each) for each in re.split(r"[\s,]+", given["seeds"].strip()) if each],
        "baseline_seeds": _number(given["baseline_seeds"]) if given["baseline_seeds"] else None,
        "max_cost_usd": given["max_cost_usd"].strip() or None,
    }
    return {
        "environment": environment if profile else given["environment"],
        "profile": profile or environment,
        "executor": given["executor"].strip(),
        "ideas": [{"text": text} for text in texts if text],
        "base": given["base"].strip() or None,
        "options": options,
    }


def _number(text: str) -> int | str:
    """A number, or the text as it is, which the request refuses by the name of its field."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,12}", text.strip()) else text
