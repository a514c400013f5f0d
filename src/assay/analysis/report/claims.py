"""What a search called better, beside what confirmations on fresh seeds found."""

from __future__ import annotations

from collections.abc import Sequence

from assay.analysis.report.content import Cell, Figure, Panel, Row, Series, Table
from assay.analysis.report.record import SearchRecord
from assay.analysis.report.search_figures import Named
from assay.analysis.rows import leads, rank
from assay.analysis.text import (
    counted,
    format_effect,
    format_number,
    idea_title,
    short_id,
)
from assay.contracts.batch import ConfirmationBody, ExperimentBody

_UNCONFIRMED = (
    "Nothing of these searches was confirmed, so nothing may be claimed. Confirm the best leads: "
    "assay experiment confirm EXPERIMENT… --seeds 5"
)


def claims_table(searches: Sequence[Named]) -> Table:
    """Return each confirmed result with its claimed and its confirmed effect."""
    title = "Claimed and confirmed"
    rows = []
    for record, label, _ in searches:
        found = _confirmed(record)
        if found:
            rows.append(Row(heading=f"{label}: {record.task}; {_standing(record)}"))
            rows += [_row(experiment, confirmation) for experiment, confirmation in found]
    if not rows:
        told = "; ".join(f"{label}: {_standing(record)}" for record, label, _ in searches)
        return Table("claims", title, absent=f"{_UNCONFIRMED}. {told}.")
    caption = (
        "The claimed effect is what the search measured, on the seeds and the split that selected "
        "the result. The confirmed one is on fresh seeds, and on the sealed split where there is "
        "one. Holm's procedure over all that are confirmed together decides what may be claimed. "
        "The gap is the claimed effect less the confirmed one."
    )
    columns = ["idea", "claimed effect [95 %]", "confirmed effect [95 %]", "gap", "may be claimed"]
    return Table("claims", title, caption, [*columns, "id"], rows, numeric=[1, 2, 3])


def _confirmed(record: SearchRecord) -> list[tuple[ExperimentBody, ConfirmationBody]]:
    ranked = rank(record.experiments, record.direction)
    return [(e, e.confirmation) for e in ranked if e.confirmation is not None]


def _standing(record: SearchRecord) -> str:
    better, judged, by_luck = leads(record.experiments)
    confirmed = sum(bool(e.confirmation and e.confirmation.claimed) for e in record.experiments)
    return (
        f"{counted(better, 'lead')} of {judged} judged (luck alone: {by_luck:.1f}), "
        f"{confirmed} confirmed"
    )


def _row(experiment: ExperimentBody, found: ConfirmationBody) -> Row:
    decided = {True: "yes", False: "no", None: f"not decided ({found.state})"}[found.claimed]
    claimed, confirmed = experiment.comparison, found.comparison
    return Row(
        [
            Cell(idea_title(experiment.idea.text, 70)),
            Cell(format_effect(claimed), claimed.effect if claimed else None),
            Cell(format_effect(confirmed), confirmed.effect if confirmed else None),
            Cell(format_number(found.gap), found.gap),
            Cell(decided, is_bold=found.claimed is True),
            Cell(short_id(experiment.id)),
        ]
    )


def claims_figure(searches: Sequence[Named]) -> Figure:
    """Return the confirmed effects against the claimed ones."""
    title = "Claimed and confirmed effects"
    panels = []
    for record, label, color in searches:
        pairs = [
            (e.comparison, c.comparison)
            for e, c in _confirmed(record)
            if e.comparison is not None and c.comparison is not None
        ]
        if not pairs:
            continue
        x = [claimed.effect for claimed, _ in pairs]
        y = [confirmed.effect for _, confirmed in pairs]
        low = [confirmed.low for _, confirmed in pairs]
        high = [confirmed.high for _, confirmed in pairs]
        series = [Series("confirmed result", "points", x, y, color, low, high)]
        panels.append(
            Panel(
                f"{label}\n{record.task}", "claimed effect", "confirmed effect", series,
                diagonal=True,
            )
        )  # fmt: skip
    if not panels:
        return Figure("claims", title, absent=_UNCONFIRMED)
    caption = (
        "On the diagonal a confirmation found what was claimed; below it, less. Bars are 95 % "
        "intervals of the confirmed effect. Positive effects are improvements."
    )
    return Figure("claims", title, caption, panels)
