"""`assay search report`: read what is stored of searches, and write their report."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli import completion
from assay.cli.command import AsJson, command, full_id, root
from assay.domain.errors import InvalidInput
from assay.domain.isolation import is_offline

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.analysis.report import (
        Choices,
        EpochRecord,
        Figure,
        Payment,
        Report,
        SearchRecord,
        Table,
    )
    from assay.cli.output import Output
    from assay.client import Client
    from assay.contracts.batch import CallFacts, ExperimentBody
    from assay.contracts.search import SearchBody


@command
def report(
    context: typer.Context,
    searches: Annotated[
        list[str],
        typer.Argument(
            help="Searches, by id.", metavar="SEARCH...", autocompletion=completion.searches
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(help="Write one self-contained file with figures and tables."),
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write each figure as a PNG into this folder.")
    ] = None,
    theme: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATTERN",
            help="What figure 7 counts, as a regular expression; may be repeated.",
        ),
    ] = None,
    expert: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENVIRONMENT=NUMBER", help="The best result of a person, for table 1."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Figures and tables of searches.  Example: assay search report srch_01k8… --html r.html"""
    from assay.analysis.report import make_report
    from assay.analysis.report.drawing import check_can_draw

    out = root(context).output(as_json)
    choices = _choices(theme or [], expert or [])
    if html is not None or png is not None:
        check_can_draw()
    with root(context).client() as client:
        ids = [full_id(search, client.searches.list()) for search in searches]
        records = [read_record(client, id_, out) for id_ in dict.fromkeys(ids)]
    made = make_report(records, choices)
    files = [str(file) for file in _write(made, html, png)]
    shown = [] if as_json else _tables(made)
    if files and not as_json:
        shown = [f"wrote {file}" for file in files]
    out.data({"report": asdict(made), "files": files}, *shown)
    if not files:
        out.say("For figures: --html FILE or --png DIR; for the numbers of all of them: --json")


def _choices(themes: list[str], experts: list[str]) -> Choices:
    """Raises InvalidInput: a flag is not a name and a value."""
    from assay.analysis.report import Choices

    patterns, numbers = {}, {}
    for name, value in (_pair("--theme", given, "PATTERN") for given in themes):
        try:
            patterns[name] = re.compile(value, re.IGNORECASE)
        except re.error as error:
            raise InvalidInput(
                f"--theme: {value!r} is not a regular expression ({error}); put a backslash "
                "before characters that are meant as they are"
            ) from None
    for name, value in (_pair("--expert", given, "NUMBER") for given in experts):
        try:
            numbers[name] = float(value)
        except ValueError:
            numbers[name] = math.nan
        if not math.isfinite(numbers[name]):
            raise InvalidInput(f"--expert: {value!r} is not a number; give one such as toy=0.9")
    return Choices(patterns, numbers)


def _pair(flag: str, given: str, what: str) -> tuple[str, str]:
    name, mark, value = given.partition("=")
    if not (name and mark and value):
        raise InvalidInput(f"{flag}: {given!r} must be a name, = and a {what.lower()}")
    return name, value


def read_record(client: Client, search: str, out: Output) -> SearchRecord:
    """Read all that is stored of a search; it may be under way."""
    from assay.analysis.report import EpochRecord, SearchRecord

    body = client.searches.get(search)
    out.say(f"reading {search}: {body.epochs_finished} of {body.epochs} epochs finished")
    private, payments = _ideator(client, body)
    epochs: list[EpochRecord] = []
    for epoch in client.searches.epochs(search):
        if epoch.batch is None:
            continue
        batch = client.batches.get(epoch.batch)
        experiments = list(client.experiments.list(batch=epoch.batch))
        record = EpochRecord(
            epoch.number, batch, experiments, epoch.ideas, private.get(epoch.number, 0)
        )
        epochs.append(record)
        if not is_offline(body.executor):
            calls = client.batches.calls(epoch.batch)
            payments += [_payment(call, "executor") for call in calls if call.finished_at]
    diffs = _diffs(client, [e for epoch in epochs for e in epoch.experiments])
    environment = client.environments.get(body.environment)
    payments.sort(key=lambda payment: payment.at)
    return SearchRecord(body, environment, epochs, diffs, payments)


def _ideator(client: Client, search: SearchBody) -> tuple[dict[int, int], list[Payment]]:
    """Return how many characters the ideator thought in private by epoch, and what it cost."""
    private: dict[int, int] = defaultdict(int)
    payments: list[Payment] = []
    if is_offline(search.ideator):
        return private, payments
    for call in client.searches.calls(search.id):
        private[call.epoch] += call.thinking_length or 0
        if call.finished_at is not None:
            payments.append(_payment(call, "ideator"))
    return private, payments


def _payment(call: CallFacts, whose: str) -> Payment:
    from decimal import Decimal

    from assay.analysis.report import Payment

    cost = Decimal(0) if call.is_replay else None
    cost = cost if call.cost_usd is None else Decimal(call.cost_usd)
    return Payment(call.finished_at or call.started_at, cost, whose)


def _diffs(client: Client, experiments: list[ExperimentBody]) -> dict[str, str]:
    """Return the diff of each experiment with a codebase."""
    from assay.search.trajectories import read_diffs

    found: dict[str, str] = {}
    for batch in dict.fromkeys(experiment.batch for experiment in experiments):
        found |= read_diffs(client, batch, experiments, confirmations=True)
    for experiment in experiments:
        if experiment.codebase is not None and experiment.id not in found:
            found[experiment.id] = client.experiments.diff(experiment.id)
    return found


def _write(report: Report, html: Path | None, png: Path | None) -> list[Path]:
    """Write the files that were asked for and return them."""
    from assay.analysis.report.drawing import draw
    from assay.analysis.report.page import page

    files = []
    drawn = [figure for figure in report.figures if figure.absent is None]
    if html is not None:
        pictures = {figure.name: draw(figure, "svg") for figure in drawn}
        html.write_text(page(report, pictures), encoding="utf-8")
        files.append(html)
    if png is not None:
        png.mkdir(parents=True, exist_ok=True)
        for figure in drawn:
            file = png / f"{figure.name}.png"
            file.write_bytes(draw(figure, "png"))
            files.append(file)
    return files


def _tables(report: Report) -> list[RenderableType]:
    """Return what a terminal shows: the summary, the tables, and why figures are missing."""
    from assay.analysis.text import clean

    shown: list[RenderableType] = []
    for summary in report.summaries:
        facts = "\n".join(f"  {f.label}: {f.value} {f.note}".rstrip() for f in summary.facts)
        shown.append(clean(f"{summary.search}\n{summary.headline}\n{facts}"))
        shown += map(clean, summary.warnings)
    shown += [_table(table) for table in report.tables if not table.is_prose]
    shown += [_absent(f) for f in report.figures if f.absent is not None]
    return shown


def _table(table: Table) -> RenderableType:
    from assay.analysis.tables import cell
    from assay.analysis.tables import table as new_table
    from assay.analysis.text import clean

    title = clean(f"{table.name}: {table.title}")
    if table.absent is not None:
        return clean(f"{title}. {table.absent}\n")
    spanned = [text for text, span in table.groups for _ in range(span)]
    names = [
        clean(f"{spanned[n]}\n{column}".strip() if spanned else column)
        for n, column in enumerate(table.columns)
    ]
    made = new_table(*names, title=title, right=[names[n] for n in table.numeric])
    for row in table.rows:
        if row.heading is not None:
            # A terminal's tables have no cells over several columns.
            place = next(n for n in range(len(names)) if n not in table.numeric)
            made.add_row(*[""] * place, cell(clean(row.heading)))
        else:
            made.add_row(*(cell(clean(each.text)) for each in row.cells))
    return made


def _absent(figure: Figure) -> str:
    from assay.analysis.text import clean

    return clean(f"{figure.name}: {figure.title}. {figure.absent}")
