"""Tables for a terminal (rich). Every cell is plain text: model text never becomes markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from assay.analysis.rows import best_rows, experiment_rows, failure_rows, further_metrics
from assay.contracts.batch import ExperimentBody
from assay.contracts.search import BestOfEpoch
from assay.domain.metrics import Direction

_STYLE = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
    "running": "cyan",
    "better": "bold green",
    "worse": "red",
}
#: Columns that give way where a terminal is narrow.
_WRAPPED = frozenset(
    {
        *(
            "idea",
            "what happened",
            "found",
            "title",
            "profiles",
            "sandbox",
            "Model name",
            "ideator → executor",
        ),
        *("facts", "workers", "because of", "evidence", "why it waits"),
    }
)
#: From these widths on there is room for the verdict in words, and for ids.
_VERDICT_WIDTH, _ID_WIDTH = 100, 120
#: What the columns about confirmations take, and one of a further metric.
_CONFIRMED_WIDTH, _METRIC_WIDTH = 45, 14


def table(*columns: str, title: str | None = None, right: Iterable[str] = ()) -> Table:
    """An empty table in the house style; the columns in `right` are right-aligned."""
    numeric = set(right)
    made = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in numeric else "left",
            overflow="fold",
            no_wrap=column not in _WRAPPED,
        )
    return made


def cell(value: object) -> Text:
    """A cell without markup, coloured where the word has a colour."""
    text = str(value)
    return Text(text, style=_STYLE.get(text.partition(",")[0], ""))


def experiment_table(
    experiments: Iterable[ExperimentBody],
    direction: Direction,
    *,
    metric: str = "metric",
    title: str | None = None,
    width: int = 200,
) -> Table:
    """Ranked experiments: idea, state, metric, effect against the baseline, verdict, what it
    used beside the baseline, time.

    Where results were confirmed, which then ranks them, that stands beside the effect, with the
    gap between the two. Further metrics of the evaluator come last. `width` is what the table may
    take; a narrow one leaves out these, ids, then
    compute and the verdict in words, and beside confirmations also state and time.
    """
    experiments = list(experiments)
    is_confirmed = any(e.confirmation is not None for e in experiments)
    if is_confirmed:
        width -= _CONFIRMED_WIDTH
    is_wide = width >= _VERDICT_WIDTH
    columns = {"#": "rank", "idea": "title", "state": "state", metric: "metric"}
    columns["effect [95 %]"] = "effect"
    if is_confirmed:
        columns |= {"confirmed [95 %]": "confirmed", "gap": "gap"}
    if is_wide:
        columns["verdict"] = "verdict"
        if any(e.used is not None for e in experiments):
            columns["compute"] = "compute"
    columns["time"] = "time"
    if is_confirmed and not is_wide:
        del columns["state"], columns["time"]
    if width >= _ID_WIDTH:
        columns["id"] = "experiment"
    room = max(0, width - _ID_WIDTH) // _METRIC_WIDTH
    further = [name for name in further_metrics(experiments) if name not in columns][:room]
    right = ["#", metric, "gap", "compute", "time", *further]
    made = table(*columns, *further, title=title, right=right)
    for row in experiment_rows(experiments, direction):
        values = [getattr(row, name) for name in columns.values()]
        values += [row.metrics.get(name) for name in further]
        made.add_row(*(cell("–" if value is None else value) for value in values))
    return made


def failure_table(experiments: Iterable[ExperimentBody], *, title: str | None = None) -> Table:
    """Failed experiments: where they ended, and what happened there."""
    made = table("idea", "stage", "code", "what happened", "id", title=title)
    for row in failure_rows(experiments):
        made.add_row(*map(cell, (row.title, row.stage, row.code, row.message, row.experiment)))
    return made


def best_table(best: Sequence[BestOfEpoch], *, title: str | None = None) -> Table:
    """Best so far per finished epoch."""
    right = ["epoch", "scored", "best", "best so far"]
    made = table("epoch", "scored", "best", "best so far", "experiment", title=title, right=right)
    for row in best_rows(best):
        made.add_row(
            *map(cell, (row.epoch, row.scored, row.best, row.best_so_far, row.experiment))
        )
    return made
