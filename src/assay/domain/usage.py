"""What a run used beside the baseline; workers judge caps by it and results show it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The fact of a result's provenance that holds its usage.
FACT = "usage"
#: Runs of the baseline that a host has before it judges an idea. One varies by some percent, and
#: every cap with it.
REFERENCE_RUNS = 3


@dataclass(frozen=True)
class Used:
    """What one run used. `training` and `evaluation` are CPU time in units of the host's speed."""

    training: float
    evaluation: float
    seconds: float
    memory_bytes: int
    artifact_bytes: int
    parameters: int | None = None


def typical(runs: Sequence[Used]) -> Used:
    """Return the median of each figure: a single run may have met a busy moment."""
    parameters = [run.parameters for run in runs if run.parameters is not None]
    return Used(
        training=statistics.median(run.training for run in runs),
        evaluation=statistics.median(run.evaluation for run in runs),
        seconds=statistics.median(run.seconds for run in runs),
        memory_bytes=statistics.median_low([run.memory_bytes for run in runs]),
        artifact_bytes=statistics.median_low([run.artifact_bytes for run in runs]),
        parameters=statistics.median_low(parameters) if parameters else None,
    )


def multiple(used: float | None, reference: float | None) -> float | None:
    """Return how many times the reference was used, None where either is unknown."""
    return None if used is None or not reference else used / reference


def mean_usage(provenances: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of each multiple over the measurements that state it."""
    stated = [found for p in provenances if isinstance(found := p.get(FACT), Mapping)]
    names = dict.fromkeys(name for found in stated for name in found)
    return {
        name: statistics.fmean(values)
        for name in names
        if (values := [f[name] for f in stated if isinstance(f.get(name), int | float)])
    }
