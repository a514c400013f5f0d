"""`assay env …`."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli import completion
from assay.cli import options as opt
from assay.cli.batch import measured_on
from assay.cli.command import FAILED, AsJson, DryRun, command, full_conditions, full_id, root
from assay.domain.errors import InvalidInput

if TYPE_CHECKING:
    from assay.environments import Environment

app = typer.Typer(name="env", no_args_is_help=True, help="Environments: research problems.")

#: As `assay.contracts.bases.DEFAULT_NAME`, which takes long to import.
DEFAULT_BASE_NAME = "best"
Name = Annotated[
    str,
    typer.Argument(help="Environment: name or name@hash.", autocompletion=completion.environments),
]
Service = Annotated[
    bool, typer.Option("--service", help="Ask the service instead of looking in local folders.")
]


def default_cache() -> Path:
    """Where prepared data is kept: where a worker here, or `assay serve` here, looks for it."""
    named = os.environ.get("ASSAY_WORKER_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("ASSAY_LOCAL_DATA_DIR", ".assay")) / "cache"


@app.command("list")
@command
def list_(context: typer.Context, service: Service = False, as_json: AsJson = False) -> None:
    """List environments.  Example: assay env list"""
    from assay.analysis.tables import cell, table
    from assay.environments import Catalog

    out = root(context).output(as_json)
    if service:
        with root(context).client() as client:
            rows = [_from_service(e) for e in client.environments.list()]
    else:
        rows = [_from_folder(e) for e in Catalog().all()]
    columns = ["name", "title", "metric", "direction", "profiles", "id"]
    made = table(*columns, *(["worn"] if service else []))
    for row in rows:
        profiles = ", ".join(p["name"] for p in row["profiles"])
        cells = [row["name"], row["title"], row["metric"], row["direction"], profiles, row["id"]]
        if service:  # only a service knows what it has shown
            worn = [split["name"] for split in row["splits"] if split["worn"]]
            cells.append(", ".join(worn) or "–")
        made.add_row(*map(cell, cells))
    out.data(rows, made)
    if not rows:
        out.say("No environments. Set ASSAY_ENVIRONMENTS to the folder that holds yours.")


@app.command()
@command
def show(
    context: typer.Context, name: Name, service: Service = False, as_json: AsJson = False
) -> None:
    """Show an environment.  Example: assay env show nanogpt"""
    from assay.analysis.text import counted
    from assay.environments import Catalog

    out = root(context).output(as_json)
    if service:
        with root(context).client() as client:
            row = _from_service(client.environments.get(name))
    else:
        row = _from_folder(Catalog().get(name))
    profiles = [
        f"  {p['name']}: {p['description'] or 'no description'} "
        f"({counted(p['cpus'], 'CPU')}, {counted(p['gpus'], 'GPU')}, {p['memory_gb']:g} GB)"
        for p in row["profiles"]
    ]
    lines = [
        f"{row['id']}: {row['title']}",
        f"{row['metric']} ({row['unit'] or 'no unit'}), {row['direction']}",
        f"{counted(len(row['knobs']), 'knob')}, {counted(len(row['recipes']), 'recipe')}, "
        f"protected: {', '.join(row['protected']) or 'nothing'}",
        *map(_split, row["splits"]),
        *profiles,
        "",
        row["problem"].strip(),
    ]
    out.data(row, "\n".join(lines))


@app.command()
@command
def prepare(
    context: typer.Context,
    name: Name,
    profile: opt.Profile,
    cache: Annotated[
        Path | None, typer.Option(help="Where to keep it.", show_default=".assay/cache")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build or download the data of a profile.  Example: assay env prepare toy --profile tiny"""
    from assay.cli.progress import working
    from assay.environments import Catalog, prepare_data

    out = root(context).output(as_json)
    environment = Catalog().get(name)
    environment.profile(profile)
    with working(out, f"preparing {environment.id}, {profile}"):
        folder = prepare_data(environment, profile, cache or default_cache())
    out.changed(environment.id, f"prepared: {folder}", detail={"folder": str(folder)})


@app.command()
@command
def unpack(
    context: typer.Context,
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Where to; it must not be there.")],
    as_json: AsJson = False,
) -> None:
    """Write all files of an environment, those that Assay adds included, to run them by hand.
    Example: assay env unpack nanogpt /tmp/nanogpt"""
    from assay.environments import Catalog
    from assay.environments.bundle import write_tree

    out = root(context).output(as_json)
    environment = Catalog().get(name)
    if folder.exists():
        raise InvalidInput(f"{folder} is there already; name a folder that is not")
    write_tree(environment.files, folder)
    out.changed(environment.id, f"unpacked: {folder}", detail={"folder": str(folder)})


@app.command()
@command
def check(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(help="A folder, or the name of an environment.")],
    profile: Annotated[
        str | None, typer.Option(help="Profile to prepare; the smallest by default.")
    ] = None,
    prepare: Annotated[bool, typer.Option(help="Run prepare.py into a scratch folder.")] = True,
    as_json: AsJson = False,
) -> None:
    """Check an environment folder.  Example: assay env check environments/toy"""
    from assay.cli.check import check_environment
    from assay.environments import Catalog

    out = root(context).output(as_json)
    path = Path(folder)
    if not path.is_dir():
        path = Catalog().get(folder).folder
    findings = []
    for finding in check_environment(path, profile, prepare=prepare):
        findings.append(finding)
        if not as_json:
            out.show(f"{'ok   ' if finding.ok else 'WRONG'} {finding.check}: {finding.detail}")
    wrong = sum(not f.ok for f in findings)
    out.data(
        {"folder": str(path), "ok": not wrong, "findings": [f.as_dict() for f in findings]},
        f"{len(findings)} checks, {wrong} wrong" if wrong else f"{len(findings)} checks, all well",
    )
    if wrong:
        raise typer.Exit(FAILED)


@app.command()
@command
def calibrate(
    context: typer.Context,
    name: Name,
    profile: opt.Profile,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=64,
            help="How many seeds, from 0; 20 without GPUs, 3 with them.",
            show_default=False,
        ),
    ] = None,
    hardware_class: opt.HardwareClass = None,
    conditions: opt.Conditions = None,
    write: Annotated[bool, typer.Option(help="Write baseline.json in its folder.")] = True,
    controls: Annotated[
        bool, typer.Option(help="Measure the recipes of kind control, too.")
    ] = True,
    again: Annotated[
        bool, typer.Option("--again", help="Measure seeds again that failed before.")
    ] = False,
    timeout: opt.Timeout = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure the baseline.  Example: assay env calibrate nanogpt --profile tiny"""
    from assay.analysis.text import counted
    from assay.cli.baseline import measure_baseline, write_baseline
    from assay.cli.controls import measure_controls
    from assay.environments import Catalog

    out = root(context).output(as_json)
    environment = Catalog().get(name)
    environment.profile(profile)
    with root(context).client() as client:
        served = client.environments.get(environment.name)
        if write and served.id != environment.id:
            raise InvalidInput(
                f"the service has {served.id}, this folder is {environment.id}; "
                "restart the service with this folder, or pass --no-write"
            )
        number = seeds or next(p.baseline_seeds for p in served.profiles if p.name == profile)
        if dry_run:
            message = f"would measure {served.id}, {profile}, on {counted(number, 'seed')}"
            out.changed(served.id, message, dry_run=True)
            return
        body = measure_baseline(
            client,
            out,
            served.id,
            profile,
            range(number),
            hardware_class,
            full_conditions(client, conditions),
            timeout,
            again=again,
        )
        found = {}
        if controls:
            found = measure_controls(client, out, environment, body, range(number), timeout)
    message = (
        f"{body.metric} of {environment.name}, {profile}, {measured_on(body)}: "
        f"mean {body.mean:.6g}, spread {_spread(body.spread)} over "
        f"{counted(len(body.values), 'seed')}"
    )
    for control, figures in found.items():
        message += (
            f"\ncontrol {control}: mean {figures['mean']:.6g}, spread {_spread(figures['spread'])}"
        )
    if write:
        message += f"\nwritten to {write_baseline(environment, body, found)}"
    out.changed(served.id, message, detail=body)


@app.command()
@command
def power(
    context: typer.Context,
    name: Name,
    profile: opt.Profile,
    hardware_class: opt.HardwareClass = None,
    conditions: opt.Conditions = None,
    as_json: AsJson = False,
) -> None:
    """Say which effects how many seeds show.  Example: assay env power nanogpt --profile tiny"""
    from assay.analysis.tables import cell, table
    from assay.cli.power import as_compared, power_rows

    out = root(context).output(as_json)
    with root(context).client() as client:
        environment = client.environments.get(name)
        on = full_conditions(client, conditions)
        where = {"hardware_class": hardware_class, "conditions": on}
        found = client.environments.baseline(name, profile, **where)
        fit = client.environments.fit(name, profile, **where)
    baseline = as_compared(found, environment)
    rows = power_rows(baseline, fit)
    made = table("seeds", "smallest effect", "in spreads", right=["seeds", "in spreads"])
    for row in rows:
        made.add_row(*map(cell, (row.seeds, f"{row.effect:.4g}", f"{row.spreads:.2f}")))
    presumed = f"a fit of {fit.codebases} codebases" if fit.codebases else "the default prior"
    line = (
        f"{baseline.metric}, {baseline.environment}, {profile}, {measured_on(baseline)}: "
        f"{baseline.mean:.4g} with a spread of {_spread(baseline.spread)} over "
        f"{len(baseline.values)} "
        f"seeds; {presumed}. An effect of this size is called better in 80 % of cases:"
    )
    out.data({"baseline": baseline, "fit": fit, "rows": [asdict(row) for row in rows]}, line, made)


@app.command()
@command
def fit(
    context: typer.Context,
    name: Name,
    profile: opt.Profile,
    hardware_class: opt.HardwareClass = None,
    conditions: opt.Conditions = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Fit what verdicts presume to past results.  Example: assay env fit nanogpt --profile tiny"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        if dry_run:
            message = f"would fit {name}, {profile}, and change its verdicts"
            out.changed(name, message, dry_run=True)
            return
        on = full_conditions(client, conditions)
        made = client.environments.refit(
            name, profile, hardware_class=hardware_class, conditions=on
        )
    message = (
        f"fit {made.number} of {name}, {profile}, to {made.codebases} codebases: they vary "
        f"{math.sqrt(made.variance):.2g} times as much as the baseline (worth {made.df:.2g} "
        f"degrees of freedom) and share {made.slope:.0%} of its luck. Verdicts use it from now on."
    )
    out.changed(made.id or name, message, detail=made)


@app.command()
@command
def promote(
    context: typer.Context,
    experiment: Annotated[str, typer.Argument(help="A confirmed experiment, by id.")],
    name: Annotated[
        str, typer.Option(help="What batches call it, with --base.")
    ] = DEFAULT_BASE_NAME,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let later batches start from a confirmed result.  Example: assay env promote exp_01k8…"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        id_ = full_id(experiment, client.experiments.list())
        if dry_run:
            body = client.experiments.get(id_)
            out.changed("", f"would promote {id_} as {name}", detail=body, dry_run=True)
            return
        made = client.experiments.promote(id_, name=name)
    out.changed(
        id_,
        f"{made.name} of {made.environment} is codebase {made.codebase[:12]} "
        f"(promotion {made.number})",
        detail=made,
    )
    out.say(f"Start from it with: assay batch submit … --base {made.name}")


@app.command()
@command
def bases(context: typer.Context, name: Name, as_json: AsJson = False) -> None:
    """List promoted codebases, with what they replaced.  Example: assay env bases nanogpt"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        found = list(client.environments.bases(name))
    made = table("name", "number", "codebase", "profile", "owner", "experiment", "promoted")
    for body in found:
        number = f"{body.number} (current)" if body.is_current else body.number
        when = body.created_at.strftime("%Y-%m-%d %H:%M")
        row = (body.name, number, body.codebase[:12], body.profile, body.owner)
        made.add_row(*map(cell, (*row, body.experiment or "–", when)))
    out.data(found, made)
    if not found:
        out.say("No bases. Promote a confirmed result: assay env promote EXPERIMENT")


def _spread(spread: float | None) -> str:
    return "unknown" if spread is None else f"{spread:.3g}"


def _split(split: dict[str, Any]) -> str:
    worn = ": worn, confirm the best results on a fresh split" if split["worn"] else ""
    shown, budget = split["bits_shown"], split["bits_budget"]
    return f"held-out split {split['name']}: {shown:,} of {budget:,} bits shown{worn}"


def _from_service(body: Any) -> dict[str, Any]:
    row: dict[str, Any] = body.model_dump(mode="json")
    return row


def _from_folder(environment: Environment) -> dict[str, Any]:
    """The same shape as the service's, and where it is and what was measured."""
    m = environment.manifest
    return {
        "object": "environment",
        "id": environment.id,
        "name": m.name,
        "title": m.title,
        "problem": m.problem,
        "metric": m.metric.name,
        "unit": m.metric.unit,
        "direction": m.metric.direction.value,
        "reward": m.metric.reward.value,
        "protected": list(m.codebase.protected),
        "profiles": [
            {
                "name": name,
                "description": p.description,
                "cpus": p.cpus,
                "gpus": p.gpus,
                "memory_gb": p.memory_gb,
                "budget": p.budget.model_dump(mode="json"),
            }
            for name, p in m.profiles.items()
        ],
        "knobs": [k.model_dump(mode="json") for k in m.knobs],
        "recipes": [r.model_dump(mode="json") for r in m.recipes],
        "codebase": environment.codebase_hash,
        "splits": [],
        "folder": str(environment.folder),
        "baselines": environment.committed_baselines(),
    }
