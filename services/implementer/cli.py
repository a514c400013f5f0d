"""Commands of the servers that hold keys: `assay implement-worker`, `assay migrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def implement_worker(
    record: Annotated[
        Path | None, typer.Option(help="Keep what models answer in this folder.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Answer from such a folder; no model is asked.")
    ] = None,
) -> None:
    """Turn ideas into codebases, as one process of server mode, until SIGTERM.

    Everything else is said by environment variables: ASSAY_SERVER_…, ASSAY_IMPLEMENTER_…, and the
    models' keys. Any number of them may run.
    """
    for name, folder in (("RECORD", record), ("REPLAY", replay)):
        if folder is not None:
            os.environ[f"ASSAY_IMPLEMENTER_{name}"] = str(folder)
    from services.implementer.worker import implement

    raise typer.Exit(implement())


def migrate() -> None:
    """Bring the database of server mode to this version's schema (`assay serve` does so too)."""
    from services.implementer.server import migrate_database

    raise typer.Exit(migrate_database())
