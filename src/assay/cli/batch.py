"""`assay batch …`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from assay.cli import completion, exporting
from assay.cli import options as opt
from assay.cli.alike import foreseen_alike, say_alike
from assay.cli.command import (
    INTERRUPTED,
    TIMED_OUT,
    AsJson,
    DryRun,
    Yes,
    cancel_one,
    command,
    full_conditions,
    full_id,
    root,
)
from assay.domain.errors import InvalidInput
from assay.domain.isolation import is_offline
from assay.domain.states import MeasurementKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.batch import (
        BaselineSummary,
        BatchBody,
        BatchOptions,
        BatchRequest,
        ExperimentBody,
        MeasurementCounts,
    )
    from assay.contracts.caps import CapBody
    from assay.contracts.environment import BaselineBody, EnvironmentBody

T = TypeVar("T")

#: Warnings of a dry run that are shown; `--json` has all.
_WARNINGS = 5

app = typer.Typer(name="batch", no_args_is_help=True, help="Ideas submitted together.")

Batch = Annotated[
    str,
    typer.Argument(help="Id, or the beginning or end of one.", autocompletion=completion.batches),
]


@app.command()
@command
def submit(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="Ideas: .jsonl, .json, .txt or .md.")],
    env: opt.Environment,
    profile: opt.Profile,
    executor: opt.Executor = "offline:literal",
    base: opt.Base = None,
    hardware_class: opt.HardwareClass = None,
    conditions: opt.Conditions = None,
    samples: opt.Samples = 10,
    revisions: opt.Revisions = 2,
    sampling: opt.Sampling = "staged",
    seeds: opt.Seeds = "0",
    baseline_seeds: opt.BaselineSeeds = None,
    preflight: opt.Preflight = "compile",
    repairs: opt.Repairs = 1,
    novelty: opt.Novelty = "warn",
    max_cost: opt.MaxCost = None,
    max_gpu_hours: opt.MaxGpuHours = None,
    temperature: opt.Temperature = None,
    max_tokens: opt.MaxTokens = None,
    effort: opt.Effort = None,
    priority: opt.Priority = 0,
    allow_unisolated: opt.AllowUnisolated = False,
    again: opt.Again = False,
    idempotency_key: opt.IdempotencyKey = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results.")] = False,
    timeout: opt.Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Submit ideas.  Example: assay batch submit ideas.jsonl --env toy --profile tiny --wait"""
    from assay.analysis.text import counted

    options = opt.batch_options(
        seeds,
        max_cost,
        samples=samples,
        revisions=revisions,
        sampling=sampling,
        temperature=temperature,
        max_tokens=max_tokens,
        effort=effort,
        baseline_seeds=baseline_seeds,
        preflight=preflight,
        repairs=repairs,
        novelty=novelty,
        max_gpu_hours=max_gpu_hours,
        priority=priority,
        allow_unisolated=allow_unisolated,
        again=again,
    )
    where = {"hardware_class": hardware_class, "base": base}
    request = _request(file, env, profile, executor, where, options)
    out = root(context).output(as_json)
    with root(context).client() as client:
        request.conditions = full_conditions(client, conditions)
        if dry_run:
            _check(client, out, request)
            return
        batch = _send(client, out, request, idempotency_key, yes)
        if options.novelty != "allow":
            say_alike(client, out, batch.id)
        ideas = counted(len(request.ideas), "idea")
        if wait:
            out.say(f"{batch.id}: {ideas}")
            wait_and_show(client, batch.id, out, timeout)
            return
    out.changed(batch.id, f"submitted {ideas}: {batch.id}", detail=batch)
    out.say(f"Follow it with: assay batch watch {batch.id}")


def _request(
    file: Path,
    env: str,
    profile: str,
    executor: str,
    where: dict[str, str | None],
    options: BatchOptions,
) -> BatchRequest:
    from assay.cli.ideas import read_ideas
    from assay.contracts.batch import BatchRequest

    return BatchRequest(
        environment=env,
        profile=profile,
        ideas=read_ideas(file),
        executor=executor,
        options=options,
        hardware_class=where["hardware_class"],
        base=where["base"],
    )


def _check(client: Client, out: Output, request: BatchRequest) -> None:
    from assay.analysis.text import counted

    said = client.batches.check(request)
    hours, bases = said.get("gpu_hours"), int(said.get("base_measurements", 0))
    parts = [
        f"would submit {counted(len(request.ideas), 'idea')}",
        counted(int(said.get("measurements", 0)), "measurement"),
        *([f"at most {counted(bases, 'measurement')} of bases"] if bases else []),
        *([] if hours is None else [f"at most {hours:g} GPU-hours"]),
    ]
    lines = [", ".join(parts)]
    most = request.options.max_gpu_hours
    if hours is not None and most is not None and hours > most:
        lines.append(f"that may be more than the {most:g} GPU-hours of --max-gpu-hours")
    lines += foreseen_alike(said.get("similar") or [], request.options.novelty)
    warnings = said.get("warnings") or []
    lines += [f"warning: {each['pointer']}: {each['message']}" for each in warnings[:_WARNINGS]]
    if len(warnings) > _WARNINGS:
        lines.append(f"and {counted(len(warnings) - _WARNINGS, 'more warning')}")
    out.changed(request.environment, "\n".join(lines), detail=said, dry_run=True)


def _send(
    client: Client, out: Output, request: BatchRequest, key: str | None, yes: bool
) -> BatchBody:
    from assay.cli.cost import agree_on_cost
    from assay.contracts.caps import SearchSpending

    options = request.options
    agreed = agree_on_cost(
        client,
        out,
        environment=request.environment,
        ideas=len(request.ideas),
        options=options,
        caps=SearchSpending(
            max_cost_usd=options.max_cost_usd, max_gpu_hours=options.max_gpu_hours
        ),
        executor=request.executor,
        yes=yes,
    )
    request.options = options.model_copy(update={"max_cost_usd": agreed.max_cost_usd})
    return client.batches.create(request, idempotency_key=key)


@app.command("list")
@command
def list_(
    context: typer.Context,
    env: opt.OnlyEnvironment = None,
    state: Annotated[str | None, typer.Option(help="running, finished or cancelled.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first.  Example: assay batch list --env nanogpt"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import short_id

    out = root(context).output(as_json)
    with root(context).client() as client:
        found, truncated = take(client.batches.list(environment=env, state=state), limit)
    made = table("id", "environment", "profile", "state", "scored", "best", "created")
    for batch in found:
        best = f"{batch.best.metric:.4f}" if batch.best else "–"
        scored = f"{batch.funnel.scored}/{batch.counts.total}"
        created = batch.created_at.strftime("%Y-%m-%d %H:%M")
        row = (
            short_id(batch.id),
            batch.environment,
            batch.profile,
            batch.state,
            scored,
            best,
            created,
        )
        made.add_row(*map(cell, row))
    out.data(found, made, truncated=truncated)
    if not found:
        out.say("No batches. Submit one: assay batch submit ideas.jsonl --env toy --profile tiny")


@app.command()
@command
def show(
    context: typer.Context,
    batch: Batch,
    as_json: AsJson = False,
) -> None:
    """Show a batch with its ranked experiments.  Example: assay batch show bat_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        _show(client, full_id(batch, client.batches.list()), out)


@app.command()
@command
def watch(
    context: typer.Context,
    batch: Batch,
    timeout: opt.Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Follow a batch until it is finished; --json prints its events, one per line."""
    from assay.cli.output import emit, to_plain

    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(batch, client.batches.list())
        if not as_json:
            wait_and_show(client, id_, out, timeout)
            return
        client.batches.wait(id_, timeout=timeout, on_event=lambda e: emit(to_plain(e)))
        note = _provisional(client.batches.get(id_))
        if note is not None:
            out.say(note)


@app.command()
@command
def calls(
    context: typer.Context,
    batch: Batch,
    state: Annotated[
        str | None,
        typer.Option(help="Only calling, returned, failed, cancelled or interrupted."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print every request to a model.  Example: assay batch calls bat_01k8…"""
    from assay.cli.ledger import call_table, totals, totals_table

    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(batch, client.batches.list())
        found = list(client.batches.calls(id_, state=state))
    sums = totals(found)
    out.data({"calls": found, "totals": sums}, call_table(found), totals_table(sums))
    if not found:
        out.say(f"No calls. How far the batch is: assay batch show {id_}")


@app.command()
@command
def export(
    context: typer.Context,
    batches: Annotated[list[str], typer.Argument(metavar="BATCH…", help="Ids of batches.")],
    format_: exporting.Format = None,
    out: exporting.Out = None,
    curves: exporting.Curves = False,
    confirmations: exporting.Confirmations = False,
    as_json: AsJson = False,
) -> None:
    """Write its trajectories.  Example: assay batch export bat_01k8… --out t.jsonl"""
    with root(context).client() as client:
        ids = list(dict.fromkeys(full_id(each, client.batches.list()) for each in batches))
        confirming = [
            id_ for id_ in ids if client.batches.get(id_).kind == MeasurementKind.CONFIRM
        ]
        if confirming and not confirmations:
            raise InvalidInput(f"{confirming[0]} confirms results: add --confirmations")
        records = chain.from_iterable(
            client.batches.trajectories(id_, curves=curves, confirmations=confirmations)
            for id_ in ids
        )
        exporting.export(root(context).output(as_json), records, ", ".join(ids), format_, out)


@app.command()
@command
def cancel(
    context: typer.Context,
    batch: Batch,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel what has not finished.  Example: assay batch cancel bat_01k8… --yes"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(batch, client.batches.list())
        cancel_one(
            out,
            id_,
            get=client.batches.get,
            cancel=client.batches.cancel,
            question=f"Cancel what has not finished of {id_}?",
            dry_run=dry_run,
            yes=yes,
        )


def take(items: Iterable[T], limit: int) -> tuple[list[T], bool]:
    """At most `limit` items, and whether there were more."""
    found: list[T] = []
    for item in items:
        if len(found) == limit:
            return found, True
        found.append(item)
    return found, False


def wait_and_show(client: Client, batch: str, out: Output, timeout: float | None) -> None:
    """Wait for the results and for the baseline that they are compared with, then show them."""
    from assay.cli.baseline import wait_for_baseline
    from assay.cli.watch import follow

    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        follow(client, batch, out, timeout=timeout)
        whole = wait_for_baseline(client, out, batch, deadline)
    except KeyboardInterrupt:
        out.err.print(f"Detached; {batch} goes on. Follow it with: assay batch watch {batch}")
        raise typer.Exit(INTERRUPTED) from None
    _show(client, batch, out)
    if not whole:
        raise typer.Exit(TIMED_OUT)


def _show(client: Client, batch: str, out: Output) -> None:
    body = client.batches.get(batch)
    experiments = list(client.experiments.list(batch=batch))
    environment = client.environments.get(body.environment)
    found: dict[str, Any] = {"batch": body, "experiments": experiments}
    if body.kind == MeasurementKind.CONFIRM:
        found["claimed"] = [e.idea.confirms for e in experiments if e.claimed]
    out.data(
        found,
        *summary(body, environment.unit),
        *results(experiments, environment, out.out.width),
    )


def summary(batch: BatchBody, unit: str) -> list[RenderableType]:
    """Lines about a batch: where it ran, how far its ideas came, what it is compared with."""
    from assay.analysis.text import counted

    funnel = batch.funnel
    lines = [
        f"{batch.id}: {batch.state}, {batch.environment}, {batch.profile}, {measured_on(batch)}",
        f"submitted {funnel.submitted} → patched {funnel.patched} → started {funnel.started} "
        f"→ scored {funnel.scored}",
    ]
    if batch.measurements.total:
        lines.append(measured(batch.measurements))
    for base in batch.bases:
        name = base.name or base.codebase[:12]
        lines.append(f"base {name}: {_measured(base.measured, unit)}")
    if batch.baseline is not None:
        lines.append(f"baseline {_measured(batch.baseline, unit)}")
    lines += filter(None, [_provisional(batch)])
    lines += [f"waiting: {what}" for what in batch.waits_for]
    if batch.usage.calls and not is_offline(batch.executor):
        cost = batch.usage.cost_usd
        lines.append(
            f"{counted(batch.usage.calls, 'model call')}, "
            + (f"{cost} USD" if cost is not None else "price unknown")
        )
    if batch.caps:
        lines.append(f"caps: {', '.join(map(_cap, batch.caps))}")
    if batch.caps or batch.not_done:
        lines.append(f"not done because of a cap: {counted(batch.not_done, 'idea')}")
    return ["\n".join(lines)]


def _measured(found: BaselineSummary, unit: str) -> str:
    from assay.analysis.text import format_number

    spread = f" ± {format_number(found.spread)}" if found.spread is not None else ""
    pending = f", {found.pending} to come" if found.pending else ""
    failed = f", {found.failed} failed" if found.failed else ""
    return f"{format_number(found.mean)}{spread} {unit} (n = {found.n}{pending}{failed})"


def measured(found: MeasurementCounts) -> str:
    """How many measurements have ended, of those that were asked for so far."""
    failed = f", {found.failed} failed" if found.failed else ""
    return f"measurements: {found.ended} of {found.total} ended{failed}"


def measured_on(body: BatchBody | BaselineBody | ExperimentBody) -> str:
    """The hardware class and the conditions of results."""
    return ", ".join(filter(None, (body.hardware_class, body.conditions)))


def _provisional(batch: BatchBody) -> str | None:
    """What makes the verdicts of a batch provisional, if anything does."""
    from assay.analysis.text import counted

    parts = {
        "baseline": batch.baseline.pending if batch.baseline else 0,
        _bases(batch): sum(base.measured.pending for base in batch.bases),
    }
    pending = [f"{counted(n, 'seed')} of the {name}" for name, n in parts.items() if n]
    if not pending or batch.best is None:
        return None
    return f"verdicts are provisional: {' and '.join(pending)} to come"


def _bases(batch: BatchBody) -> str:
    return "base" if len(batch.bases) == 1 else "bases"


def _cap(cap: CapBody) -> str:
    unit = "USD" if cap.kind == "cost_usd" else "GPU-hours"
    reached = " (reached)" if cap.reached else ""
    return f"{cap.scope} {float(cap.used):g} of {float(cap.limit):g} {unit}{reached}"


def results(
    experiments: list[ExperimentBody], environment: EnvironmentBody, width: int
) -> list[RenderableType]:
    """The ranked table, a note if its split is worn, and the failures if there are any."""
    from assay.analysis import experiment_table, failure_table, worn_note

    direction, metric = environment.direction, environment.metric
    tables: list[RenderableType] = [
        experiment_table(experiments, direction, metric=metric, width=width)
    ]
    standing = _standing(experiments)
    if standing is not None:
        tables.append(standing)
    note = worn_note(environment)
    if note is not None:
        tables.append(note)
    if any(e.failure for e in experiments):
        tables.append(failure_table(experiments, title="Failed"))
    return tables


def _standing(experiments: list[ExperimentBody]) -> str | None:
    """Say what may be claimed of a confirmation, and how many leads there are of anything else."""
    from assay.analysis import leads
    from assay.analysis.text import counted, idea_title

    if experiments and all(e.idea.confirms for e in experiments):
        if any(e.claimed is None for e in experiments):
            return None
        found = [e for e in experiments if e.claimed]
        named = [f"\n  {idea_title(e.idea.text)} ({e.idea.confirms})" for e in found]
        return (
            f"{len(found)} of {len(experiments)} may be claimed to be better (Holm's procedure, "
            f"at most 5 % false){':' if named else ''}{''.join(named)}"
        )
    better, judged, lucky = leads(experiments)
    if not better:
        return None
    return (
        f"{better} of {counted(judged, 'judged result')} called better; if none had an effect, "
        f"luck would give {lucky:.2g}. Before you claim any: assay experiment confirm EXPERIMENT…"
    )
