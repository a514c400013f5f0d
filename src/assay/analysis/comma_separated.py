"""Experiments as comma-separated values, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from assay.analysis.text import idea_title
from assay.contracts.batch import ExperimentBody

_COLUMNS = (
    *("id", "batch", "environment", "profile", "position", "operator", "state", "failure"),
    *("metric_name", "metric", "reward", "effect", "low", "high", "p", "verdict", "claimed"),
    *("seconds", "finished_at", "idea"),
)
#: A spreadsheet takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t")


def experiments_as_csv(experiments: Sequence[ExperimentBody]) -> str:
    """Return a line per experiment below a line of names; what it lacks is empty.

    `effect` to `verdict` compare it with the baseline, or with its base; `claimed` is what its
    confirmation found. Further metrics of the evaluator follow, a column each.
    """
    further = sorted({name for e in experiments for name in e.metrics})
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow([*_COLUMNS, *map(_text, further)])
    for e in experiments:
        found, confirmation = e.comparison, e.confirmation
        compared = (
            [found.effect, found.low, found.high, found.p, found.verdict]
            if found is not None
            else [None] * 5
        )
        rows.writerow(
            [
                *(e.id, e.batch, e.environment, e.profile, e.position, e.idea.operator, e.state),
                e.failure.code if e.failure else None,
                *(e.metric_name, e.metric, e.reward),
                *compared,
                confirmation.claimed if confirmation else None,
                *(e.seconds, e.finished_at.isoformat() if e.finished_at else None),
                _text(idea_title(e.idea.text, 200)),
                *(e.metrics.get(name) for name in further),
            ]
        )
    return file.getvalue()


def _text(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
