"""`assay model …`: what a model can do, without a service."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from assay.cli.command import FAILED, AsJson, command, root
from assay.domain.errors import InvalidInput, Unavailable

app = typer.Typer(name="model", no_args_is_help=True, help="Models that propose and implement.")


@app.command()
@command
def check(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="provider:model\\[@base_url].")],
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which a call counts as not answered.")
    ] = 120.0,
    context_tokens: Annotated[
        int | None,
        typer.Option(help="As in `assay search start`.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model a few short questions.  Example: assay model check openai:gpt-5-mini"""
    import asyncio

    from assay.analysis.tables import cell, table
    from assay.cli.cost import parse_model
    from assay.domain.isolation import is_offline
    from assay.llm import ModelError
    from assay.llm.checking import check_model

    out = root(context).output(as_json)
    model = parse_model(name)
    if is_offline(str(model)):
        raise InvalidInput(f"{name} is no model: there is nothing to ask")
    checked = check_model(model, os.environ, timeout_s=timeout, context_tokens=context_tokens)
    try:
        findings = asyncio.run(checked)
    except ModelError as error:
        raise Unavailable(str(error), code="model_unavailable") from None
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    made = table("check", "found", "detail")
    for finding in findings:
        made.add_row(*map(cell, (finding.check, finding.state, finding.detail)))
    failed = [finding.check for finding in findings if finding.state == "no"]
    data = {"model": str(model), "ok": not failed, "findings": [asdict(f) for f in findings]}
    out.data(data, made)
    if failed:
        out.say(f"Assay cannot use {model} yet: {', '.join(failed)}")
        raise typer.Exit(FAILED)
