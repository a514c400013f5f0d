"""`assay report …`."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from assay.cli.command import AsJson, command, full_id, root
from assay.domain.errors import InvalidInput

app = typer.Typer(name="report", no_args_is_help=True, help="What many batches show together.")


@app.callback()
def _report() -> None:
    """A single verb would otherwise be the noun itself."""


@app.command()
@command
def execution(
    context: typer.Context,
    environment: Annotated[
        str | None, typer.Option("--environment", "--env", help="Only of this environment.")
    ] = None,
    batch: Annotated[
        list[str] | None, typer.Option(help="Only of this batch; may be repeated.")
    ] = None,
    search: Annotated[str | None, typer.Option(help="Only of this search.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only batches from this day on (UTC).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How many ideas came to a result.  Example: assay report execution --env nanogpt"""
    from assay.analysis.execution import execution_tables

    out = root(context).output(as_json)
    day = _day(since)
    with root(context).client() as client:
        body = client.reports.execution(
            environment=environment,
            batches=[full_id(each, client.batches.list()) for each in batch or ()],
            search=full_id(search, client.searches.list()) if search else None,
            since=day,
        )
    out.data(body, *execution_tables(body.data))
    if not body.data:
        out.say("No ideas were submitted there. Submit some: assay batch submit --help")


def _day(text: str | None) -> date | None:
    """Raises InvalidInput: that is no day."""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise InvalidInput(f"--since: {text!r} is not a day such as 2026-11-01") from None
