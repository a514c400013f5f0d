"""`assay version`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import typer

from assay.cli.command import AsJson, command, root


def print_version(asked: bool) -> None:
    """Print the version and exit, if it was asked for: `assay --version`."""
    if asked:
        typer.echo(installed_version("assay"))
        raise typer.Exit


@command
def version(context: typer.Context, as_json: AsJson = False) -> None:
    """Print the version of this installation."""
    out = root(context).output(as_json)
    number = installed_version("assay")
    out.data({"version": number}, number)
