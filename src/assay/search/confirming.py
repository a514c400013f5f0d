"""Which results of a search are confirmed at its end."""

from __future__ import annotations

from collections.abc import Iterable

from assay.contracts.batch import ExperimentBody
from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict

_SAY_NOTHING = (Verdict.IDENTICAL.value, Verdict.NOT_COMPARABLE.value)


def to_confirm(experiments: Iterable[ExperimentBody], count: int) -> list[str]:
    """Return the ids of the results that improve most on the baseline, best first.

    One of each codebase, and at most `count`. Of equal ones the first.
    """
    improved = [
        (experiment.comparison.effect, experiment)
        for experiment in experiments
        if experiment.state == ExperimentState.SUCCEEDED
        and experiment.comparison is not None
        and experiment.comparison.verdict not in _SAY_NOTHING
        and experiment.comparison.effect > 0
    ]
    best: dict[str | None, str] = {}
    for _, experiment in sorted(improved, key=lambda pair: -pair[0]):
        best.setdefault(experiment.codebase, experiment.id)
    return list(best.values())[:count]
