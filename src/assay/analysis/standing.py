"""What may be said of a result: one rule for the pages, the report and the command line.

Results are ordered by `assay.analysis.rows.rank`. A result that is called confirmed is told with
the number that its confirmation found, on fresh seeds; the search's own number selected it, so it
is the best of many looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from assay.analysis.rows import rank
from assay.analysis.text import format_effect, format_number, format_verdict
from assay.contracts.batch import ComparisonBody, ExperimentBody
from assay.domain.metrics import Direction
from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict


class Claim(StrEnum):
    """How far a result has come towards a claim."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    CONFIRMING = "being confirmed"
    LEAD = "a lead"
    NOT_BETTER = "not better"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True)
class Standing:
    """A result, the number to show for it, and what may be said of it.

    `metric` and `comparison` are those of the confirmation once it has decided, and else the
    search's own; `in_search` is the search's own metric.
    """

    claim: Claim
    metric_name: str
    metric: float | None
    comparison: ComparisonBody | None
    in_search: float | None

    @property
    def is_fresh(self) -> bool:
        """Return whether the number is of fresh seeds."""
        decided = self.claim in (Claim.CONFIRMED, Claim.NOT_CONFIRMED)
        return decided and self.metric is not None

    @property
    def in_words(self) -> str:
        """Return what may be said, with the number of the search where another one is shown."""
        effect = format_effect(self.comparison)
        if self.claim is Claim.CONFIRMED:
            said = f"confirmed: better by {effect} on fresh seeds"
        elif self.claim is Claim.NOT_CONFIRMED:
            said = "not confirmed: no result on fresh seeds"
            if self.comparison is not None:
                said = f"not confirmed: {effect} on fresh seeds"
        elif self.claim is Claim.CONFIRMING:
            said = f"{effect}; its confirmation is under way"
        elif self.claim is Claim.NOT_COMPARED:
            said = "not compared: the baseline is not measured"
        elif self.claim is Claim.LEAD:
            said = f"{effect}; a lead: better than the baseline, and not confirmed"
        else:
            said = f"{effect}; not better than the baseline: {format_verdict(self.comparison)}"
        if self.is_fresh and self.in_search is not None:
            said += f"; in the search {format_number(self.in_search)}"
        return said


def standing(experiment: ExperimentBody) -> Standing:
    """Return what may be said of a result."""
    confirmation, comparison = experiment.confirmation, experiment.comparison
    if confirmation is not None and confirmation.claimed is not None:
        return Standing(
            Claim.CONFIRMED if confirmation.claimed else Claim.NOT_CONFIRMED,
            confirmation.metric_name,
            confirmation.metric,
            confirmation.comparison,
            experiment.metric,
        )
    if confirmation is not None:
        claim = Claim.CONFIRMING
    elif comparison is None:
        claim = Claim.NOT_COMPARED
    else:
        is_lead = comparison.verdict == Verdict.BETTER.value
        claim = Claim.LEAD if is_lead else Claim.NOT_BETTER
    metric = experiment.metric
    return Standing(claim, experiment.metric_name, metric, comparison, metric)


def best_result(
    experiments: Iterable[ExperimentBody], direction: Direction
) -> ExperimentBody | None:
    """Return the first of the ranked results: confirmed ones come first. None without any."""
    found = rank(filter(_has_result, experiments), direction)
    return found[0] if found else None


def best_confirmed(
    experiments: Iterable[ExperimentBody], direction: Direction
) -> ExperimentBody | None:
    """Return the result with the largest confirmed effect; None if nothing is confirmed."""
    best = best_result(experiments, direction)
    return best if best is not None and standing(best).claim is Claim.CONFIRMED else None


def _has_result(experiment: ExperimentBody) -> bool:
    metric = experiment.metric
    is_done = experiment.state == ExperimentState.SUCCEEDED.value
    return is_done and metric is not None and math.isfinite(metric)
