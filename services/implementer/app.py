"""The Implementer API as a FastAPI app."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute

from assay.contracts.base import Problem
from services.implementer import problems
from services.implementer.bodies import BodyLimit
from services.implementer.context import Context
from services.implementer.dependencies import refuse_unknown_parameters
from services.implementer.keys import RequireKey
from services.implementer.metrics import Metrics
from services.implementer.observe import Observe, bind_ids
from services.implementer.origin import RefuseForeign
from services.implementer.pages import install as install_pages
from services.implementer.pages.sessions import Sessions
from services.implementer.routers import (
    batches,
    comparisons,
    conditions,
    environments,
    experiments,
    internal,
    measurements,
    meta,
    queue,
    reports,
    searches,
    trajectories,
    transfers,
    webhooks,
    workers,
)

_CONTENT = {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
#: Every endpoint may answer with a problem; FastAPI would describe its own error shape for 422.
_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": _CONTENT}
    for status, text in (
        (400, "Malformed JSON, or a wrong parameter"),
        (401, "No valid API key"),
        (403, "Not allowed"),
        (404, "Not found"),
        (409, "Not possible in the current state"),
        (413, "The body is too large"),
        (415, "The body is not JSON"),
        (422, "A field is wrong"),
        (429, "Too many open streams"),
        (503, "A store cannot be used now"),
    )
}


def create_app(context: Context, *, here_only: bool = False) -> FastAPI:
    """Return the app. `here_only`: it listens on loopback, so guard it against DNS rebinding."""
    app = FastAPI(
        title="Assay",
        version=metadata.version("assay"),
        description="Ideas in, measured results out.",
        docs_url=None,  # the documentation of Assay is there; FastAPI's pages need a CDN
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        dependencies=[Depends(bind_ids), Depends(refuse_unknown_parameters)],
        responses=_RESPONSES,
    )
    app.state.context = context
    app.state.metrics = Metrics(context.db)
    problems.install(app)
    for module in (
        batches,
        experiments,
        measurements,
        environments,
        searches,
        queue,
        reports,
        workers,
        conditions,
        comparisons,
        trajectories,
        webhooks,
    ):
        app.include_router(module.router, prefix="/v1")
    app.include_router(meta.router)
    app.include_router(internal.router, prefix="/internal/v1")
    app.include_router(transfers.router, prefix="/internal/v1")
    install_pages(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    app.add_middleware(BodyLimit, limit=context.settings.max_body_bytes)
    app.add_middleware(RequireKey, context=context)  # before anything of a body is read
    app.add_middleware(Sessions, context=context)
    app.add_middleware(RefuseForeign, here_only=here_only)
    app.add_middleware(Observe)  # outermost: it also sees what the others refuse
    return app


def _operation_id(route: APIRoute) -> str:
    tag = str(route.tags[0]) if route.tags else "meta"
    return f"{tag}_{route.name.strip('_')}"


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        described = FastAPI.openapi(app)
        models = described["components"]["schemas"]
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        models.update(problem.pop("$defs", {}))
        models["Problem"] = problem
        models.pop("HTTPValidationError", None)
        models.pop("ValidationError", None)
        for operations in described["paths"].values():
            for operation in operations.values():
                for parameter in operation.get("parameters", ()):
                    parameter["schema"] = _without_null(parameter["schema"])
    return app.openapi_schema or {}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter. One that is optional may be missing, but is never null."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) != 1:
        return schema
    described: dict[str, Any] = options[0]
    return {name: value for name, value in schema.items() if name != "anyOf"} | described
