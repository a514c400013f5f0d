"""Tables of the execution report: what ideas reached, how far they came, what that took.

Names of models are long, so only the first table has them; the others go by its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.table import Table

from assay.analysis.sparklines import BLOCKS
from assay.analysis.tables import cell, table
from assay.analysis.text import clean, format_number, format_seconds
from assay.contracts.report import ExecutionRow, PerIdea

_STAGES = ("applied", "patched", "started", "scored")
_WORN = (
    "The held-out split is worn: confirm the best on a fresh split; "
    "see docs/evaluation.md#worn-splits."
)
#: Who had the ideas, and who carried them out.
_MODELS = "ideator → executor"


def execution_tables(rows: Sequence[ExecutionRow]) -> list[Table | str]:
    """Tables per environment and profile, for rows in the report's order.

    A line of text follows the results where the split they were measured on is worn.
    """
    made: list[Table | str] = []
    for _, group in groupby(rows, key=lambda row: (row.environment, row.profile)):
        found = list(group)
        made.append(_results(found))
        if any(row.metric.worn for row in found):
            made.append(_WORN)
        made += [_funnel(found), _expenses(found)]
        others = _others(found)
        if others.row_count:
            made.append(others)
    return made


def bars(numbers: Sequence[int]) -> str:
    """One block per stage, as high as its share of the most: `██▇▅▂`. A blank is none."""
    most = max(numbers, default=0)
    heights = [round(n * len(BLOCKS) / most) if most else 0 for n in numbers]
    return "".join(
        BLOCKS[max(height, 1) - 1] if n else " "
        for n, height in zip(numbers, heights, strict=True)
    )


def _results(rows: Sequence[ExecutionRow]) -> Table:
    first = rows[0]
    hardware = ", ".join(sorted({name for row in rows for name in row.hardware_classes}))
    what = f"{first.metric.name}, {first.metric.direction}"
    right = ["#", "completion rate", "average", "best", "baseline"]
    made = table(
        "#", _MODELS, *right[1:], right=right,
        title=clean(f"{first.environment}, {first.profile}, {hardware}: {what}"),
    )  # fmt: skip
    for number, row in enumerate(rows, 1):
        metric = row.metric
        reached = map(format_number, (metric.average, metric.best, metric.baseline_mean))
        models = clean(f"{row.ideator or 'a person'} → {row.executor}")
        made.add_row(*map(cell, (number, models, _percent(row.shares.scored), *reached)))
    return made


def _funnel(rows: Sequence[ExecutionRow]) -> Table:
    right = ["#", "submitted", *_STAGES]
    made = table(
        "#", "execution", *right[1:], "funnel", title="How far the ideas came", right=right
    )
    for number, row in enumerate(rows, 1):
        reached = [getattr(row.funnel, name) for name in _STAGES]
        shares = [_percent(getattr(row.shares, name)) for name in _STAGES]
        stages = [f"{n} {share}" for n, share in zip(reached, shares, strict=True)]
        submitted = row.funnel.submitted
        cells = (number, row.execution, submitted, *stages, bars([submitted, *reached]))
        made.add_row(*map(cell, cells))
    return made


def _expenses(rows: Sequence[ExecutionRow]) -> Table:
    right = ["#", "calls", "tokens", "USD", "USD/patched", "repaired", "wasted"]
    made = table(*right, title="What an idea took, and what all of them wasted", right=right)
    for number, row in enumerate(rows, 1):
        idea = row.per_submitted
        tokens = "–" if idea is None else f"{idea.input_tokens + idea.output_tokens:,.0f}"
        cells = (
            number,
            "–" if idea is None else f"{idea.calls:.1f}",
            tokens,
            _dollars(idea),
            _dollars(row.per_patched),
            f"{row.repairs.experiments} ({row.repairs.scored} scored)",
            format_seconds(row.wasted_seconds),
        )
        made.add_row(*map(cell, cells))
    return made


def _others(rows: Sequence[ExecutionRow]) -> Table:
    made = table(
        "#", "stage", "code", "ideas", "share", title="Not scored", right=["#", "ideas", "share"]
    )
    for number, row in enumerate(rows, 1):
        for stage, code, ideas, counts in _endings(row):
            share = ideas / row.funnel.submitted if counts and row.funnel.submitted else None
            made.add_row(*map(cell, (number, clean(stage), clean(code), ideas, _percent(share))))
    return made


def _endings(row: ExecutionRow) -> Iterator[tuple[str, str, int, bool]]:
    """Stage, code, number, and whether they are among the submitted."""
    for failure in row.failures:
        yield failure.stage, failure.code, failure.count, True
    by_hand = row.cancelled - row.near_duplicates
    for stage, code, number, counts in (
        ("unfinished", "–", row.unfinished, True),
        ("cancelled", "near_duplicate", row.near_duplicates, False),
        ("cancelled", "–", by_hand, False),
    ):
        if number:
            yield stage, code, number, counts


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _dollars(idea: PerIdea | None) -> str:
    if idea is None:
        return "–"
    return "unknown" if idea.cost_usd is None else f"{float(idea.cost_usd):.4f}"
