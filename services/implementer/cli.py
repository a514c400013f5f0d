"""Commands of the servers that hold keys: `assay implement-worker`, `assay migrate`."""

from __future__ import annotations

import typer


def implement_worker() -> None:
    """Turn ideas into codebases, as one process of server mode, until SIGTERM.

    Everything is said by environment variables: ASSAY_SERVER_…, ASSAY_IMPLEMENTER_…, and the
    models' keys. Any number of them may run.
    """
    from services.implementer.worker import implement

    raise typer.Exit(implement())


def migrate() -> None:
    """Bring the database of server mode to this version's schema (`assay serve` does so too)."""
    from services.implementer.server import migrate_database

    raise typer.Exit(migrate_database())
