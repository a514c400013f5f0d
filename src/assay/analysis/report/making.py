"""Make a report of records: which figures and tables it has, and in which order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from assay.analysis.report import (
    claims,
    idea_figures,
    paper_tables,
    search_figures,
    spending,
    winners,
)
from assay.analysis.report.content import Fact, Report, Section, Summary
from assay.analysis.report.record import SearchRecord, counts_as_tried, is_scored
from assay.analysis.report.search_figures import Named, named
from assay.analysis.rows import leads
from assay.analysis.standing import Claim, best_result, standing
from assay.analysis.text import counted, format_number
from assay.contracts.batch import ExperimentBody
from assay.domain.metrics import Direction


@dataclass(frozen=True)
class Choices:
    """What records do not hold: themes of figure 7 by name, and results of people for table 1."""

    themes: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    experts: Mapping[str, float] = field(default_factory=dict)


def make_report(records: Sequence[SearchRecord], choices: Choices | None = None) -> Report:
    """Return the report of one or more searches. The same records give the same report."""
    chosen = choices or Choices()
    searches = named(records)
    sections = [
        Section(
            "Results",
            [
                paper_tables.summary_table(searches, chosen.experts),
                search_figures.climb(searches),
                search_figures.models(searches),
                search_figures.epochs(searches),
                search_figures.against_best_of_n(searches),
            ],
        ),
        Section(
            "What may be claimed", [claims.claims_table(searches), claims.claims_figure(searches)]
        ),
        Section("What it cost", [spending.cost_table(searches), spending.cost_figure(searches)]),
        Section(
            "What the ideas are about",
            [
                paper_tables.classes(searches),
                idea_figures.lengths(searches),
                idea_figures.convergence(searches, chosen.themes),
                idea_figures.diversity(searches),
            ],
        ),
        Section("Examples", [paper_tables.examples(searches), *paper_tables.outcomes(searches)]),
    ]
    found = (winners.winner(record, label) for record, label, _ in searches)
    number = counted(len(records), "search", "searches")
    return Report(
        title=f"Report of {number}" if len(records) != 1 else f"Report of {records[0].search.id}",
        as_of=_as_of(records).isoformat(),
        summaries=[_summary(each) for each in searches],
        sections=sections,
        winners=[one for one in found if one is not None],
    )


def _as_of(records: Sequence[SearchRecord]) -> datetime:
    """Return the latest moment that the records tell of."""
    moments = [m for r in records for m in (r.search.created_at, r.search.finished_at)]
    moments += [e.finished_at for r in records for e in r.experiments]
    return max(moment for moment in moments if moment is not None)


def _summary(each: Named) -> Summary:
    record, label, _ = each
    search = record.search
    tried = [e for e in record.experiments if counts_as_tried(e)]
    scored = [e for e in tried if is_scored(e)]
    best = best_result(record.experiments, record.direction)
    found = None if best is None else standing(best)
    baseline = record.baseline
    better, judged, by_luck = leads(record.experiments)
    confirmed = sum(bool(e.confirmation and e.confirmation.claimed) for e in record.experiments)
    spent = [*spending.spending(record)]
    facts = [
        Fact(
            f"best {found.metric_name if found else record.environment.metric}",
            format_number(found.metric if found else None),
            _standing(record, best),
        ),
        Fact(
            "baseline",
            format_number(baseline.mean if baseline else None),
            _of_baseline(record),
        ),
        Fact(
            "ideas",
            f"{len(scored)}/{len(tried)}",
            f"came to a result ({_percent(len(scored), len(tried))})",
        ),
        Fact("leads", str(better), f"of {judged} judged; luck alone gives {by_luck:.1f}"),
        Fact("confirmed", str(confirmed), "may be claimed to be better"),
        Fact(
            "GPU time" if record.gpus else "worker time",
            spending.time_spent(spent[-1].hours, spent[-1].ideas) if spent else "0 s",
            "of the ideas' measurements, without the baseline's and confirmations",
        ),
        _paid(record),
    ]
    state = "" if search.state == "finished" else f" It is {search.state}."
    headline = (
        f"{search.strategy} on {record.task}: {counted(len(record.epochs), 'epoch')} of up to "
        f"{counted(search.batch_size, 'idea')} by {record.models}.{state}"
    )
    return Summary(search.id, label, headline, facts, _warnings(record))


def _standing(record: SearchRecord, best: ExperimentBody | None) -> str:
    """Return what may be said of the best, and of another one that the search saw as better."""
    if best is None:
        return "no result yet"
    said = standing(best).in_words
    top = record.best_metric(record.experiments)
    if top is None or top == best.metric:
        return said
    which = "highest" if record.direction is Direction.MAXIMIZE else "lowest"
    other = next(e for e in record.experiments if is_scored(e) and e.metric == top)
    claim = standing(other).claim
    rest = "confirmed with a smaller effect" if claim is Claim.CONFIRMED else f"{claim.value}"
    return f"{said}; the {which} in the search, {format_number(top)}, is {rest}"


def _of_baseline(record: SearchRecord) -> str:
    baseline = record.baseline
    if baseline is None:
        return "not measured"
    spread = "" if baseline.spread is None else f" ± {format_number(baseline.spread)}"
    return f"{spread} over {counted(baseline.n, 'seed')}".strip()


def _paid(record: SearchRecord) -> Fact:
    if not spending.is_paid(record):
        return Fact("dollars", "0", "the models are offline")
    if any(payment.dollars is None for payment in record.payments):
        return Fact("dollars", "unknown", "the price of a model is not known")
    whole = sum(float(payment.dollars or 0) for payment in record.payments)
    by = {p.whose: 0.0 for p in record.payments}
    for payment in record.payments:
        by[payment.whose] += float(payment.dollars or 0)
    told = ", ".join(f"{value:.2f} by the {whose}" for whose, value in sorted(by.items()))
    return Fact("dollars", f"{whole:.2f}", told)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def _warnings(record: SearchRecord) -> list[str]:
    found = []
    if record.search.state == "running":
        found.append("The search is not finished: numbers will change.")
    if record.baseline is not None and record.baseline.pending:
        pending = counted(record.baseline.pending, "seed")
        found.append(f"Verdicts are provisional: {pending} of the baseline to come.")
    classes = {(e.batch.hardware_class, e.batch.conditions) for e in record.epochs}
    if len(classes) > 1:
        found.append(
            "Epochs were measured under different conditions, so their metrics do not compare "
            "exactly; verdicts are each against a baseline of the same conditions."
        )
    worn = [split.name for split in record.environment.splits if split.worn]
    if worn:
        found.append(
            f"Worn held-out split: {', '.join(worn)}. Ideas may have adapted to it, so trust "
            "confirmed results alone."
        )
    return found
