"""Which effects a number of seeds can show, beside a measured baseline."""

from __future__ import annotations

from dataclasses import dataclass

from assay.contracts.environment import BaselineBody, EnvironmentBody, PriorBody
from assay.domain.errors import Conflict
from assay.domain.metrics import Sample
from assay.domain.verdicts import Measured, Prior, smallest_effect

SEEDS = (1, 2, 3, 5, 10, 20, 40)


@dataclass(frozen=True)
class PowerRow:
    """The smallest effect that is called better in 80 % of cases, in two units."""

    seeds: int
    effect: float
    spreads: float


def as_compared(body: BaselineBody, environment: EnvironmentBody) -> BaselineBody:
    """Return the baseline on the seeds that a batch is compared on unless it names others."""
    (wanted,) = [p.baseline_seeds for p in environment.profiles if p.name == body.profile]
    values = {s: v for s, v in zip(body.seeds, body.values, strict=True) if s < wanted}
    sample = Sample.of(list(values.values()))
    return body.model_copy(
        update={
            "seeds": list(values),
            "values": list(values.values()),
            "mean": sample.mean if sample else None,
            "spread": sample.spread if sample else None,
        }
    )


def power_rows(body: BaselineBody, fit: PriorBody) -> list[PowerRow]:
    """Return a row for each number of seeds.

    Raises:
        Conflict: the baseline has too few results, or they do not differ between seeds.
    """
    baseline = Measured.of(dict(zip(body.seeds, body.values, strict=True)))
    if baseline is None or baseline.noise == 0:
        raise Conflict(
            "the baseline has no spread over seeds yet; run `assay env calibrate "
            f"{body.environment.partition('@')[0]} --profile {body.profile}`",
            code="no_baseline",
        )
    prior = Prior(fit.df, fit.variance, fit.slope, fit.slope_seeds, fit.effect, fit.codebases)
    rows = []
    for seeds in SEEDS:
        effect = smallest_effect(baseline, seeds, prior)
        assert effect is not None
        rows.append(PowerRow(seeds, effect, effect / baseline.spread))
    return rows
