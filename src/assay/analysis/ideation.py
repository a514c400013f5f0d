"""Ideators and executors compared: what `assay bench ideation` shows (docs/bench.md).

An idea counts as tried if it was scored, or failed for a reason that may lie with the idea or its
code. What failed because of a host, a provider or a cap says nothing of the models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from rich.table import Table

from assay.analysis.tables import cell, table
from assay.analysis.text import clean, format_number
from assay.contracts.batch import BaselineSummary, ExperimentBody, Usage
from assay.domain import intervals
from assay.domain.failure_codes import Blame, rules_for
from assay.domain.intervals import Estimate
from assay.domain.isolation import is_offline
from assay.domain.metrics import Direction, best
from assay.domain.states import ExperimentState
from assay.search.ideation import Outcome, PairOutcome

#: Failures that are counted against the ideator and the executor.
_TRIED = (Blame.IDEA, Blame.UNCLEAR)
_LEAD = (
    "best: the best of as many results as were scored, uncorrected, so it was lucky, too. It is a "
    "lead: confirm it with `assay experiment confirm`."
)
_INTERVALS = (
    "Intervals are 95 %: Wilson's for rates; Student's t over ideas for means, which says nothing "
    "of other environments."
)
_OFFLINE = "Offline stand-ins are programs, not language models: their rows compare no models."


@dataclass(frozen=True)
class Spent:
    """What calls of a model used; dollars are None where a price is unknown."""

    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: str | None


@dataclass(frozen=True)
class PairRow:
    """An ideator's ideas, implemented by one executor.

    `not_tried`: failures that are not counted, by code, and ideas without an end.
    `best_experiment` is a lead. `executor_spent` leaves the ideator out.
    """

    ideator: str
    executor: str
    execution: str
    ideas: int
    tried: int
    scored: int
    completion: Estimate | None
    metric_mean: Estimate | None
    best: float | None
    best_experiment: str | None
    verdicts: Mapping[str, int]
    failures: Mapping[str, int]
    not_tried: Mapping[str, int]
    executor_spent: Spent
    batches: Sequence[str]
    conditions: Sequence[str]


@dataclass(frozen=True)
class IdeatorRow:
    """What an ideator's ideas cost, once for all executors."""

    ideator: str
    search: str
    ideas: int
    spent: Spent


@dataclass(frozen=True)
class SameIdeas:
    """The ideas of a model, implemented by itself and by another executor, idea by idea.

    `completion_difference`: own minus other. `metric_difference`: own minus other over the ideas
    that both completed, in units of the metric.
    """

    ideator: str
    other_executor: str
    own: Estimate | None
    other: Estimate | None
    completion_difference: Estimate | None
    metric_difference: Estimate | None


@dataclass(frozen=True)
class SameExecutor:
    """A model that implements its own ideas, and those of others: different ideas.

    `completion_difference`: own minus others'.
    """

    executor: str
    own: Estimate | None
    others: Estimate | None
    completion_difference: Estimate | None


@dataclass(frozen=True)
class IdeationReport:
    """All of a benchmark."""

    benchmark: str
    environment: str
    profile: str
    hardware_classes: Sequence[str]
    metric: str
    direction: str
    baseline_mean: float | None
    baseline_spread: float | None
    baseline_n: int
    seeds: Sequence[int]
    pairs: Sequence[PairRow]
    ideators: Sequence[IdeatorRow]
    same_ideas: Sequence[SameIdeas]
    same_executor: Sequence[SameExecutor]
    cost_usd: str | None
    unfinished: Sequence[str]


def ideation_report(outcome: Outcome, metric: str, direction: Direction) -> IdeationReport:
    """Compare the pairs of a benchmark, finished or not."""
    plan, pairs = outcome.plan, outcome.pairs
    ideators = [
        IdeatorRow(
            ideator,
            search.id,
            max((len(p.experiments) for p in pairs if p.ideator == ideator), default=0),
            _spent([search.ideator_usage]),
        )
        for ideator, search in outcome.searches.items()
    ]
    rows = [_pair_row(pair, direction) for pair in pairs]
    costs = [row.spent.cost_usd for row in ideators] + [r.executor_spent.cost_usd for r in rows]
    batches = [batch for pair in pairs for batch in pair.batches]
    baseline = next((b.baseline for b in batches if b.baseline is not None), None)
    measured = baseline or BaselineSummary(mean=None, spread=None, n=0, pending=0)
    return IdeationReport(
        benchmark=plan.id,
        environment=plan.environment,
        profile=plan.profile,
        hardware_classes=sorted({batch.hardware_class for batch in batches}),
        metric=metric,
        direction=direction.value,
        baseline_mean=measured.mean,
        baseline_spread=measured.spread,
        baseline_n=measured.n,
        seeds=plan.options.seeds,
        pairs=rows,
        ideators=ideators,
        same_ideas=_same_ideas(pairs),
        same_executor=_same_executor(pairs),
        cost_usd=_sum(costs),
        unfinished=outcome.unfinished,
    )


def _pair_row(pair: PairOutcome, direction: Direction) -> PairRow:
    experiments = list(pair.experiments.values())
    scored = [e for e in experiments if _is_scored(e)]
    tried = [e for e in experiments if _is_tried(e)]
    metrics = {e.id: e.metric for e in scored if e.metric is not None}
    top = best(direction, list(metrics.values())) if metrics else None
    failed = Counter(_ending(e) for e in tried if not _is_scored(e))
    return PairRow(
        ideator=pair.ideator,
        executor=pair.executor,
        execution="self" if pair.ideator == pair.executor else "cross",
        ideas=len(experiments),
        tried=len(tried),
        scored=len(scored),
        completion=intervals.rate(len(scored), len(tried)),
        metric_mean=intervals.mean(list(metrics.values())),
        best=top,
        best_experiment=next((id_ for id_, metric in metrics.items() if metric == top), None),
        verdicts=_counts(e.comparison.verdict if e.comparison else "none" for e in scored),
        failures=_counts(failed.elements()),
        not_tried=_counts(_ending(e) for e in experiments if not _is_tried(e)),
        executor_spent=_spent([batch.usage for batch in pair.batches]),
        batches=[batch.id for batch in pair.batches],
        conditions=sorted({batch.conditions or "unrecorded" for batch in pair.batches}),
    )


def _counts(of: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(of).items(), key=lambda item: (-item[1], item[0])))


def _is_scored(experiment: ExperimentBody) -> bool:
    return experiment.state == ExperimentState.SUCCEEDED


def _is_tried(experiment: ExperimentBody) -> bool:
    if experiment.failure is None:
        return _is_scored(experiment)
    return rules_for(experiment.failure.code, experiment.failure.stage).blame in _TRIED


def _ending(experiment: ExperimentBody) -> str:
    return experiment.failure.code if experiment.failure else experiment.state


def _spent(usages: Iterable[Usage]) -> Spent:
    used = list(usages)
    return Spent(
        sum(each.calls for each in used),
        sum(each.input_tokens for each in used),
        sum(each.output_tokens for each in used),
        _sum([each.cost_usd for each in used]),
    )


def _sum(costs: Sequence[str | None]) -> str | None:
    known = [Decimal(cost) for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    return f"{sum(known, Decimal(0)).normalize():f}"


def _same_ideas(pairs: Sequence[PairOutcome]) -> list[SameIdeas]:
    by_pair = {(pair.ideator, pair.executor): pair for pair in pairs}
    found = []
    for pair in pairs:
        own = by_pair.get((pair.ideator, pair.ideator))
        if own is not None and pair is not own:
            found.append(_compare(own.experiments, pair))
    return found


def _compare(own: Mapping[int, ExperimentBody], pair: PairOutcome) -> SameIdeas:
    """Both rates are of the ideas that both tried."""
    common = [
        (own[place], other)
        for place, other in pair.experiments.items()
        if place in own and _is_tried(own[place]) and _is_tried(other)
    ]
    table_ = Counter((_is_scored(one), _is_scored(other)) for one, other in common)
    both, first = table_[True, True], table_[True, False]
    last, neither = table_[False, True], table_[False, False]
    metrics = [
        one.metric - other.metric
        for one, other in common
        if one.metric is not None and other.metric is not None
    ]
    return SameIdeas(
        ideator=pair.ideator,
        other_executor=pair.executor,
        own=intervals.rate(both + first, len(common)),
        other=intervals.rate(both + last, len(common)),
        completion_difference=intervals.paired_difference_of_rates(both, first, last, neither),
        metric_difference=intervals.mean(metrics),
    )


def _same_executor(pairs: Sequence[PairOutcome]) -> list[SameExecutor]:
    found = []
    for executor in dict.fromkeys(pair.executor for pair in pairs):
        own, others = [0, 0], [0, 0]
        for pair in pairs:
            if pair.executor == executor:
                side = own if pair.ideator == executor else others
                side[0] += sum(map(_is_scored, pair.experiments.values()))
                side[1] += sum(map(_is_tried, pair.experiments.values()))
        if own[1] and others[1]:
            difference = intervals.difference_of_rates(own[0], own[1], others[0], others[1])
            found.append(
                SameExecutor(executor, intervals.rate(*own), intervals.rate(*others), difference)
            )
    return found


def ideation_tables(report: IdeationReport) -> list[Table | str]:
    """The report for a terminal: tables, then what to know of them."""
    made: list[Table | str] = [_pairs(report), _cost(report)]
    if report.same_ideas or report.same_executor:
        made.append(_self_against_cross(report))
    made.append("\n".join(_notes(report)))
    return made


def _pairs(report: IdeationReport) -> Table:
    baseline = f"baseline {format_number(report.baseline_mean)}"
    if report.baseline_spread is not None:
        baseline += f" ± {format_number(report.baseline_spread)} ({report.baseline_n} seeds)"
    hardware = ", ".join(report.hardware_classes)
    made = table(
        "ideator → executor", "scored", "completion", "mean", "best (a lead)", "verdicts",
        title=clean(
            f"{report.environment}, {report.profile}, {hardware}: {report.metric}, "
            f"{report.direction}; {baseline}"
        ),
        right=["scored", "best (a lead)"],
    )  # fmt: skip
    for row in report.pairs:
        made.add_row(
            cell(clean(f"{row.ideator} → {row.executor}")),
            cell(f"{row.scored}/{row.tried}"),
            cell(_percent(row.completion)),
            cell(_number(row.metric_mean)),
            cell(format_number(row.best)),
            cell(", ".join(f"{n} {verdict}" for verdict, n in row.verdicts.items()) or "–"),
        )
    return made


def _cost(report: IdeationReport) -> Table:
    right = ["ideas", "calls", "tokens in", "tokens out", "USD"]
    made = table("who", "for", *right, title="What the calls used", right=right)

    def add(who: str, what: str, ideas: int, spent: Spent) -> None:
        cost = "unknown" if spent.cost_usd is None else spent.cost_usd
        tokens = (f"{spent.input_tokens:,}", f"{spent.output_tokens:,}")
        made.add_row(*map(cell, (clean(who), clean(what), ideas, spent.calls, *tokens, cost)))

    for ideator in report.ideators:
        add(ideator.ideator, "its ideas", ideator.ideas, ideator.spent)
    for pair in report.pairs:
        add(pair.executor, f"ideas of {pair.ideator}", pair.ideas, pair.executor_spent)
    return made


def _self_against_cross(report: IdeationReport) -> Table:
    made = table(
        "compared", "own", "other", "difference", f"difference in {clean(report.metric)}",
        title="Self against cross: completion, own minus other",
    )  # fmt: skip
    for same in report.same_ideas:
        what = f"ideas of {same.ideator}: by itself, by {same.other_executor}"
        sides = (_percent(same.own), _percent(same.other), _points(same.completion_difference))
        made.add_row(*map(cell, (clean(what), *sides, _number(same.metric_difference, "+"))))
    for by in report.same_executor:
        what = f"code by {by.executor}: own ideas, ideas of others"
        sides = (_percent(by.own), _percent(by.others), _points(by.completion_difference))
        made.add_row(*map(cell, (clean(what), *sides, "–")))
    return made


def _notes(report: IdeationReport) -> list[str]:
    notes = [_INTERVALS, _LEAD]
    for row in report.pairs:
        if row.not_tried:
            codes = ", ".join(f"{n} {code}" for code, n in row.not_tried.items())
            notes.append(clean(f"{row.ideator} → {row.executor}: not counted: {codes}"))
    if len({conditions for row in report.pairs for conditions in row.conditions}) > 1:
        notes.append("The pairs were measured under different conditions: compare no metrics.")
    names = [name for row in report.pairs for name in (row.ideator, row.executor)]
    if any(map(is_offline, names)):
        notes.append(_OFFLINE)
    notes += [clean(f"Not complete: {each}") for each in report.unfinished]
    return notes


def _percent(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{found.value:.0%} [{found.low or 0:.0%}, {found.high or 0:.0%}]"


def _points(found: Estimate | None) -> str:
    if found is None:
        return "–"
    return f"{found.value:+.0%} [{found.low or 0:+.0%}, {found.high or 0:+.0%}], n {found.n}"


def _number(found: Estimate | None, sign: str = "") -> str:
    if found is None:
        return "–"

    def written(value: float) -> str:
        return ("+" if sign and value > 0 else "") + format_number(value)

    if found.low is None or found.high is None:
        return f"{written(found.value)}, n {found.n}"
    return f"{written(found.value)} [{written(found.low)}, {written(found.high)}], n {found.n}"
