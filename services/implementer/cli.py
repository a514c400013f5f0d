"""Commands of the servers that hold keys: `assay implement-worker`, `assay migrate`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Record = Annotated[Path | None, typer.Option(help="Keep what models answer in this folder.")]
Replay = Annotated[Path | None, typer.Option(help="Answer from such a folder; no model is asked.")]


def say_folders(record: Path | None, replay: Path | None) -> None:
    """Flags of the implementer are its variables, which its settings check."""
    for name, folder in (("RECORD", record), ("REPLAY", replay)):
        if folder is not None:
            os.environ[f"ASSAY_IMPLEMENTER_{name}"] = str(folder)


def implement_worker(record: Record = None, replay: Replay = None) -> None:
    """Turn ideas into codebases, as one process of server mode, until SIGTERM.

    Everything else is said by environment variables: ASSAY_SERVER_…, ASSAY_IMPLEMENTER_…, and the
    models' keys. Any number of them may run.
    """
    say_folders(record, replay)
    from services.implementer.worker import implement

    raise typer.Exit(implement())


def migrate() -> None:
    """Bring the database of server mode to this version's schema (`assay serve` does so too)."""
    from services.implementer.server import migrate_database

    raise typer.Exit(migrate_database())
