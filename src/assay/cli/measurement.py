"""`assay measurement …`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import completion
from assay.cli import options as opt
from assay.cli.batch import take
from assay.cli.command import AsJson, DryRun, command, full_id, root

if TYPE_CHECKING:
    from assay.contracts.base import FailureBody
    from assay.contracts.batch import AttemptBody, MeasurementBody

app = typer.Typer(
    name="measurement", no_args_is_help=True, help="Codebases measured on one seed each."
)

Measurement = Annotated[
    str,
    typer.Argument(
        help="Id, or the beginning or end of one.", autocompletion=completion.measurements
    ),
]
_TERMINAL = ("succeeded", "failed", "cancelled")


@app.command("list")
@command
def list_(
    context: typer.Context,
    experiment: Annotated[str | None, typer.Option(help="Only of this experiment.")] = None,
    env: opt.OnlyEnvironment = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List measurements, oldest first.  Example: assay measurement list --experiment exp_01k8…"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import format_number, short_id

    out = root(context).output(as_json)
    with root(context).client() as client:
        wanted = full_id(experiment, client.experiments.list()) if experiment else None
        listed = client.measurements.list(experiment=wanted, environment=env)
        found, truncated = take(listed, limit)
    columns = ("id", "codebase", "kind", "seed", "conditions", "state", "failed with", "metric")
    made = table(*columns, right=["seed"])
    for m in found:
        code = m.failure.code if m.failure else ""
        what = (short_id(m.id), m.codebase[:12], m.kind, m.seed, m.conditions or "unknown")
        row = (*what, m.state, code, format_number(m.metric))
        made.add_row(*map(cell, row))
    out.data(found, made, truncated=truncated)
    if not found:
        out.say("No measurements. They come with batches: assay batch submit --help")


@app.command()
@command
def show(context: typer.Context, measurement: Measurement, as_json: AsJson = False) -> None:
    """Show a measurement and its attempts.  Example: assay measurement show mea_01k8…"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import clean

    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.measurements.get(full_id(measurement, client.measurements.list()))
    made = table("attempt", "worker", "state", "started", "finished", "took", "failed with")
    for attempt in body.attempts:
        code = attempt.failure.code if attempt.failure else ""
        started, finished = _moment(attempt.started_at), _moment(attempt.finished_at)
        row = (attempt.number, attempt.worker, attempt.state, started, finished)
        made.add_row(*map(cell, (*row, _took(attempt), code)))
    failures = [
        f"attempt {a.number}: {clean(a.failure.message)}" for a in body.attempts if a.failure
    ]
    out.data(body, _describe(body), made, *failures)
    if body.state == "failed":
        out.say(f"Its log: assay measurement logs {body.id}")
        out.say(f"Measure it again: assay measurement retry {body.id}")


@app.command()
@command
def logs(
    context: typer.Context,
    measurement: Measurement,
    stream: opt.Stream = "train",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the measurement ends.")
    ] = False,
    offset: Annotated[int, typer.Option(min=0, help="From this byte.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the log of the newest attempt.  Example: assay measurement logs mea_01k8… --follow"""
    from assay.cli.log_printer import LogPrinter, stream_named

    out = root(context).output(as_json)
    chosen = stream_named(stream)
    with root(context).client() as client:
        id_ = full_id(measurement, client.measurements.list())
        printer = LogPrinter(partial(client.measurements.logs, id_), chosen, offset, out)
        printer.follow(lambda: not follow or client.measurements.get(id_).state in _TERMINAL)


@app.command()
@command
def retry(
    context: typer.Context,
    measurement: Measurement,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure again what failed.  Example: assay measurement retry mea_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(measurement, client.measurements.list())
        if dry_run:
            body = client.measurements.get(id_)
            out.changed(id_, f"would retry {id_}", detail=body, dry_run=True)
            return
        body = client.measurements.retry(id_)
    out.changed(id_, f"{id_}: {body.state} as {body.id}", detail=body)
    out.say(f"Look at it with: assay measurement show {body.id}")


def _describe(body: MeasurementBody) -> str:
    from assay.analysis.text import clean, format_number

    lines = [
        f"{body.id}: {body.state}, seed {body.seed}, replicate {body.replicate}, {body.kind}",
        ", ".join(
            filter(None, (body.environment, body.profile, body.hardware_class, body.conditions))
        ),
        f"codebase {body.codebase}",
    ]
    if body.metric is not None:
        numbers = body.metrics or {"metric": body.metric}
        each = (f"{clean(name)} {format_number(value)}" for name, value in numbers.items())
        lines.append(", ".join(each))
    if body.failure is not None:
        lines.append(_failed(body.failure))
    if body.attempts and body.attempts[-1].software:
        told = body.attempts[-1].software.items()
        lines.append(f"measured with {', '.join(f'{name} {value}' for name, value in told)}")
    return "\n".join(lines)


def _failed(failure: FailureBody) -> str:
    from assay.analysis.text import clean

    return f"failed at {failure.stage} ({failure.code}): {clean(failure.message)}"


def _moment(moment: object) -> str:
    from datetime import datetime

    return moment.strftime("%Y-%m-%d %H:%M:%S") if isinstance(moment, datetime) else "–"


def _took(attempt: AttemptBody) -> str:
    from assay.analysis.text import format_seconds

    if attempt.started_at is None or attempt.finished_at is None:
        return "–"
    return format_seconds((attempt.finished_at - attempt.started_at).total_seconds())
