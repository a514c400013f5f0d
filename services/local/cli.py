"""`assay serve`: the embedded service as a command."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from assay.domain.errors import AssayError
from assay.processes import freeze_loaded
from services.implementer.cli import Record, Replay, say_folders

if TYPE_CHECKING:
    from services.local.service import LocalService

SERVER_MODE = "ASSAY_SERVER_"


def serve(
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of database, objects and cache.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one.")] = None,
    sandbox: Annotated[
        str | None, typer.Option(help="auto, bubblewrap, docker or subprocess (no isolation).")
    ] = None,
    cpus: Annotated[int | None, typer.Option(help="Slots of the worker.")] = None,
    record: Record = None,
    replay: Replay = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log to the terminal too.")] = False,
) -> None:
    """Serve the API with everything it needs in this process, until interrupted.

    When it is ready it prints one line of JSON that says where everything is. With
    ASSAY_SERVER_… variables it serves the API alone, over Postgres: server mode.
    """
    flags: dict[str, Any] = {
        "data_dir": data_dir,
        "host": host,
        "port": port,
        "sandbox": sandbox,
        "cpus": cpus,
    }
    say_folders(record, replay)
    if any(variable.upper().startswith(SERVER_MODE) for variable in os.environ):
        # The API asks no models: `--record` is for the implement workers.
        given = flags | {"record": record}
        raise typer.Exit(_serve_api([name for name, value in given.items() if value is not None]))
    # Until it is ready: nothing of what is loaded is garbage, and looking costs an eighth of it.
    gc.disable()
    from services.local.service import LocalService
    from services.local.settings import LocalSettings

    stop = _on_signal()
    try:
        settings = LocalSettings(**{k: v for k, v in flags.items() if v is not None})
        service = LocalService(settings)
        _log_to(settings.data_dir, verbose)
        service.start()
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(map(str, problem["loc"]))
            text = problem["msg"].removeprefix("Value error, ")
            typer.echo(f"assay serve: {where + ': ' if where else ''}{text}", err=True)
        raise typer.Exit(2) from None
    except (AssayError, OSError) as error:
        typer.echo(f"assay serve: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        gc.enable()
    freeze_loaded()
    _announce(service)
    failed = _wait(service, stop)
    service.stop()
    if failed:
        typer.echo(f"assay serve: a part of the service died: {service.failure}", err=True)
        raise typer.Exit(1)


def _serve_api(flags: list[str]) -> int:
    """Server mode. What it needs is imported here: an image of the API holds nothing else."""
    if flags:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in flags)
        typer.echo(
            f"assay serve: {given}: not in server mode, which ASSAY_SERVER_… variables ask for; "
            "use ASSAY_IMPLEMENTER_… variables, or unset those",
            err=True,
        )
        return 2
    from services.implementer.server import serve_api

    return serve_api()


def _log_to(folder: Path, verbose: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(folder / "service.log")]
    if verbose:
        handlers.append(logging.StreamHandler(sys.stderr))
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=handlers,
        force=True,
    )
    for chatty in ("httpx2", "httpcore2", "alembic.runtime", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _announce(service: LocalService) -> None:
    settings = service.settings
    facts: dict[str, Any] = {
        "event": "ready",
        "api": service.api_url,
        "database": str(settings.database_path),
        "objects": str(settings.objects_path),
        "log": str((settings.data_dir / "service.log").resolve()),
    }
    sandbox = service.worker.sandbox
    if sandbox is not None:
        facts |= {
            "sandbox": sandbox.name,
            "isolated": sandbox.isolated,
            "sandbox_reason": sandbox.reason,
        }
    typer.echo(json.dumps(facts))
    sys.stdout.flush()


def _on_signal() -> threading.Event:
    """Set by Ctrl-C or SIGTERM, also while the service is starting."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _wait(service: LocalService, stop: threading.Event) -> bool:
    """Wait for a signal or for the death of a part. Whether a part died."""
    while not stop.is_set():
        if service.failed.wait(0.2):
            return True
    return False
