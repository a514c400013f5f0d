"""Which results of a search are confirmed at its end."""

from __future__ import annotations

from collections.abc import Iterable

from assay.contracts.batch import ExperimentBody
from assay.domain.states import ExperimentState
from assay.domain.verdicts import Verdict

_SAY_NOTHING = (Verdict.IDENTICAL.value, Verdict.NOT_COMPARABLE.value)


def to_confirm(experiments: Iterable[ExperimentBody], count: int) -> list[str]:
    """Return the ids of the results that improve most on the baseline, best first.

    One of each codebase, that on the most seeds, and at most `count`. Of equal ones the first.
    """
    measured: dict[str | None, tuple[int, float, str]] = {}
    for experiment in experiments:
        compared = experiment.comparison
        if experiment.state != ExperimentState.SUCCEEDED or compared is None:
            continue
        if compared.verdict in _SAY_NOTHING:
            continue
        found = (compared.n, compared.effect, experiment.id)
        known = measured.get(experiment.codebase)
        if known is None or found[:2] > known[:2]:
            measured[experiment.codebase] = found
    best = sorted(measured.values(), key=lambda found: -found[1])
    return [id_ for _, effect, id_ in best if effect > 0][:count]
