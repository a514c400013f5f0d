"""`assay queue`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.command import AsJson, command, root

if TYPE_CHECKING:
    from rich.table import Table

    from assay.contracts.queue import QueueBatch, QueueNext, QueueShare, QueueStage


@command
def queue(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Of each stage, so many that are next.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what is implemented and measured next, and why the rest waits.  Example: assay queue"""
    out = root(context).output(as_json)
    with root(context).client() as client:
        body = client.queue(limit=limit)
    tables = _tables("Implementing", body.implementing)
    for stage in body.measuring:
        tables += _tables(f"Measuring on {stage.hardware_class}", stage)
    out.data(body, *tables)
    if not body.scheduled:
        out.say("No scheduler runs: nothing is measured. Start one: assay scheduler")
    if not tables:
        out.say("Nothing waits and nothing runs.")


def _tables(title: str, stage: QueueStage) -> list[Table]:
    """Who has what, and what is next; nothing of a stage where nothing waits or runs."""
    if not any(share.waiting or share.under_way for share in stage.owners):
        return []
    return [_shares(title, stage), *([_next(stage)] if stage.next else [])]


def _shares(title: str, stage: QueueStage) -> Table:
    from assay.analysis.tables import cell, table

    right = ["weight", "priority", "waiting", "has", "of all", "10 minutes", "due"]
    made = table(
        "who",
        *right,
        title=f"{title}: {_in_use(stage)}",
        right=right,
    )
    for share in stage.owners:
        made.add_row(*map(cell, _owner_row(share)))
        for batch in stage.batches if share.owner is not None else ():
            made.add_row(*map(cell, _batch_row(batch)))
    return made


def _in_use(stage: QueueStage) -> str:
    if not stage.total:
        return "no worker of this class"
    return f"{stage.under_way} of {stage.total} {stage.unit} in use"


def _owner_row(share: QueueShare) -> tuple[object, ...]:
    others = "1 other owner" if share.owners == 1 else f"{share.owners} other owners"
    return (
        share.owner if share.owner is not None else others,
        f"{share.weight:g}",
        "",
        share.waiting,
        share.under_way,
        _percent(share.has),
        _percent(share.recent),
        _percent(share.due),
    )


def _batch_row(batch: QueueBatch) -> tuple[object, ...]:
    paused = f" ({batch.paused} paused)" if batch.paused else ""
    return (
        f"  {batch.batch}",
        "",
        batch.priority,
        f"{batch.waiting}{paused}",
        batch.under_way,
        _percent(batch.has),
        _percent(batch.recent),
        _percent(batch.due),
    )


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _next(stage: QueueStage) -> Table:
    from assay.analysis.tables import cell, table

    made = table("", "next", "batch", "needs", "why it waits", right=[""])
    for each in stage.next:
        made.add_row(
            *map(cell, (each.place, _what(each), each.batch or "", _needs(each), each.why))
        )
    return made


def _what(each: QueueNext) -> str:
    if not each.yours:
        return "another owner's"
    return each.experiment or each.measurement or ""


def _needs(each: QueueNext) -> str:
    if each.gpus:
        return "1 GPU" if each.gpus == 1 else f"{each.gpus} GPUs"
    return "" if not each.cpus else "1 CPU" if each.cpus == 1 else f"{each.cpus} CPUs"
