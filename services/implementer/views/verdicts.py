"""The baseline and the bases of a batch, and what the API says of a result beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy.orm import Session

from assay.contracts.batch import ComparisonBody
from assay.contracts.environment import MetricSpec, PriorBody
from assay.domain.conditions import UNRECORDED, Conditions, minor
from assay.domain.metrics import Judged
from assay.domain.rounding import shown, shown_or_none
from assay.domain.states import MeasurementKind
from assay.domain.verdicts import Judgement, Measured, Verdict, judge, judge_best
from assay.storage import baselines, environments, equivalences, fits, measurements, schema
from assay.storage.measurements import Scored

_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class _Setting(NamedTuple):
    """What decides which results a batch's experiments are compared with."""

    environment_id: str
    profile: str
    hardware_class: str
    conditions_id: str
    kind: MeasurementKind
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, session: Session, batch: schema.Batch) -> _Setting:
        manifest = environments.manifest(session, batch.environment_id)
        kind = MeasurementKind(batch.kind).baseline
        seeds = baselines.seeds_of(manifest.profiles[batch.profile], batch.options, kind)
        where = (batch.environment_id, batch.profile, batch.hardware_class, batch.conditions_id)
        return cls(*where, kind, tuple(seeds))


@dataclass(frozen=True)
class BaselineStats:
    """What experiments are compared with.

    `exact` decides verdicts. Every number that is shown is computed from `rounded`, which is made
    of results as they are shown, so that it tells no more about them. Both are None without a
    result. `pending` counts the seeds that are still to come, `failed` those that have no result.
    """

    metric: MetricSpec
    kind: MeasurementKind
    scores: Mapping[int, Scored]
    exact: Measured | None
    rounded: Measured | None
    pending: int
    failed: int
    fit: fits.Fit
    asked_at: datetime
    on: Conditions

    @property
    def metric_name(self) -> str:
        """The number that counts in measurements of the batch's kind."""
        return self.metric.deciding(self.kind)

    @classmethod
    def of_environment(cls, session: Session, batch: schema.Batch) -> BaselineStats:
        """The baseline of a batch's environment: the seeds it asked for, under its conditions."""
        return cls.of_all(session, batch, [None])[None]

    @classmethod
    def of_all(
        cls, session: Session, batch: schema.Batch, bases: Collection[str | None]
    ) -> dict[str | None, BaselineStats]:
        """The bases of a batch's ideas by codebase, None for its environment's baseline: the seeds
        that the batch asked for, under its conditions."""
        return cls.of_batches(session, [(batch, bases)])[batch.id]

    @classmethod
    def of_batches(
        cls, session: Session, wanted: Iterable[tuple[schema.Batch, Collection[str | None]]]
    ) -> dict[str, dict[str | None, BaselineStats]]:
        """As `of_all`, of several batches by id. Batches that are compared with the same seeds
        under the same conditions share the queries, whose number is fixed for each such group."""
        groups: dict[_Setting, list[tuple[schema.Batch, Collection[str | None]]]] = defaultdict(
            list
        )
        for batch, bases in wanted:
            groups[_Setting.of(session, batch)].append((batch, bases))
        found: dict[str, dict[str | None, BaselineStats]] = {}
        for setting, members in groups.items():
            shared = cls._of_setting(session, setting, {b for _, bases in members for b in bases})
            for batch, bases in members:
                asked_at = batch.created_at
                found[batch.id] = {b: replace(shared[b], asked_at=asked_at) for b in bases}
        return found

    @classmethod
    def _of_setting(
        cls, session: Session, setting: _Setting, bases: Collection[str | None]
    ) -> dict[str | None, BaselineStats]:
        environment = environments.registered(session, setting.environment_id)
        on = equivalences.family(
            session,
            setting.environment_id,
            setting.profile,
            setting.hardware_class,
            setting.conditions_id,
        )
        codebases = {base: base or environment.codebase for base in bases}
        where = (session, setting.environment_id, setting.profile, on)
        found = measurements.of_bases(*where, set(codebases.values()), setting.seeds, setting.kind)
        fit = fits.latest(*where)
        return {
            base: cls(
                metric=environment.manifest.metric,
                kind=setting.kind,
                scores=found[codebase].scores,
                exact=_exact(found[codebase].scores),
                rounded=_rounded(found[codebase].scores),
                pending=found[codebase].pending,
                failed=found[codebase].failed,
                fit=fit,
                asked_at=_LONG_AGO,
                on=on,
            )
            for base, codebase in codebases.items()
        }

    @classmethod
    def instead(
        cls,
        session: Session,
        environment_id: str,
        profile: str,
        on: Conditions,
        other: Mapping[int, Scored],
        asked_at: datetime,
        kind: MeasurementKind,
    ) -> BaselineStats:
        """Another result in the place of the baseline. `asked_at`: when the seeds of the one that
        is compared with it were asked for."""
        return cls(
            metric=environments.manifest(session, environment_id).metric,
            kind=kind,
            scores=other,
            exact=_exact(other),
            rounded=_rounded(other),
            pending=0,
            failed=0,
            fit=fits.latest(session, environment_id, profile, on),
            asked_at=asked_at,
            on=on,
        )

    def compare(
        self, scores: Mapping[int, Scored], apart: Sequence[str] = ()
    ) -> ComparisonBody | None:
        """A result against the baseline, by seed; None without either. `apart` are facts in which
        their conditions differ."""
        exact, rounded = _exact(scores), _rounded(scores)
        if exact is None or rounded is None or self.exact is None or self.rounded is None:
            return None
        mismatch = [*apart, *self._mismatch(scores)]
        identical = not mismatch and self._is_identical(scores)
        judged = self._judge(exact, self.exact, identical=identical)
        seen = self._judge(rounded, self.rounded, identical=identical)
        sides = {
            "baseline_mean": shown(self.rounded.mean),
            "baseline_spread": shown(self.rounded.spread) if self.rounded.n > 1 else None,
            "baseline_n": self.rounded.n,
            "n": rounded.n,
            "exploratory": self._is_exploratory(scores),
            "prior": self.fit.id,
        }
        if mismatch:
            return ComparisonBody(
                **sides,
                effect=shown(seen.effect),
                verdict=Verdict.NOT_COMPARABLE.value,
                mismatch=mismatch,
            )
        return ComparisonBody(
            **sides,
            effect=shown(seen.effect),
            standard_error=shown_or_none(seen.standard_error),
            sigmas=shown_or_none(seen.sigmas),
            degrees_of_freedom=_finite(seen.df),
            low=shown_or_none(seen.low),
            high=shown_or_none(seen.high),
            p=shown_or_none(seen.p),
            posterior=shown_or_none(seen.posterior),
            p_improves=shown_or_none(seen.p_improves),
            verdict=judged.verdict.value,
        )

    def _judge(self, idea: Measured, baseline: Measured, *, identical: bool) -> Judgement:
        direction, provisional = self.metric.direction, self.pending > 0
        if self.metric.judged is Judged.ARTIFACT and not identical:
            return judge_best(direction, idea, baseline, provisional=provisional)
        return judge(
            direction,
            idea,
            baseline,
            self.fit.prior,
            identical=identical,
            provisional=provisional,
        )

    def _mismatch(self, scores: Mapping[int, Scored]) -> list[str]:
        """In which facts these results and the baseline's differ, though both were asked for under
        the same conditions."""
        everything = [*scores.values(), *self.scores.values()]
        facts = {
            "held-out data": {each.held_out for each in everything},
            "training data": {each.train for each in everything},
        }
        if self.kind is MeasurementKind.CONFIRM:
            facts["sealed data"] = {each.sealed for each in everything}
        if self.on.id == UNRECORDED:
            facts["torch"] = {each.torch and minor(each.torch) for each in everything}
        told = {name: sorted(filter(None, found)) for name, found in facts.items()}
        return [
            f"{name}: {' and '.join(text[:12] for text in found)}"
            for name, found in told.items()
            if len(found) > 1
        ]

    def _is_identical(self, scores: Mapping[int, Scored]) -> bool:
        """Whether every seed left what the baseline left on it, and scored the same.

        Equal artifacts alone do not do: an idea may change how answers are made of them.
        """
        return all(
            (twin := self.scores.get(seed)) is not None
            and scored.artifact is not None
            and (scored.artifact, scored.metric) == (twin.artifact, twin.metric)
            for seed, scored in scores.items()
        )

    def _is_exploratory(self, scores: Mapping[int, Scored]) -> bool:
        """Whether some of the seeds, but not all, had a result when the batch was submitted."""
        seen = sum(scored.at < self.asked_at for scored in scores.values())
        return 0 < seen < len(scores)


def prior_body(fit: fits.Fit) -> PriorBody:
    """A prior as the API shows it."""
    prior = fit.prior
    return PriorBody(
        id=fit.id,
        number=fit.number,
        created_at=fit.created_at,
        codebases=prior.codebases,
        df=shown(prior.df),
        variance=shown(prior.variance),
        slope=shown(prior.slope),
        slope_seeds=shown(prior.slope_seeds),
        effect=shown(prior.effect),
    )


def _exact(scores: Mapping[int, Scored]) -> Measured | None:
    return Measured.of({seed: scored.metric for seed, scored in scores.items()})


def _rounded(scores: Mapping[int, Scored]) -> Measured | None:
    return Measured.of({seed: shown(scored.shown) for seed, scored in scores.items()})


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else shown(value)
