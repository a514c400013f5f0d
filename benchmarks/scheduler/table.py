"""The table, the bars and the last line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from benchmarks.scheduler.measure import Summary
from benchmarks.scheduler.workloads import BUDGETS, KINDS

SATURATED, BATCH, CLAIRVOYANT, ALLOCATION, TICK = 1.05, 1.15, 1.05, 0.98, 1.0
CROWDED, UNEQUAL = 1.03, 0.01

Cell: TypeAlias = Callable[[Summary], str]


def _length(summary: Summary) -> str:
    return f"{summary.ratio:.3f} / {summary.ratio_95:.3f}"


def _allocation(summary: Summary) -> str:
    shares = (summary.fitting, summary.strict, summary.whole)
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def _wait(gpus: int) -> Cell:
    def cell(summary: Summary) -> str:
        found = summary.waits.get(gpus)
        return "" if found is None else " / ".join(f"{value / 3600:.2f}" for value in found)

    return cell


def _fairness(summary: Summary) -> str:
    return f"{summary.jain:.2f}"


def _grid(summaries: Sequence[Summary], title: str, cell: Cell, last: tuple[str, Cell]) -> str:
    """A row for each workload and cluster, a column for each policy, and one more about ours."""
    names = list(dict.fromkeys(summary.decider for summary in summaries))
    groups: dict[tuple[str, int], dict[str, Summary]] = {}
    for summary in summaries:
        groups.setdefault((summary.workload, summary.gpus), {})[summary.decider] = summary
    rows = [["workload", "GPUs", *names, last[0]], ["---"] * (len(names) + 3)]
    for (name, gpus), found in groups.items():
        cells = [cell(found[each]) if each in found else "" for each in names]
        if any(cells):
            rows.append([name, str(gpus), *cells, last[1](found["assay"])])
    return "\n".join([title, "", *("| " + " | ".join(row) + " |" for row in rows), ""])


def tables(summaries: Sequence[Summary]) -> str:
    """Markdown."""
    speed = ("decisions/s", lambda summary: f"{summary.decisions_per_second:,.0f}")
    against = (
        "assay / clairvoyant",
        lambda s: "" if s.clairvoyant is None else f"{s.clairvoyant:.3f}",
    )
    lost = ("lost % (assay)", lambda summary: f"{100 * summary.lost:.2f}")
    fairness = ("Jain index (assay)", _fairness)
    return "\n".join(
        [
            _grid(summaries, "Length over the lower bound, p50 / p95:", _length, against),
            _grid(summaries, "GPUs allocated, %: fitting / strict / whole:", _allocation, lost),
            _grid(summaries, "Wait of 1 GPU, h: p50 / p95 / longest:", _wait(1), fairness),
            _grid(summaries, "Wait of 8 GPUs, h: p50 / p95 / longest:", _wait(8), speed),
        ]
    )


def _bars(summary: Summary) -> Iterator[tuple[str, float, float]]:
    """Name, figure and limit of what Assay's policy is held to; no figure may exceed its limit."""
    bar = next(kind.bar for kind in KINDS if kind.name == summary.workload)
    if bar == "saturated":
        yield "makespan / lower bound", summary.ratio, SATURATED
    if bar == "shares":
        yield "1 / utilisation beside a crowd", summary.ratio, CROWDED
        yield "unequal shares of two owners (1 - Jain)", 1 - summary.jain, UNEQUAL
    if bar == "batch":
        yield "makespan / lower bound", summary.ratio, BATCH
    if bar == "clairvoyant" and summary.clairvoyant is not None:
        yield "makespan / clairvoyant", summary.clairvoyant, CLAIRVOYANT
    if summary.workload == "h1":
        yield "longest wait of 8 GPUs, s", summary.waits[8][2], BUDGETS[1] + TICK
    # A cluster with fewer measurements than it could start at once waits for nothing but the tick.
    if summary.waits and max(found[2] for found in summary.waits.values()) > TICK:
        yield "idle while a fitting measurement waits", 1 - summary.fitting, 1 - ALLOCATION


def failed_bars(summaries: Sequence[Summary]) -> list[str]:
    """What exceeds its limit."""
    return [
        f"{summary.workload} on {summary.gpus} GPUs: {name} {figure:.4f} > {limit:.4f}"
        for summary in summaries
        if summary.decider == "assay"
        for name, figure, limit in _bars(summary)
        if figure > limit
    ]


def summary_line(
    summaries: Sequence[Summary], missed: list[str], seeds: int, seconds: float
) -> dict[str, object]:
    """The worst figure of each bar, beside the alternatives' on the same workloads."""
    worst: dict[str, float] = {}
    for summary in summaries:
        if summary.decider == "assay":
            for name, figure, limit in _bars(summary):
                key = f"{name} (limit {limit:g})"
                worst[key] = max(worst.get(key, 0.0), round(figure, 4))
    saturated = {kind.name for kind in KINDS if kind.bar == "saturated"}
    ratios: dict[str, float] = {}
    for summary in summaries:
        if summary.workload in saturated:
            ratios[summary.decider] = max(ratios.get(summary.decider, 0.0), summary.ratio)
    ours = [summary for summary in summaries if summary.decider == "assay"]
    return {
        "benchmark": "scheduler",
        "seeds": seeds,
        "gpus": sorted({summary.gpus for summary in summaries}),
        "worst": worst,
        "missed": len(missed),
        "alternative": "fifo, fifo with backfill, clocked poll: worst ratio at saturation",
        "ratios_at_saturation": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "slowest_decision_ms": round(max((s.slowest_ms for s in ours), default=0.0), 1),
        "seconds": round(seconds, 1),
    }
