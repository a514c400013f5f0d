"""`assay demo`: ideas to measured results on this machine, without a key."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.command import FAILED, AsJson, command, root

if TYPE_CHECKING:
    from assay.cli.demonstration import Demonstration
    from assay.cli.output import Output
    from assay.cli.server import Ready


@command
def demo(
    context: typer.Context,
    data_dir: Annotated[Path, typer.Option(help="Where database and artifacts are kept.")] = Path(
        ".assay/demo"
    ),
    keep_serving: Annotated[
        bool, typer.Option("--keep-serving", help="Leave the service running until Ctrl-C.")
    ] = False,
    env: Annotated[str, typer.Option(hidden=True)] = "nanogpt",
    profile: Annotated[str, typer.Option(hidden=True)] = "tiny",
    as_json: AsJson = False,
) -> None:
    """Measure ten ideas and search for better ones.  Example: assay demo"""
    from assay.cli.demonstration import Demonstration
    from assay.cli.progress import working
    from assay.cli.server import serving
    from assay.environments import Catalog, prepare_data

    out = root(context).output(as_json)
    signal.signal(signal.SIGTERM, _end)  # so that the service is stopped on the way out
    environment = Catalog().get(env)
    environment.profile(profile)
    started = time.monotonic()
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    if not (data_dir / "assay.db").exists():
        # No key: everybody's demo measures on the public data and prints the same numbers.
        (data_dir / "held-out.key").touch(mode=0o600)
    with serving(data_dir) as ready:
        _introduce(out, ready)
        with working(out, f"preparing the data of {environment.name}, {profile}"):
            prepare_data(environment, profile, data_dir / "cache")
        from assay.client import Client

        with Client(ready.api) as client:
            show = Demonstration(client, out, environment.name, profile)
            missing = show.run()
        _conclude(out, ready, show, missing, time.monotonic() - started)
        if keep_serving:
            _keep(out, ready)
    if missing:
        raise typer.Exit(FAILED)


def _introduce(out: Output, ready: Ready) -> None:
    out.say(f"service: {ready.api}")
    out.say(f"sandbox: {ready.sandbox} ({ready.sandbox_reason})")
    if ready.sandbox == "subprocess":
        out.say("The demo's code comes with Assay; run code of others only where it is isolated.")


def _conclude(
    out: Output, ready: Ready, show: Demonstration, missing: list[str], seconds: float
) -> None:
    from assay.analysis.text import format_seconds

    where = {"api": ready.api, "database": ready.database, "artifacts": ready.objects}
    again = f"assay serve --data-dir {Path(ready.database).parent}"
    text = "\n".join(["Where everything is:", *(f"  {k}: {v}" for k, v in where.items())])
    text += f"\nThe service stops with the demo; look at all of it again with: {again}"
    verdict = [f"The demo failed: {what}" for what in missing] or [
        f"Everything came out as promised, in {format_seconds(seconds)}."
    ]
    data = {"ok": not missing, "missing": missing, "seconds": seconds, **where, **show.record()}
    if show.expectation is not None:
        expected = show.expectation
        data |= {"expected_seconds": expected.seconds, "taken_seconds": expected.elapsed}
        verdict.append(expected.outcome())
    out.data(data, text, *verdict)


def _keep(out: Output, ready: Ready) -> None:
    try:
        out.err.print(f"  ASSAY_API_URL={ready.api} assay batch list")
        out.err.print(f"Dashboard: {ready.api}/ (until Ctrl-C)")
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        out.err.print("Stopping.")


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
