"""Submitting ideas: what they would cost first, then the batch."""

from __future__ import annotations

import json
import re
import secrets
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from assay.contracts.base import Name
from assay.contracts.batch import BatchRequest
from assay.domain.errors import AssayError
from services.implementer.context import Context
from services.implementer.dependencies import ContextDep, OwnerDep
from services.implementer.pages.forms import Wrong, number, optional, wrong_fields
from services.implementer.pages.rendering import render
from services.implementer.pages.routing import FormDep, page_router, see
from services.implementer.routers import batches as api
from services.implementer.routers import environments as environments_api

router = page_router()
#: Between two ideas of the form.
_BETWEEN = re.compile(r"^-{3,}[ \t]*$", re.MULTILINE)
_EMPTY = {
    "profile": "",
    "executor": "offline:literal",
    "ideas": "",
    "seeds": "0",
    "baseline_seeds": "",
    "max_cost_usd": "",
    "base": "",
}

_EXAMPLE = """[Experiment] Take smaller steps.
[Code Changes] In `search.py`:
<<<<<<< SEARCH
STEP = 0.6
=======
STEP = 0.15
>>>>>>> REPLACE
[End]"""


@router.get("/submit")
def ask(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    profile: Annotated[Name | None, Query()] = None,
) -> Response:
    """Ask for ideas. `profile` is an environment and its profile: nanogpt/tiny."""
    given = {**_EMPTY, "profile": profile or "", "key": secrets.token_urlsafe(12)}
    return _form(request, context, owner, given)


@router.post("/submit")
def submit(
    request: Request,
    context: ContextDep,
    owner: OwnerDep,
    fields: FormDep,
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
    except (ValidationError, AssayError) as error:
        return _form(request, context, owner, given, wrong=wrong_fields(error))
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
        example=_EXAMPLE,
    )


def _request(given: dict[str, str]) -> dict[str, Any]:
    """What the form says, as the body of `POST /v1/batches`. That is checked afterwards."""
    environment, _, profile = given["profile"].partition("/")
    texts = [text.strip() for text in _BETWEEN.split(given["ideas"])]
    options = {
        "seeds": [number(each) for each in re.split(r"[\s,]+", given["seeds"].strip()) if each],
        "baseline_seeds": number(given["baseline_seeds"]) if given["baseline_seeds"] else None,
        "max_cost_usd": optional(given["max_cost_usd"]),
    }
    return {
        "environment": environment,
        "profile": profile,
        "executor": given["executor"].strip(),
        "ideas": [{"text": text} for text in texts if text],
        "base": optional(given["base"]),
        "options": options,
    }
