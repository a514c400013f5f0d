"""Carry outputs over to a version of an environment that computes the same under its profile.

A change that cannot reach a profile (of code for GPUs, say) gives an environment another hash, and
so everything that was measured under it would be measured anew. Instead every codebase of an
output is measured on one seed, and the unmodified one on three. If each result is the stored one,
the output is taken for that of the new version, and says so. The secret positions of an evaluation
follow from the hash, so the last digit of a result may differ by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.calibrate.stages import BASELINE, Baseline, Cost, Stage, compact
from tests.support.measuring import Run

#: Seeds on which the unmodified codebase is measured again, and every other one.
BASELINE_SEEDS, SEEDS = 3, 1
#: Of the results that are stored.
_DIGITS = 4

Measure = Callable[[Stage, Sequence[Run]], Mapping[tuple[str, int], float | None]]


def can_be_carried(stage: Stage) -> bool:
    """Whether an output is there that has the results of the same codebases by name."""
    return not isinstance(stage, Cost) and set(_stored(stage)) == set(stage.trees)


def carry(stage: Stage, measure: Measure) -> list[str]:
    """Measure the sample; take the output over if nothing differs, else return what does.

    `measure` gives the metric of each run by name and seed, None where it failed.
    """
    stored = _stored(stage)
    most = {name: BASELINE_SEEDS if name == BASELINE else SEEDS for name in stage.trees}
    seeds = {name: min(most[name], stage.seeds[name]) for name in stage.trees}
    sample = replace(stage, seeds=seeds)
    found = measure(sample, sample.runs)
    differ = [
        f"{name}, seed {seed}: {value} instead of {stored[name][seed]}"
        for (name, seed), value in found.items()
        if not _is_same(value, stored[name][seed])
    ]
    if not differ:
        _restamp(stage, len(found))
    return differ


def _is_same(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return value is other
    return abs(round(value, _DIGITS) - round(other, _DIGITS)) < 1.5 * 10**-_DIGITS


def _entry(stage: Stage) -> dict[str, Any]:
    """The output of a stage; of `baseline.json`, what it says of the profile and the class."""
    if not stage.path.exists():
        return {}
    found = json.loads(stage.path.read_text())
    if isinstance(stage, Baseline):
        found = found.get(stage.plan.profile, {}).get(stage.hardware_class, {})
    return dict(found)


def _stored(stage: Stage) -> dict[str, list[float | None]]:
    """The stored results by codebase."""
    entry = _entry(stage)
    if isinstance(stage, Baseline):
        named = {BASELINE: entry, **entry.get("controls", {})}
    else:
        named = entry.get("figures") or entry.get("codebases") or {}
    return {name: each["values"] for name, each in named.items() if each.get("values")}


def _restamp(stage: Stage, runs: int) -> None:
    entry = _entry(stage)
    carried = {
        "from": entry["environment"],
        "runs": runs,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    entry |= {"environment": stage.environment.id, "carried_over": carried}
    if not isinstance(stage, Baseline):
        stage.path.write_text(compact(entry | {"plan": stage.digest()}))
        return
    entry["codebase"] = stage.environment.codebase_hash
    everything = json.loads(stage.path.read_text())
    everything[stage.plan.profile][stage.hardware_class] = entry
    stage.path.write_text(json.dumps(everything, indent=2, sort_keys=True) + "\n")
