"""`assay worker …`."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import completion
from assay.cli.command import AsJson, Yes, command, confirm, root
from assay.domain.conditions import differences
from assay.domain.errors import Unavailable

if TYPE_CHECKING:
    from assay.contracts.worker import DeviceTrouble, WorkerBody

GIB = 1 << 30

app = typer.Typer(name="worker", invoke_without_command=True, help="Hosts that measure.")


@app.callback()
def _noun(context: typer.Context) -> None:
    """Hosts that measure. Without a verb: measure on this host, until SIGTERM.

    Such a worker is told where to work by ASSAY_WORKER_… variables.
    """
    if context.invoked_subcommand is None:
        _measure()


def _measure() -> None:
    found = entry_points(group="assay.commands", name="worker")
    try:
        run = next(iter(found)).load()
    except (ImportError, StopIteration) as error:
        raise Unavailable(
            f"this host cannot measure ({error}); install it with: pip install 'assay[worker]'"
        ) from error
    run()


@app.command("list")
@command
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the workers of the service.  Example: assay worker list"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        workers = list(client.workers.list())
    made = table(
        "name", "state", "hardware class", "conditions", "cpus", "gpus", "sandbox", "running", "id"
    )
    for worker in workers:
        made.add_row(*map(cell, _row(worker)))
    out.data(workers, made)
    if not workers:
        out.say("No workers. `assay serve` starts one along with the service.")
    for said in [*not_compared(workers), *_kept_apart(workers)]:
        out.say(said)


def _kept_apart(workers: list[WorkerBody]) -> list[str]:
    """Where active workers measure apart from others with the same conditions."""
    found: dict[tuple[str, str, str], list[WorkerBody]] = {}
    for worker in workers:
        for each in worker.apart if worker.state == "active" else ():
            key = (each.environment, each.profile, each.state)
            found.setdefault(key, []).append(worker)
    why = {"pending": "controls come first", "different": "its controls gave other results"}
    return [
        f"note: {_names(those)}: apart from the others in {environment}, {profile}, as "
        f"{why.get(state, state)}; see: assay conditions show --env {environment} "
        f"--profile {profile}"
        for (environment, profile, state), those in found.items()
    ]


def not_compared(workers: list[WorkerBody]) -> list[str]:
    """What keeps the results of active workers of one hardware class apart."""
    classes: dict[str, dict[str, list[WorkerBody]]] = {}
    for worker in workers:
        if worker.state == "active" and worker.conditions is not None:
            sets = classes.setdefault(worker.hardware_class, {})
            sets.setdefault(worker.conditions, []).append(worker)
    said = []
    for name, sets in sorted(classes.items()):
        first, *others = sets.values()
        for other in others:
            differ = "; ".join(differences(first[0].facts, other[0].facts))
            but = "; ".join(_taken_for_equal(first[0], other[0]))
            said.append(
                f"warning: results of {_names(first)} and of {_names(other)} ({name}) are not "
                f"compared{f', except in {but}' if but else ''}: {differ}{_remedy(differ)}"
            )
    return said


def _taken_for_equal(one: WorkerBody, other: WorkerBody) -> list[str]:
    """Environments and profiles where an operator takes the conditions of both for equal."""
    mine, theirs = (
        {f"{each.environment}, {each.profile}": each.equals for each in worker.declared}
        for worker in (one, other)
    )
    return [
        setting
        for setting in sorted(mine.keys() | theirs.keys())
        if mine.get(setting, one.conditions) == theirs.get(setting, other.conditions)
    ]


def _names(workers: list[WorkerBody]) -> str:
    more = f" and {len(workers) - 3} more" if len(workers) > 3 else ""
    return ", ".join(worker.name for worker in workers[:3]) + more


def _remedy(differ: str) -> str:
    if "held_out_key" in differ:
        return "; start them with the same ASSAY_WORKER_HELD_OUT_KEY"
    return "; give them the same, or see: assay conditions equate --help"


def _row(worker: WorkerBody) -> tuple[object, ...]:
    cpus, gpus = str(worker.cpus), str(worker.gpus)
    if worker.usable_cpus is not None and worker.usable_cpus < worker.cpus:
        cpus = f"{worker.usable_cpus} of {worker.cpus}: busy host"
    if worker.usable_gpus < worker.gpus:
        gpus = f"{worker.usable_gpus} of {worker.gpus} usable"
    if worker.troubles:
        gpus += f": {_summary(worker)}"
    return (
        worker.name,
        _state(worker),
        worker.hardware_class,
        worker.conditions or "unknown",
        cpus,
        gpus,
        worker.sandbox if worker.isolated else f"{worker.sandbox} (not isolated)",
        len(worker.running),
        worker.id,
    )


def _summary(worker: WorkerBody) -> str:
    """The kinds of trouble with its GPUs, each with how many have it: `lost, 2 in use`."""
    counts = Counter(trouble.state.replace("_", " ") for trouble in worker.troubles)
    return ", ".join(kind if count == 1 else f"{count} {kind}" for kind, count in counts.items())


def _state(worker: WorkerBody) -> str:
    """Its state, and why it gets no new work."""
    until = worker.cordoned_until
    if until is not None and until > datetime.now(UTC):
        return f"{worker.state}, cordoned"
    return f"{worker.state}, draining" if worker.draining else worker.state


Worker = Annotated[
    str,
    typer.Argument(help="A worker's name or id.", autocompletion=completion.workers),
]


@app.command()
@command
def show(context: typer.Context, worker: Worker, as_json: AsJson = False) -> None:
    """Show a worker, its GPUs and its guarantees.  Example: assay worker show gpu-0"""
    from assay.analysis.tables import cell, table

    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.workers.get(worker)
    made = table("", "")
    for name, value in _facts(body):
        made.add_row(cell(name), cell(value))
    out.data(body, made)


def _facts(worker: WorkerBody) -> list[tuple[str, str]]:
    missing = [name for name, held in worker.guarantees.items() if not held]
    facts = [
        ("name", worker.name),
        ("id", worker.id),
        ("state", _state(worker)),
        ("version", worker.version or "unknown"),
        ("last heard of", worker.last_seen_at.isoformat(timespec="seconds")),
        ("hardware class", worker.hardware_class),
        ("conditions", worker.conditions or "unknown"),
        *((f"  {name}", told) for name, told in worker.facts.items()),
        *((f"  {name} (recorded)", told) for name, told in worker.recorded.items()),
        *(
            ("  apart", f"{each.environment}, {each.profile}: {each.state}")
            for each in worker.apart
        ),
        ("cpus", str(worker.cpus)),
        ("memory", f"{worker.memory_bytes / GIB:.1f} GiB"),
        ("gpus", f"{worker.gpus}, of which {worker.usable_gpus} usable"),
        *_devices(worker),
        ("sandbox", worker.sandbox + ("" if worker.isolated else " (not isolated)")),
        ("guarantees missing", ", ".join(missing) or "none"),
        ("held-out key", _key(worker.held_out_key)),
        ("running", ", ".join(worker.running) or "nothing"),
    ]
    if worker.cordon_reason:
        facts.append(("cordoned", worker.cordon_reason))
    return facts


def _devices(worker: WorkerBody) -> list[tuple[str, str]]:
    """Each GPU and its state; at the end those that the driver cannot ask."""
    troubles = {trouble.uuid: trouble for trouble in worker.troubles}
    rows = []
    for device in worker.devices:
        found = troubles.pop(device.uuid, None)
        what = f"{device.name}, {device.memory_bytes / GIB:.0f} GiB"
        rows.append((f"  {device.uuid}", f"{what}: {_told(found)}" if found else what))
    return rows + [(f"  {uuid}", _told(found)) for uuid, found in troubles.items()]


def _told(trouble: DeviceTrouble) -> str:
    return f"{trouble.state.replace('_', ' ')}: {trouble.detail}"


def _key(fingerprint: str | None) -> str:
    """The fingerprint of a held-out key, or what is known instead."""
    if fingerprint is None:
        return "unknown"
    return fingerprint or "none: generated data is public"


@app.command()
@command
def admit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What the worker is called.")],
    as_json: AsJson = False,
) -> None:
    """Let a worker in, and print its token.  Example: assay worker admit gpu-0"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.workers.admit(name)
    out.changed(
        body.id,
        f"{body.name} may measure with ASSAY_WORKER_TOKEN={body.token}, which is not shown again",
        detail=body,
    )


@app.command()
@command
def cordon(
    context: typer.Context,
    worker: Worker,
    reason: Annotated[str, typer.Option(help="What others read about it.")] = "by an operator",
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Only for so long; else until `uncordon`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a worker no new work; what runs goes on.  Example: assay worker cordon gpu-0"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.workers.cordon(worker, reason=reason, seconds=seconds)
    length = f"for {seconds:g} s" if seconds is not None else "until it is uncordoned"
    out.changed(body.id, f"{body.name} gets no new work {length}", detail=body)


@app.command()
@command
def uncordon(context: typer.Context, worker: Worker, as_json: AsJson = False) -> None:
    """Give a worker work again.  Example: assay worker uncordon gpu-0"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.workers.uncordon(worker)
    out.changed(body.id, f"{body.name} gets work again", detail=body)


@app.command()
@command
def drain(
    context: typer.Context,
    worker: Worker,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Wait at most so many seconds.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cordon a worker and wait until it runs nothing.  Example: assay worker drain gpu-0"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.workers.drain(worker, timeout=timeout)
    out.changed(body.id, f"{body.name} runs nothing and gets no new work", detail=body)


@app.command()
@command
def remove(
    context: typer.Context, worker: Worker, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Say that a worker's host is gone for good.  Example: assay worker remove gpu-0"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.workers.get(worker)
        question = f"Is the host of {body.name} gone? What it held is tried again elsewhere."
        confirm(out, question, yes)
        body = client.workers.remove(body.id)
    out.changed(body.id, f"{body.name} is gone; what it held is tried again", detail=body)
