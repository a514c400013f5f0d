"""`assay experiment …`."""

from __future__ import annotations

import math
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import annotating, completion
from assay.cli import options as opt
from assay.cli.batch import measured_on, take
from assay.cli.command import FAILED, AsJson, DryRun, Yes, cancel_one, command, full_id, root
from assay.domain.errors import Conflict, InvalidInput
from assay.domain.metrics import Direction
from assay.domain.verdicts import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.client import Client
    from assay.client.experiments import Against
    from assay.contracts.batch import (
        ComparisonBody,
        ConfirmationBody,
        ExperimentBody,
        RepairBody,
    )


class Sort(StrEnum):
    """What a list of experiments is sorted by."""

    METRIC = "metric"
    EFFECT = "effect"
    TIME = "time"


app = typer.Typer(name="experiment", no_args_is_help=True, help="Ideas put to the test.")

Experiment = Annotated[
    str,
    typer.Argument(
        help="Id, or the beginning or end of one.", autocompletion=completion.experiments
    ),
]


@app.command("list")
@command
def list_(
    context: typer.Context,
    batch: Annotated[
        str | None, typer.Option(help="Only of this batch.", autocompletion=completion.batches)
    ] = None,
    env: opt.OnlyEnvironment = None,
    state: Annotated[str | None, typer.Option(help="Only in this state.")] = None,
    tag: annotating.OnlyTag = None,
    sort: Annotated[
        Sort | None,
        typer.Option(help="Best metric, largest effect or longest first; else newest first."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print comma-separated values, with all columns.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List experiments.  Example: assay experiment list --env toy --sort metric --csv"""
    from assay.analysis.comma_separated import experiments_as_csv

    if as_csv and as_json:
        raise InvalidInput("--csv and --json exclude each other; leave one of them out")
    if sort is Sort.METRIC and env is None and batch is None:
        raise InvalidInput("--sort metric: metrics of one environment compare; name it with --env")
    out = root(context).output(as_json)
    with root(context).client() as client:
        wanted = full_id(batch, client.batches.list()) if batch else None
        listed = client.experiments.list(batch=wanted, state=state, environment=env, tag=tag)
        if sort is None:
            found, truncated = take(listed, limit)
        else:
            known = list(listed)
            found, truncated = _sorted(client, known, sort)[:limit], len(known) > limit
    if as_csv:
        out.text(experiments_as_csv(found))
    else:
        out.data(found, _listed(found), truncated=truncated)
    if truncated:
        out.say(f"These are {limit}; there are more: --limit")
    if not found:
        out.say("No experiments. They come with batches: assay batch submit --help")


def _sorted(client: Client, found: list[ExperimentBody], by: Sort) -> list[ExperimentBody]:
    """The experiments with the best metric, the largest effect or the longest time first."""

    def effect(experiment: ExperimentBody) -> float:
        return experiment.comparison.effect if experiment.comparison else -math.inf

    def seconds(experiment: ExperimentBody) -> float:
        return -1.0 if experiment.seconds is None else experiment.seconds

    if by is not Sort.METRIC:
        return sorted(found, key=effect if by is Sort.EFFECT else seconds, reverse=True)
    if not found:
        return found
    environment = found[0].environment or client.batches.get(found[0].batch).environment
    sign = 1 if client.environments.get(environment).direction is Direction.MINIMIZE else -1

    def metric(experiment: ExperimentBody) -> float:
        value = experiment.metric
        return math.inf if value is None or not math.isfinite(value) else sign * value

    return sorted(found, key=metric)


def _place(experiment: ExperimentBody) -> str:
    """The environment and the profile, without the hash."""
    name = (experiment.environment or "").partition("@")[0]
    return f"{name} {experiment.profile or ''}".strip()


def _listed(found: list[ExperimentBody]) -> RenderableType:
    from assay.analysis.rows import further_metrics
    from assay.analysis.tables import cell, table
    from assay.analysis.text import (
        format_effect,
        format_number,
        format_verdict,
        idea_title,
        short_id,
    )

    further = further_metrics(found)
    places = {_place(e) for e in found}
    columns = ["id", *(["environment"] if len(places) > 1 else []), "idea", "state", "metric"]
    columns += [*further, "effect [95 %]", "verdict"]
    made = table(*columns, right=["metric", *further])
    for e in found:
        row = [short_id(e.id), *([_place(e)] if len(places) > 1 else []), idea_title(e.idea.text)]
        row += [e.state, format_number(e.metric)]
        row += [format_number(e.metrics.get(each)) for each in further]
        made.add_row(*map(cell, [*row, format_effect(e.comparison), format_verdict(e.comparison)]))
    return made


@app.command()
@command
def show(context: typer.Context, experiment: Experiment, as_json: AsJson = False) -> None:
    """Show an experiment.  Example: assay experiment show exp_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.experiments.get(full_id(experiment, client.experiments.list()))
    out.data(body, _describe(body))


@app.command()
@command
def annotate(
    context: typer.Context,
    experiments: Annotated[
        list[str],
        typer.Argument(
            help="Experiments, by id.",
            metavar="EXPERIMENT...",
            autocompletion=completion.experiments,
        ),
    ],
    tag: annotating.Add = None,
    untag: annotating.Remove = None,
    note: annotating.Note = None,
    as_json: AsJson = False,
) -> None:
    """Change tags and the note.  Example: assay experiment annotate exp_01k8… --tag keep"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        ids = [full_id(given, client.experiments.list()) for given in experiments]
        annotating.annotate(out, client.experiments, ids, tag, untag, note)


@app.command()
@command
def diff(
    context: typer.Context,
    experiment: Experiment,
    against: Annotated[
        str, typer.Option(help="base, or baseline: the environment's own code.")
    ] = "base",
    as_json: AsJson = False,
) -> None:
    """Print the diff that was measured.  Example: assay experiment diff exp_01k8… | less"""
    from assay.analysis.text import clean

    out = root(context).output(as_json)
    chosen = _against(against)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        text = client.experiments.diff(id_, against=chosen)
    if as_json:
        out.data({"diff": text})
    else:
        # A terminal must not run what a model wrote; a pipe gets the bytes that were measured.
        out.text(clean(text) if out.out.is_terminal else text)


def _against(named: str) -> Against:
    if named == "base":
        return "base"
    if named == "baseline":
        return "baseline"
    raise InvalidInput(f"--against: {named!r} is neither base nor baseline")


@app.command()
@command
def logs(
    context: typer.Context,
    experiment: Experiment,
    stream: opt.Stream = "train",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the experiment ends.")
    ] = False,
    offset: Annotated[int, typer.Option(min=0, help="From this byte.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the log.  Example: assay experiment logs exp_01k8… --follow"""
    from assay.cli.log_printer import LogPrinter, stream_named

    out = root(context).output(as_json)
    chosen = stream_named(stream)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        printer = LogPrinter(partial(client.experiments.logs, id_), chosen, offset, out)
        printer.follow(lambda: not follow or client.experiments.get(id_).is_terminal)


@app.command()
@command
def curves(
    context: typer.Context,
    experiment: Experiment,
    max_points: Annotated[int, typer.Option(min=2, help="Thinned to so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print what the code said of itself while it trained (claims, not results)."""
    from assay.analysis.sparklines import sparkline
    from assay.analysis.tables import cell, table
    from assay.analysis.text import clean, format_number

    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        points = client.experiments.curves(id_, max_points=max_points)
    names = sorted({name for point in points for name in point.values})
    drawn = table("", "first", "last", "", right=["first", "last"])
    for name in names:
        values = [point.values[name] for point in points if name in point.values]
        ends = map(format_number, (values[0], values[-1]))
        drawn.add_row(*map(cell, (clean(name), *ends, sparkline(values))))
    made = table("step", *map(clean, names))
    for point in points:
        step = "–" if point.step is None else f"{point.step:g}"
        made.add_row(*map(cell, [step, *(format_number(point.values.get(n)) for n in names)]))
    out.data(points, *([drawn] if points else []), made)
    if not points:
        out.say("No points yet: the code writes them to metrics.jsonl while it trains.")


@app.command()
@command
def result(
    context: typer.Context,
    experiment: Experiment,
    expect: Annotated[
        Verdict | None, typer.Option(help="Exit with 1 unless this is the verdict.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the sealed result.  Example: assay experiment result exp_01k8… --expect better"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import (
        clean,
        format_effect,
        format_number,
        format_used,
        format_verdict,
        short_id,
    )

    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.experiments.result(full_id(experiment, client.experiments.list()))
    of = body.metric_name
    further = sorted({n for m in body.measurements for n in m.metrics if n != of and "/" not in n})
    columns = ("measurement", "seed", "hardware class", "state", of, *map(clean, further))
    made = table(*columns, right=["seed", *columns[4:]])
    for m in body.measurements:
        numbers = (m.metric, *(m.metrics.get(name) for name in further))
        cells = (short_id(m.id), m.seed, m.hardware_class, m.state, *map(format_number, numbers))
        made.add_row(*map(cell, cells))
    files = table("file", "bytes", "sha256", "url", title="Artifacts")
    for artifact in body.artifacts:
        removed = artifact.removed_at and f"removed on {artifact.removed_at:%Y-%m-%d}"
        place = removed or artifact.url
        files.add_row(*map(cell, (artifact.name, artifact.bytes, artifact.sha256[:12], place)))
    line = (
        f"{body.metric_name} {format_number(body.metric)} ({body.direction}), "
        f"effect {format_effect(body.comparison)}, {format_verdict(body.comparison)}, "
        f"reward {format_number(body.reward)}"
    )
    if body.against_baseline is not None:
        line += f"\n{_beside_the_baseline(body.against_baseline)}"
    if used := format_used(body.used):
        line += f"\nbeside the baseline: {used}"
    if not body.promotable:
        line += "\nMeasured without isolation: a claim, not a result to compare with others."
    out.data(body, line, made, files)
    found = body.comparison.verdict if body.comparison else None
    if expect is not None and found != expect:
        out.say(f"The verdict is {found or 'missing: there is no baseline'}, not {expect.value}.")
        raise typer.Exit(FAILED)


@app.command()
@command
def confirm(
    context: typer.Context,
    experiments: Annotated[
        list[str],
        typer.Argument(
            help="Experiments with a result, by id.",
            metavar="EXPERIMENT...",
            autocompletion=completion.experiments,
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, max=64, help="How many fresh seeds.")] = 5,
    base: Annotated[
        str | None, typer.Option(help="Compare with this base instead of the one they change.")
    ] = None,
    idempotency_key: opt.IdempotencyKey = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results.")] = False,
    timeout: opt.Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure results again, on the sealed split.  Example: assay experiment confirm exp_01k8…"""
    from assay.analysis.text import counted
    from assay.cli.batch import wait_and_show

    out = root(context).output(as_json)
    with root(context).client() as client:
        ids = [full_id(experiment, client.experiments.list()) for experiment in experiments]
        what = f"{counted(len(ids), 'codebase')} on {counted(seeds, 'fresh seed')}"
        if dry_run:
            checked = client.experiments.check_confirmation(
                ids[0], beside=ids[1:], seeds=seeds, base=base
            )
            out.changed("", f"would measure {what}", detail=checked, dry_run=True)
            return
        batch = client.experiments.confirm(
            ids[0], beside=ids[1:], seeds=seeds, base=base, idempotency_key=idempotency_key
        )
        out.say(f"{batch.id}: {what}")
        if wait:
            wait_and_show(client, batch.id, out, timeout)
            return
    out.changed(batch.id, f"submitted {batch.id}", detail=batch)
    out.say(f"Follow it with: assay batch watch {batch.id}")


@app.command()
@command
def retry(
    context: typer.Context,
    experiments: Annotated[
        list[str],
        typer.Argument(
            help="Failed experiments, by id.",
            metavar="EXPERIMENT...",
            autocompletion=completion.experiments,
        ),
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the results.")] = False,
    timeout: opt.Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure failed experiments again.  Example: assay experiment retry exp_01k8… --wait"""
    from assay.cli.retrying import retry_experiments, wait_for_retries

    out = root(context).output(as_json)
    with root(context).client() as client:
        known = client.experiments.list
        ids = list(dict.fromkeys(full_id(given, known()) for given in experiments))
        if dry_run:
            failed = [client.experiments.get(id_) for id_ in ids]
            out.changed("", f"would retry {', '.join(ids)}", detail=failed, dry_run=True)
            return
        retried = retry_experiments(client, out, ids)
        if wait:
            retried = wait_for_retries(client, out, retried, timeout)
    lines = [f"{of}: {body.state} as {body.id}" for of, body in zip(ids, retried, strict=True)]
    out.changed(" ".join(ids), "\n".join(lines), detail=retried)
    if not wait:
        for batch in dict.fromkeys(body.batch for body in retried if not body.is_terminal):
            out.say(f"Follow it with: assay batch watch {batch}")


@app.command()
@command
def reproduce(
    context: typer.Context,
    experiment: Experiment,
    queue: Annotated[
        bool,
        typer.Option("--queue", help="Also where no live worker has the result's conditions."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait, and exit with 1 unless the results agree.")
    ] = False,
    timeout: opt.Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure a result again from its record.  Example: assay experiment reproduce exp_01k8…"""
    from assay.analysis.tables import cell, table
    from assay.analysis.text import format_number
    from assay.cli.reproducing import describe_agreement, describe_seed
    from assay.cli.retrying import wait_for_retries

    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        if dry_run:
            body = client.experiments.get(id_)
            out.changed("", f"would reproduce {id_}", detail=body, dry_run=True)
            return
        made = client.experiments.reproduce(id_, queue=queue)
        out.say(f"{id_}: measured again as {made.id} in {made.batch}")
        if not wait:
            out.changed(id_, f"{id_}: {made.state} as {made.id}", detail=made)
            out.say(f"Follow it with: assay batch watch {made.batch}")
            return
        (made,) = wait_for_retries(client, out, [made], timeout)
    found = made.agreement
    if found is None:
        raise Conflict(f"{made.id} is {made.state} and was not compared")
    rows = table("seed", f"{made.metric_name} before", "now", "", right=["seed", "now"])
    for seed in found.seeds:
        numbers = (format_number(seed.before), format_number(seed.again))
        rows.add_row(*map(cell, (seed.seed, *numbers, describe_seed(seed))))
    out.data(made, rows, f"{made.id} {describe_agreement(found)}")
    if not found.agrees:
        raise typer.Exit(FAILED)


@app.command()
@command
def bundle(
    context: typer.Context,
    experiment: Experiment,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The archive to write; `<id>.zip` by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a zip that measures a result again.  Example: assay experiment bundle exp_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        data = client.experiments.bundle(id_)
    target = output or Path(f"{id_}.zip")
    with target.open("xb") as file:
        file.write(data)
    out.data({"experiment": id_, "file": str(target), "bytes": len(data)}, f"wrote {target}")
    out.say("Unpack it anywhere and run: python run.py (its README.md says what it needs)")


@app.command()
@command
def cancel(
    context: typer.Context,
    experiment: Experiment,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel an experiment.  Example: assay experiment cancel exp_01k8… --yes"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        cancel_one(
            out,
            id_,
            get=client.experiments.get,
            cancel=client.experiments.cancel,
            question=f"Cancel {id_}?",
            dry_run=dry_run,
            yes=yes,
        )


def _describe(body: ExperimentBody) -> str:
    from assay.analysis.text import (
        clean,
        format_effect,
        format_number,
        format_seconds,
        format_used,
        format_verdict,
    )

    lines = [
        f"{body.id}: {body.state} (idea {body.position + 1} of {body.batch})",
        f"{body.metric_name} {format_number(body.metric)}, "
        f"effect {format_effect(body.comparison)}, {format_verdict(body.comparison)}, "
        f"reward {format_number(body.reward)}",
        f"took {format_seconds(body.seconds)}",
    ]
    lines[2:2] = _further(body)
    if body.base is not None:
        name = body.base.name or "a codebase"
        lines.insert(1, f"changes {clean(name)} ({body.base.codebase[:12]})")
    if body.against_baseline is not None:
        lines.insert(3, _beside_the_baseline(body.against_baseline))
    if body.warm_up_seconds is not None:
        lines[-1] += f", after {format_seconds(body.warm_up_seconds)} of warm-up"
    if used := format_used(body.used):
        lines.append(f"beside the baseline: {used}")
    if body.failure is not None:
        failure = body.failure
        lines.append(f"failed at {failure.stage} ({failure.code}): {clean(failure.message)}")
    if body.shared_with:
        lines.append(f"shares its measurements with {', '.join(body.shared_with)}")
    lines += _origin(body)
    if body.measurements:
        on = measured_on(body)
        place = f" on {on}" if on else ""
        lines.append(f"measured{place} in {', '.join(body.measurements)}")
    lines += map(_repair, body.repairs)
    if body.smokes:
        lines.append(f"tried before it was measured: {', '.join(body.smokes)}")
    if body.idea.similar:
        alike = (f"{one.experiment} ({one.similarity:.0%})" for one in body.idea.similar)
        lines.append(f"in nearly the words of {', '.join(alike)}")
    lines += annotating.describe_annotation(body)
    lines += ["", clean(body.idea.text)]
    return "\n".join(lines)


def _further(body: ExperimentBody) -> list[str]:
    """A line about what else its evaluator reports, if it reports anything."""
    from assay.analysis.text import clean, format_number

    told = (f"{clean(name)} {format_number(value)}" for name, value in body.metrics.items())
    return [f"also reported: {', '.join(told)}"] if body.metrics else []


def _beside_the_baseline(comparison: ComparisonBody) -> str:
    """How a result compares with the environment's own codebase, where it has another base."""
    from assay.analysis.text import format_effect, format_verdict

    return (
        f"beside the environment's baseline: effect {format_effect(comparison)}, "
        f"{format_verdict(comparison)}"
    )


def _origin(body: ExperimentBody) -> list[str]:
    """Where its codebase comes from, if nobody implemented it, and what measured it again."""
    from assay.cli.reproducing import describe_agreement

    lines = []
    if body.idea.builds_on:
        lines.append(f"builds on {', '.join(body.idea.builds_on)}")
    if body.idea.codebase:
        lines.append("its codebase was submitted as it is; no model was asked")
    if body.idea.confirms:
        lines.append(f"confirms {body.idea.confirms}{_claim(body.claimed)}")
    if body.confirmation is not None:
        lines.append(_confirmed(body.confirmation))
    if body.idea.retries:
        lines.append(f"measures {body.idea.retries} again, which failed")
    if body.retried_as:
        lines.append(f"retried as {', '.join(body.retried_as)}")
    if body.idea.reproduces:
        lines.append(f"measures {body.idea.reproduces} again, to see whether it agrees")
    if body.agreement is not None:
        lines.append(describe_agreement(body.agreement))
    if body.reproduced_as:
        lines.append(f"reproduced as {', '.join(body.reproduced_as)}")
    return lines


def _claim(claimed: bool | None) -> str:
    """Whether a result may be claimed to be better, after a comma; empty while that is open."""
    return "" if claimed is None else f", which may{'' if claimed else ' not'} be claimed"


def _confirmed(found: ConfirmationBody) -> str:
    from assay.analysis.text import format_effect, format_number

    said = f"confirmed by {found.experiment}: {found.state}{_claim(found.claimed)}"
    if found.comparison is not None:
        said += f"; {found.metric_name} {format_number(found.metric)}, "
        said += f"effect {format_effect(found.comparison)}, gap {format_number(found.gap)}"
    if found.repeated:
        said += f"; {found.repeated} later on other seeds, which decide nothing"
    return said


def _repair(repair: RepairBody) -> str:
    """Which codebase crashed where, and what came of it."""
    from assay.analysis.text import one_line

    said = repair.failure.message.strip().splitlines() or [repair.failure.code]
    outcome = {"open": "is being repaired", "refused": "was not repaired"}.get(repair.state, "")
    if repair.repaired is not None:
        outcome = f"codebase {repair.repaired[:12]}"
    return (
        f"repair {repair.number + 1}: codebase {repair.codebase[:12]} → {repair.failure.code} in "
        f"{repair.measurement} ({one_line(said[-1], 160)}) → {outcome} "
        f"(sample {repair.sample}, revision {repair.revision})"
    )
