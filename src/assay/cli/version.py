"""`assay version`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import typer

from assay.cli.command import AsJson, command, root


@command
def version(context: typer.Context, as_json: AsJson = False) -> None:
    """Print the version of this installation."""
    out = root(context).output(as_json)
    number = installed_version("assay")
    out.data({"version": number}, number)
