"""`assay worker …`."""

from __future__ import annotations

import typer

from assay.cli.command import AsJson, command, root

app = typer.Typer(name="worker", no_args_is_help=True, help="Hosts that measure.")


@app.callback()
def _noun() -> None:
    """Hosts that measure."""


@app.command("list")
@command
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the workers of the service.  Example: assay worker list"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        workers = list(client.workers.list())
    made = table("name", "state", "hardware class", "cpus", "gpus", "sandbox", "running", "id")
    for worker in workers:
        sandbox = worker.sandbox if worker.isolated else f"{worker.sandbox} (not isolated)"
        made.add_row(
            *map(
                cell,
                (
                    worker.name,
                    worker.state,
                    worker.hardware_class,
                    worker.cpus,
                    worker.gpus,
                    sandbox,
                    len(worker.running),
                    worker.id,
                ),
            )
        )
    out.data(workers, made)
    if not workers:
        out.say("No workers. `assay serve` starts one along with the service.")
