"""Figures about results: models (2), epochs (3), best-of-n (4), and what the best cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from assay.analysis.report.content import Figure, Level, Panel, Series
from assay.analysis.report.record import (
    SearchRecord,
    counts_as_tried,
    is_scored,
    labels,
    mean,
    metrics,
)
from assay.contracts.batch import ExperimentBody
from assay.domain.metrics import Direction, is_better

#: Fewer results than this are all shown where they are.
_FEW = 8
#: Results this many interquartile ranges outside of the middle half are far outside.
_FAR = 3.0

#: What a search is drawn with: its record, its label, and the index of its colour.
Named = tuple[SearchRecord, str, int]


def named(records: Sequence[SearchRecord]) -> list[Named]:
    """Return the records with what tells them apart in every figure."""
    return [
        (r, label, n) for n, (r, label) in enumerate(zip(records, labels(records), strict=True))
    ]


def by_task(searches: Sequence[Named]) -> list[list[Named]]:
    """Return the searches of each environment and profile together, in order."""
    groups: dict[tuple[str, str], list[Named]] = {}
    for each in searches:
        groups.setdefault(each[0].task_key, []).append(each)
    return list(groups.values())


def level(record: SearchRecord, spread: bool = True) -> Level | None:
    """Return the line of the baseline, with its spread over seeds."""
    baseline = record.baseline
    if baseline is None or baseline.mean is None:
        return None
    return Level("baseline", baseline.mean, baseline.spread if spread else None)


def best_so_far(direction: Direction, values: Iterable[float | None]) -> list[float | None]:
    """Return the best of the values up to each; None before the first."""

    found: list[float | None] = []
    best: float | None = None
    for value in values:
        if value is not None and math.isfinite(value):
            best = value if best is None or is_better(direction, value, best) else best
        found.append(best)
    return found


def models(searches: Sequence[Named]) -> Figure:
    """Figure 2: completion rate, average and best of ideas that were proposed without results."""
    title = "Models as ideators and executors"
    panels = []
    for group in by_task(searches):
        first = group[0][0]
        bars: dict[str, list[ExperimentBody]] = {}
        for record, _, _ in group:
            if not record.search.config.get("warm_start"):
                found = (e for e in record.experiments if e.idea.operator == "seed")
                bars.setdefault(record.models, []).extend(filter(counts_as_tried, found))
        bars = {name: tried for name, tried in bars.items() if tried}
        if not bars:
            continue
        ticks = [f"{name}\nn = {len(tried)}" for name, tried in bars.items()]
        scored = [[e for e in tried if is_scored(e)] for tried in bars.values()]
        shares = [len(s) / len(t) for s, t in zip(scored, bars.values(), strict=True)]
        averages = [mean(metrics(s)) for s in scored]
        bests = [first.best_metric(s) for s in scored]
        task = first.task
        panels += [
            _bars(f"Completion rate\n{task}", "ideas with a result", ticks, shares, is_share=True),
            _bars(f"Average\n{task}", first.metric_label, ticks, averages, level(first)),
            _bars(f"Best\n{task}", first.metric_label, ticks, bests, level(first)),
        ]
    if not panels:
        why = (
            "No idea of these searches was proposed without earlier results (operator `seed`, and "
            "no warm start), and only such ideas compare models."
        )
        return Figure("figure-2", title, absent=why)
    caption = (
        "Ideas that were proposed before any result was seen: those of operator `seed`. The "
        "completion rate is the share with a valid result; average and best are of these. "
        "The line is the baseline, the band its spread over seeds."
    )
    return Figure("figure-2", title, caption, panels, columns=3)


def _bars(
    title: str,
    y_label: str,
    ticks: Sequence[str],
    values: Sequence[float | None],
    line: Level | None = None,
    *,
    is_share: bool = False,
) -> Panel:
    series = [
        Series(tick.partition("\n")[0], "bars", [n], [value], n)
        for n, (tick, value) in enumerate(zip(ticks, values, strict=True))
    ]
    return Panel(
        title, "", y_label, series, line, ticks=ticks, is_share=is_share, from_zero=is_share
    )


def epochs(searches: Sequence[Named]) -> Figure:
    """Figure 3: the best of each epoch, and the best so far."""
    title = "Best of each epoch"
    panels = []
    for group in by_task(searches):
        series = []
        for record, label, color in group:
            found = [(e.number, record.best_metric(e.experiments)) for e in record.epochs]
            if any(value is not None for _, value in found):
                x, y = [float(n) for n, _ in found], [value for _, value in found]
                so_far = best_so_far(record.direction, y)
                series.append(Series(label, "line", x, y, color))
                series.append(Series("", "steps", x, so_far, color, is_faint=True))
                series += _confirmed_stars(record, color)
        if series:
            first = group[0][0]
            panels.append(
                Panel(first.task, "epoch", first.metric_label, series, level(first), is_whole=True)
            )
    if not panels:
        return Figure("figure-3", title, absent="No idea of these searches has a result yet.")
    caption = (
        "The dotted line is the best so far. The best of many results is partly luck, so it is a "
        "lead; stars are results that may be claimed after they were confirmed on fresh seeds. "
        "Stars, too, are at what the search measured; the confirmed effects are below."
    )
    return Figure("figure-3", title, caption, panels)


def _confirmed_stars(record: SearchRecord, color: int) -> list[Series]:
    found = [
        (float(record.epoch_of[e.id]), e.metric)
        for e in record.experiments
        if e.confirmation and e.confirmation.claimed and is_scored(e)
    ]
    if not found:
        return []
    return [Series("confirmed", "stars", [x for x, _ in found], [y for _, y in found], color)]


def against_best_of_n(searches: Sequence[Named]) -> Figure:
    """Figure 4: search and best-of-n after the same number of ideas."""
    title = "Search and best-of-n at equal budget"
    panels = [
        _equal_budget(search, control)
        for search in searches
        for control in searches
        if control[0].is_best_of_n
        and not search[0].is_best_of_n
        and control[0].task_key == search[0].task_key
        and control[0].models == search[0].models
        and control[0].search.base == search[0].search.base
    ]
    drawn = [panel for panel in panels if panel is not None]
    if not drawn:
        return Figure("figure-4", title, absent=_no_control(searches))
    caption = (
        "Best so far after N ideas, where N grows by the search's batch size; the budget is the "
        "number of ideas, as in the paper. Both lines end where the smaller budget does."
    )
    return Figure("figure-4", title, caption, drawn)


def _no_control(searches: Sequence[Named]) -> str:
    if not any(record.is_best_of_n for record, _, _ in searches):
        return (
            "None of the searches is a best-of-n one. Give one of the same environment, profile "
            "and models beside it: assay search start … --strategy best-of-n"
        )
    if all(record.is_best_of_n for record, _, _ in searches):
        return "All of the searches are best-of-n ones. Give one that looks at results beside it."
    return (
        "No best-of-n search has the environment, profile, base and models of another search and "
        "results on both sides, so there is no pair at equal budget."
    )


def _equal_budget(search: Named, control: Named) -> Panel | None:
    step = max(1, search[0].search.batch_size)
    values = {1: _tried_metrics(search[0]), 0: _tried_metrics(control[0])}
    most = min(map(len, values.values()))
    budgets = list(range(step, most + 1, step)) or ([most] if most else [])
    series = []
    # As in the paper: best-of-n is blue, search is red.
    for key, (record, _, _) in ((1, search), (0, control)):
        so_far = best_so_far(record.direction, values[key])
        y = [so_far[n - 1] for n in budgets]
        if all(value is None for value in y):
            return None
        label = "best-of-n" if record.is_best_of_n else record.search.strategy
        series.append(Series(label, "line", [float(n) for n in budgets], y, key))
    if not budgets:
        return None
    record = search[0]
    title = f"{record.task}\n{record.models}"
    return Panel(title, "ideas", record.metric_label, series, level(record), is_whole=True)


def _tried_metrics(record: SearchRecord) -> list[float | None]:
    """Return the metric of each idea in the order of ideas; those without a result count, too."""
    tried = (e for e in record.experiments if counts_as_tried(e))
    return [e.metric if is_scored(e) else None for e in tried]


def _middle(record: SearchRecord) -> tuple[float, float] | None:
    """Return the range that shows results well: without those far outside of the others."""
    found = sorted(metrics(record.experiments))
    baseline = level(record)
    if len(found) < _FEW:
        return None
    low, high = found[len(found) // 4], found[-1 - len(found) // 4]
    reach = _FAR * (high - low)
    inside = [v for v in found if low - reach <= v <= high + reach] or found
    # The best is what the figure is about, however far it is from the others.
    kept = [inside[0], inside[-1], record.best_metric(record.experiments) or inside[0]]
    if baseline is not None:
        spread = baseline.spread or 0.0
        kept += [baseline.value - spread, baseline.value + spread]
    margin = 0.05 * (max(kept) - min(kept)) or 1.0
    return min(kept) - margin, max(kept) + margin


def climb(searches: Sequence[Named]) -> Figure:
    """Every experiment as a mark, in the order of ideas, with the best so far."""
    title = "Every experiment"
    panels = []
    for record, label, color in searches:
        found = [(n, e) for n, e in enumerate(record.experiments, 1) if is_scored(e)]
        if not found:
            continue
        x = [float(n) for n, _ in found]
        y = [e.metric for _, e in found]
        failed = [float(n) for n, e in enumerate(record.experiments, 1) if e.state == "failed"]
        series = [
            Series("result", "points", x, y, color, is_faint=True),
            Series("best so far", "steps", x, best_so_far(record.direction, y), color),
        ]
        stars = [
            (float(n), e.metric) for n, e in found if e.confirmation and e.confirmation.claimed
        ]
        if stars:
            series.append(
                Series("confirmed", "stars", [n for n, _ in stars], [v for _, v in stars], color)
            )
        if failed:
            series.append(
                Series(f"failed ({len(failed)})", "crosses", failed, [None] * len(failed), color)
            )
        panels.append(
            Panel(
                label, "ideas", record.metric_label, series, level(record),
                is_whole=True, y_range=_middle(record),
            )
        )  # fmt: skip
    if not panels:
        return Figure("climb", title, absent="No idea of these searches has a result yet.")
    caption = (
        "Ideas in the order in which they were proposed. Results far outside of the others are "
        "drawn as triangles at the edge. Crosses at the bottom are ideas that failed. Stars are "
        "confirmed results, at what the search measured."
    )
    return Figure("climb", title, caption, panels)
