"""`assay ui`: the dashboard of a service, in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from assay.cli.command import AsJson, command, root


@command
def ui(
    context: typer.Context,
    open_: Annotated[
        bool, typer.Option("--open/--no-open", help="Open a browser, or only say where.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Open the dashboard.  Example: assay ui"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        client.version()
        address = f"{client.base_url}/"
    opened = open_ and out.interactive and webbrowser.open(address)
    out.data({"url": address, "opened": opened}, address)
