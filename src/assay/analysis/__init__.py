"""Read results: rank, summarise, and show them as tables. Pure functions over the contracts."""

from assay.analysis.progress import SearchProgress
from assay.analysis.rows import (
    BestRow,
    ExperimentRow,
    FailureRow,
    best_rows,
    experiment_rows,
    failure_rows,
    leads,
    rank,
)
from assay.analysis.tables import best_table, experiment_table, failure_table
from assay.analysis.text import (
    clean,
    format_effect,
    format_number,
    format_seconds,
    format_used,
    format_verdict,
    idea_title,
    worn_note,
)

__all__ = [
    "BestRow",
    "ExperimentRow",
    "FailureRow",
    "SearchProgress",
    "best_rows",
    "best_table",
    "clean",
    "experiment_rows",
    "experiment_table",
    "failure_rows",
    "failure_table",
    "format_effect",
    "format_number",
    "format_seconds",
    "format_used",
    "format_verdict",
    "idea_title",
    "leads",
    "rank",
    "worn_note",
]
