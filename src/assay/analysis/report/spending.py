"""What improvements cost, in dollars and in hours of measuring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from assay.analysis.report.content import Cell, Figure, Panel, Row, Series, Table
from assay.analysis.report.record import SearchRecord, is_scored
from assay.analysis.report.search_figures import Named, best_so_far, level
from assay.analysis.text import format_number, format_seconds, idea_title, short_id
from assay.contracts.batch import ExperimentBody
from assay.domain.isolation import is_offline
from assay.domain.metrics import is_better


@dataclass(frozen=True)
class Spent:
    """What was spent until an experiment ended; `dollars` is None once a price is unknown."""

    experiment: ExperimentBody
    ideas: int
    hours: float
    dollars: Decimal | None


@dataclass(frozen=True)
class Improvement:
    """A result that is better than the baseline's mean and all results before it."""

    at: Spent
    gain: float | None
    dollars: Decimal | None
    hours: float
    ideas: int


def spending(record: SearchRecord) -> Iterator[Spent]:
    """Give what was spent until each experiment ended, in the order in which they did."""
    hours, place, dollars = 0.0, 0, Decimal(0)
    is_known = True
    for number, (experiment, took) in enumerate(record.hours(), start=1):
        hours += took
        until = experiment.finished_at or experiment.created_at
        while place < len(record.payments) and record.payments[place].at <= until:
            cost = record.payments[place].dollars
            is_known = is_known and cost is not None
            dollars += cost or Decimal(0)
            place += 1
        yield Spent(experiment, number, hours, dollars if is_known else None)


def improvements(record: SearchRecord) -> list[Improvement]:
    """Return the improvements in order, with what each cost since the one before."""
    baseline = record.baseline.mean if record.baseline else None
    best, found = baseline, []
    last = Spent(record.experiments[0], 0, 0.0, Decimal(0)) if record.experiments else None
    for spent in spending(record):
        metric = spent.experiment.metric
        if metric is None or last is None or not is_scored(spent.experiment):
            continue
        if best is not None and not is_better(record.direction, metric, best):
            continue
        dollars = None
        if spent.dollars is not None and last.dollars is not None:
            dollars = spent.dollars - last.dollars
        gain = None if best is None else abs(metric - best)
        found.append(
            Improvement(spent, gain, dollars, spent.hours - last.hours, spent.ideas - last.ideas)
        )
        best, last = metric, spent
    return found


def is_paid(record: SearchRecord) -> bool:
    """Return whether a model that costs money is asked."""
    return not (is_offline(record.search.ideator) and is_offline(record.search.executor))


def cost_table(searches: Sequence[Named]) -> Table:
    """Return what each improvement cost since the one before."""
    title = "Cost per improvement"
    rows = []
    for record, label, _ in searches:
        found = improvements(record)
        if not found:
            continue
        rows.append(Row(heading=f"{label}: {record.task}, {record.metric_label}"))
        rows += [_improvement_row(record, n, one) for n, one in enumerate(found, start=1)]
        rows.append(_per_improvement(record, found))
    if not rows:
        why = "No result of these searches is better than its baseline, so nothing was improved."
        return Table("cost", title, absent=why)
    caption = (
        "An improvement is a result beyond the baseline's mean and all results that ended before "
        "it, by however little: a lead, not a claim. Dollars are all requests to models, of "
        "ideators and executors; time is that of the ideas' measurements, each in whole seconds, "
        "times GPUs, without the baseline's, confirmations and repeated attempts."
    )
    columns = ["#", "epoch", "idea", "metric", "gain", "ideas", "time", "dollars", "id"]
    return Table("cost", title, caption, columns, rows, numeric=[0, 1, 3, 4, 5, 6, 7])


def _improvement_row(record: SearchRecord, number: int, one: Improvement) -> Row:
    experiment = one.at.experiment
    gain = Cell("–") if one.gain is None else Cell(format_number(one.gain), one.gain)
    return Row(
        [
            Cell(str(number), number),
            Cell(str(record.epoch_of[experiment.id]), record.epoch_of[experiment.id]),
            Cell(idea_title(experiment.idea.text, 70)),
            Cell(format_number(experiment.metric), experiment.metric),
            gain,
            Cell(str(one.ideas), one.ideas),
            Cell(time_spent(one.hours, one.ideas), one.hours * 3600),
            _dollars(record, one.dollars),
            Cell(short_id(experiment.id)),
        ]
    )


def _per_improvement(record: SearchRecord, found: Sequence[Improvement]) -> Row:
    """Return all that the search spent, also after its last improvement, by their number."""
    *_, total = spending(record)
    number = len(found)
    dollars = None if total.dollars is None else total.dollars / number
    return Row(
        [
            Cell(""),
            Cell(""),
            Cell("all that was spent, per improvement", is_bold=True),
            Cell(""),
            Cell(""),
            Cell(f"{total.ideas / number:.1f}", total.ideas / number),
            Cell(
                time_spent(total.hours / number, math.ceil(total.ideas / number)),
                total.hours / number * 3600,
            ),
            _dollars(record, dollars),
            Cell(""),
        ]
    )


def _dollars(record: SearchRecord, dollars: Decimal | None) -> Cell:
    if dollars is None:
        return Cell("unknown")
    if not is_paid(record):
        return Cell("0", 0.0)
    return Cell(f"{dollars:.2f}" if dollars >= 1 else f"{dollars:.4f}", float(dollars))


def time_spent(hours: float, results: int) -> str:
    """Return the time of some results: `2 s`, `31 min 05 s`, or what it was less than.

    The time of each is known in whole seconds, so that of `results` short ones may add up to 0.
    """
    if hours == 0 and results:
        return f"< {format_seconds(max(1.0, results / 2))}"
    return format_seconds(hours * 3600)


def cost_figure(searches: Sequence[Named]) -> Figure:
    """Return the best so far against hours, and against dollars where models cost some."""
    title = "Best so far by what was spent"
    panels = []
    for record, label, color in searches:
        found = [s for s in spending(record) if is_scored(s.experiment)]
        if not found:
            continue
        best = best_so_far(record.direction, [s.experiment.metric for s in found])
        panels.append(
            _cost_panel(record, label, record.hours_name, [s.hours for s in found], best, color)
        )
        dollars = [float(s.dollars) for s in found if s.dollars is not None]
        if is_paid(record) and len(dollars) == len(found):
            panels.append(_cost_panel(record, label, "dollars", dollars, best, color))
    if not panels:
        return Figure("spending", title, absent="No idea of these searches has a result yet.")
    caption = ""
    if not any(is_paid(record) for record, _, _ in searches):
        caption = (
            "The models of these searches are offline and cost nothing, so dollars are left out."
        )
    elif any(is_paid(r) and any(p.dollars is None for p in r.payments) for r, _, _ in searches):
        caption = "A search whose models have no known price has no panel of dollars."
    return Figure("spending", title, caption, panels)


def _cost_panel(
    record: SearchRecord,
    label: str,
    unit: str,
    x: Sequence[float],
    best: Sequence[float | None],
    color: int,
) -> Panel:
    series = [Series("best so far", "steps", x, best, color)]
    return Panel(label, unit, record.metric_label, series, level(record))
