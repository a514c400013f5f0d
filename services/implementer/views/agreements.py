"""Reproductions beside the experiments whose measurements they repeat.

What is said of a reproduction is decided by exact numbers: one of four agreements, and for each
seed whether its numbers are equal. That is at most as much as the verdict that every result is
counted with (`VERDICT_BITS` of `domain/rounding.py`), and a reproduction has no verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.contracts.batch import AgreementBody, SeedAgreementBody
from assay.domain.failure_codes import rules_of_stored
from assay.domain.reproductions import Agreement, compare
from assay.domain.rounding import shown, shown_or_none
from assay.domain.states import TERMINAL_EXPERIMENT
from assay.storage import measurements, repairs, schema
from assay.storage.measurements import Scored
from services.implementer.views.verdicts import BaselineStats

_TERMINAL = {s.value for s in TERMINAL_EXPERIMENT}
_AGREES = {
    Agreement.TO_THE_DIGIT: True,
    Agreement.WITHIN_NOISE: True,
    Agreement.DISAGREES: False,
    Agreement.UNDECIDED: None,
}


class _Seed(NamedTuple):
    scored: Scored | None
    failure: Mapping[str, Any] | None


def agreement_bodies(
    session: Session,
    rows: Sequence[schema.Experiment],
    reproduces: Mapping[str, str | None],
) -> dict[str, AgreementBody]:
    """Whether reproductions agree with what they repeat, by experiment: of those that have ended.

    `reproduces`: which experiment each of them measures again, if any.
    """
    pairs = {}
    for row in rows:
        reproduced = reproduces[row.id]
        if reproduced is not None and row.state in _TERMINAL:
            pairs[row.id] = reproduced
    if not pairs:
        return {}
    originals = _originals(session, set(pairs.values()))
    batches = {each.batch.id: each.batch for each in originals.values()}
    bases: dict[str, set[str | None]] = defaultdict(set)
    for each in originals.values():
        bases[each.batch.id].add(each.base)
    stats = BaselineStats.of_batches(session, ((batches[id_], of) for id_, of in bases.items()))
    seeds = _seeds(session, {*pairs, *pairs.values()})
    return {
        id_: _agreement(
            reproduced,
            stats[originals[reproduced].batch.id][originals[reproduced].base],
            seeds.get(reproduced, {}),
            seeds.get(id_, {}),
        )
        for id_, reproduced in pairs.items()
    }


class _Original(NamedTuple):
    """What is measured again: its batch, and the codebase that it is compared with."""

    batch: schema.Batch
    base: str | None


def _originals(session: Session, ids: Collection[str]) -> dict[str, _Original]:
    table, idea, batch = schema.Experiment, schema.Idea, schema.Batch
    rows = session.execute(
        select(table.id, batch, idea.base_id)
        .join(batch, batch.id == table.batch_id)
        .join(idea, idea.id == table.idea_id)
        .where(table.id.in_(ids))
    )
    return {id_: _Original(found, base) for id_, found, base in rows}


def _agreement(
    reproduced: str,
    stats: BaselineStats,
    was: Mapping[int, _Seed],
    now: Mapping[int, _Seed],
) -> AgreementBody:
    before = {seed: found.scored for seed, found in was.items()}
    old = {seed: scored for seed, scored in before.items() if scored is not None}
    new = {seed: found.scored for seed, found in now.items() if found.scored is not None}
    failed = [seed for seed, found in now.items() if _is_of_code(found.failure)]
    exact, rounded = (
        compare(
            stats.metric.direction,
            {seed: value(scored) for seed, scored in old.items()},
            {seed: value(scored) for seed, scored in new.items()},
            failed=failed,
            baseline=baseline,
        )
        for value, baseline in ((_exact, stats.exact), (_rounded, stats.rounded))
    )
    return AgreementBody(
        experiment=reproduced,
        agreement=exact.agreement.value,
        agrees=_AGREES[exact.agreement],
        difference=shown_or_none(rounded.difference),
        p=shown_or_none(rounded.p),
        seeds=[_seed_body(seed, was, now.get(seed)) for seed, was in sorted(old.items())],
    )


def _exact(scored: Scored) -> float:
    return scored.metric


def _rounded(scored: Scored) -> float:
    return shown(scored.shown)


def _is_of_code(failure: Mapping[str, Any] | None) -> bool:
    """Whether a failure says something of the code, and not of its host alone."""
    return failure is not None and rules_of_stored(failure).shared


def _seed_body(seed: int, before: Scored, now: _Seed | None) -> SeedAgreementBody:
    again, failure = now or _Seed(None, None)
    return SeedAgreementBody(
        seed=seed,
        before=_rounded(before),
        again=None if again is None else _rounded(again),
        equal=None if again is None else again.metric == before.metric,
        failure=None if failure is None else str(failure.get("code")),
    )


def _seeds(session: Session, ids: Collection[str]) -> dict[str, dict[int, _Seed]]:
    """What the measurements that decide experiments came to, by experiment and seed."""
    link, table = schema.ExperimentMeasurement, schema.Measurement
    found: dict[str, dict[int, _Seed]] = defaultdict(dict)
    for experiment, seed, failure, *scored in session.execute(
        select(link.experiment_id, table.seed, table.failure, *measurements.SCORED)
        .join(link, link.measurement_id == table.id)
        .outerjoin(schema.Result, schema.Result.measurement_id == table.id)
        .where(link.experiment_id.in_(ids), link.role == repairs.SCORE)
        .order_by(table.seed, table.id)
    ):
        scores = None if scored[0] is None else Scored(*scored)
        found[experiment][seed] = _Seed(scores, failure)
    return found
