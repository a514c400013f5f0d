"""Which conditions are taken for equal, for an environment and a profile.

Hosts that differ in recorded facts alone (`domain/conditions.py`) offer the conditions they share.
The `first` of them defines these; every other measures the unmodified codebase on `SEEDS` before
it measures anything else there, as measurements of the kind `control` under conditions that only
hosts like it have. The scheduler asks for them and decides. An operator may declare other
conditions equal, with measurements of the unmodified codebase as evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, bindparam, delete, select, true
from sqlalchemy.orm import Session

from assay.domain.conditions import (
    INCOMPARABLE,
    OWN_OWNER,
    UNRECORDED,
    Conditions,
    HostFacts,
    differences,
)
from assay.domain.errors import Conflict
from assay.domain.failure_codes import rules_of_stored
from assay.domain.metrics import Direction
from assay.domain.rounding import shown, shown_or_none
from assay.domain.states import MeasurementKind, MeasurementState
from assay.domain.verdicts import Measured, judge
from assay.storage import schema
from assay.storage.rows import get, run

#: Seeds on which the unmodified codebase is compared.
SEEDS = (0, 1, 2)
#: Controls are repeated so often where they end for reasons of the host.
MOST_TRIES = 5
#: Hosts differ if chance gives such a difference at most this often: one in a hundred of those
#: that are alike is kept apart for nothing.
ALPHA = 0.01
#: Controls that the scheduler asked for. The others are reproductions of experiments, which say
#: nothing of a host, also where the experiment's codebase is the unmodified one.
_IS_OF_HOSTS: ColumnElement[bool] = schema.Measurement.owner == OWN_OWNER


class Equality(StrEnum):
    """What is known of a host's conditions, or was declared of others."""

    FIRST = "first"
    PENDING = "pending"
    EQUAL = "equal"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Known:
    """The rows of an environment and profile, by conditions."""

    rows: Mapping[str, schema.Equivalence] = field(default_factory=dict)

    def canonical(self, id_: str) -> str:
        """The conditions that these are taken for."""
        seen = {id_}
        while (row := self.rows.get(id_)) is not None and row.state == Equality.EQUAL.value:
            id_ = row.equals_id
            if id_ in seen:
                break
            seen.add(id_)
        return id_

    def state(self, id_: str) -> str | None:
        """What is known of conditions with a host's recorded facts; None if nothing is."""
        row = self.rows.get(id_)
        return None if row is None else row.state

    def is_defined_by(self, host: HostFacts) -> bool:
        """Whether others are compared with such a host."""
        return self.state(host.narrow) in (Equality.FIRST.value, Equality.EQUAL.value)

    def effective(self, host: HostFacts) -> str:
        """The conditions that a host's results belong to. An operator may have declared those of
        the host itself equal to others than the ones that hosts with its deciding facts share."""
        state = self.state(host.narrow)
        if state == Equality.DIFFERENT.value:
            return host.narrow
        return self.canonical(host.narrow if state == Equality.EQUAL.value else host.wide)

    def offers(self, host: HostFacts, conditions: str) -> bool:
        """Whether what is pinned to these conditions may be measured on such a host now."""
        if conditions in (UNRECORDED, host.narrow):
            return True
        if host.narrow != host.wide and not self.is_defined_by(host):
            return False
        return self.canonical(conditions) == self.effective(host)


_OF_SETTING = select(schema.Equivalence).where(
    schema.Equivalence.environment_id == bindparam("environment"),
    schema.Equivalence.profile == bindparam("profile"),
)
_PENDING = select(schema.Equivalence).where(schema.Equivalence.state == Equality.PENDING.value)
_ANY_PENDING = (
    select(schema.Equivalence.conditions_id)
    .where(schema.Equivalence.state == Equality.PENDING.value)
    .limit(1)
)


def of_setting(session: Session, environment_id: str, profile: str) -> Known:
    """What is known for an environment and profile."""
    rows = session.scalars(_OF_SETTING, {"environment": environment_id, "profile": profile})
    return Known({row.conditions_id: row for row in rows})


def pending(session: Session) -> Sequence[schema.Equivalence]:
    """The rows of hosts whose controls decide."""
    # Mostly none, and reading rows takes longer than asking for any.
    if run(session, _ANY_PENDING).first() is None:
        return []
    return session.scalars(_PENDING).all()


def apart(session: Session) -> Sequence[schema.Equivalence]:
    """The rows of hosts that do not measure under the conditions they share with others."""
    table = schema.Equivalence
    states = (Equality.PENDING.value, Equality.DIFFERENT.value)
    return session.scalars(
        select(table)
        .where(table.state.in_(states))
        .order_by(table.environment_id, table.profile, table.conditions_id)
    ).all()


def family(
    session: Session, environment_id: str, profile: str, hardware_class: str, id_: str
) -> Conditions:
    """Conditions, with those that are taken for equal to them; the canonical ones come first."""
    if id_ == UNRECORDED:
        return Conditions(hardware_class)
    known = of_setting(session, environment_id, profile)
    first = known.canonical(id_)
    others = [other for other in known.rows if known.canonical(other) == first != other]
    return Conditions(hardware_class, (first, *sorted({*others, id_} - {first})))


@dataclass(frozen=True)
class Host:
    """A host that gets work, and how much of it."""

    facts: HostFacts
    capacity: int


def introduced(
    known: Known,
    conditions: str,
    hosts: Iterable[Host],
    *,
    has_results: bool,
    has_baseline: bool,
) -> dict[str, Equality]:
    """What hosts that are new to the conditions they share become: the `first`, or `pending`.

    `has_results`: something was measured under these conditions, so that who comes next has to
    show that it is like those who measured it. That takes the unmodified codebase on `SEEDS`
    (`has_baseline`), or a live host that can measure it; without either they are `different`.
    Hosts that wait for a `first` one which is gone, and has measured nothing, wait no longer.
    """
    new: dict[str, int] = {}
    waiting: dict[str, int] = {}
    is_there = False
    for host in hosts:
        facts = host.facts
        state = known.state(facts.narrow)
        if state is None:
            new[facts.narrow] = new.get(facts.narrow, 0) + host.capacity
        elif state == Equality.PENDING.value:
            waiting[facts.narrow] = waiting.get(facts.narrow, 0) + host.capacity
        is_defined = known.is_defined_by(facts) and known.effective(facts) == conditions
        is_there = is_there or is_defined
    if is_there or has_baseline:
        return dict.fromkeys(new, Equality.PENDING)
    if has_results:
        return dict.fromkeys(new | waiting, Equality.DIFFERENT)
    found = dict.fromkeys(new, Equality.PENDING)
    candidates = new | waiting
    if candidates:
        found[max(candidates, key=lambda id_: (candidates[id_], id_))] = Equality.FIRST
    return found


@dataclass(frozen=True)
class Comparison:
    """The unmodified codebase on two sets of conditions."""

    equal: bool
    evidence: dict[str, Any]


def compare(
    direction: Direction, there: Mapping[int, float], here: Mapping[int, float]
) -> Comparison:
    """Compare what the unmodified codebase reached on a new host with what is known of it.

    Results that agree to the digit are equal. Else the difference is judged as that of an idea.
    """
    evidence: dict[str, Any] = {
        "seeds": sorted(there),
        "values": [shown(there[seed]) for seed in sorted(there)],
        "compared_with": {str(seed): shown(here[seed]) for seed in sorted(here)},
    }
    if all(seed in here and there[seed] == here[seed] for seed in there):
        return Comparison(equal=True, evidence=evidence | {"to_the_digit": True})
    new, old = Measured.of(there), Measured.of(here)
    assert new is not None
    assert old is not None
    found = judge(direction, new, old)
    evidence |= {"effect": shown(found.effect), "p": shown_or_none(found.p)}
    return Comparison(equal=found.p is not None and found.p >= ALPHA, evidence=evidence)


def values_of_unmodified(
    session: Session,
    environment: schema.Environment,
    profile: str,
    ids: Collection[str],
    kind: MeasurementKind,
) -> dict[int, float]:
    """The metric of the unmodified codebase by seed, under these conditions."""
    table = schema.Measurement
    query = (
        select(table.seed, schema.Result.metric)
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .where(
            table.codebase_id == environment.codebase,
            table.environment_id == environment.id,
            table.profile == profile,
            table.conditions_id.in_(ids),
            table.kind == kind.value,
            _IS_OF_HOSTS if kind is MeasurementKind.CONTROL else true(),
        )
        .order_by(table.seed, table.replicate)
    )
    return {seed: metric for seed, metric in session.execute(query) if metric is not None}


def has_results(session: Session, environment_id: str, profile: str, on: Conditions) -> bool:
    """Whether anything was scored under these conditions."""
    table = schema.Measurement
    query = (
        select(table.id)
        .join(schema.Result, schema.Result.measurement_id == table.id)
        .where(
            table.environment_id == environment_id,
            table.profile == profile,
            table.conditions_id.in_(on.ids),
            table.kind == MeasurementKind.SCORE.value,
        )
        .limit(1)
    )
    return session.scalars(query).first() is not None


def add(
    session: Session,
    environment_id: str,
    profile: str,
    equals_id: str,
    states: Mapping[str, Equality],
    now: datetime,
) -> None:
    """Record what hosts become. A `first` one takes the place of an earlier one, which has to be
    compared with it if it comes back."""
    table = schema.Equivalence
    if Equality.FIRST in states.values():
        session.execute(
            delete(table).where(
                table.environment_id == environment_id,
                table.profile == profile,
                table.equals_id == equals_id,
                table.state == Equality.FIRST.value,
            )
        )
    for id_, state in states.items():
        row = session.get(table, (environment_id, profile, id_))
        if row is None:
            row = table(
                environment_id=environment_id,
                profile=profile,
                conditions_id=id_,
                equals_id=equals_id,
                evidence={},
                created_at=now,
            )
            session.add(row)
        row.state = state.value
        if state is Equality.DIFFERENT:
            row.evidence = {"failed": "there is no baseline to compare with"}
        row.decided_at = None if state is Equality.PENDING else now
    session.flush()


def controls(session: Session, row: schema.Equivalence) -> dict[int, schema.Measurement]:
    """The newest control of a host's conditions by seed."""
    return {found.seed: found for found in _controls(session, row)}


def _controls(session: Session, row: schema.Equivalence) -> Sequence[schema.Measurement]:
    """The controls of a host's conditions, the newest of a seed last."""
    environment = get(session, schema.Environment, row.environment_id, "environment")
    table = schema.Measurement
    query = (
        select(table)
        .where(
            table.codebase_id == environment.codebase,
            table.environment_id == environment.id,
            table.profile == row.profile,
            table.conditions_id == row.conditions_id,
            table.kind == MeasurementKind.CONTROL.value,
            _IS_OF_HOSTS,
        )
        .order_by(table.seed, table.replicate)
    )
    return session.scalars(query).all()


def to_repeat(session: Session, row: schema.Equivalence) -> list[int]:
    """The seeds whose control ended in a way that says nothing of the host's results: cancelled,
    or a failure that is not shared. After `MOST_TRIES` the host counts as different."""
    made_of = _controls(session, row)
    tries = Counter(made.seed for made in made_of)
    newest = {made.seed: made for made in made_of}
    return [
        seed
        for seed, made in newest.items()
        # Not by its replicate: reproductions count there, too.
        if tries[seed] <= MOST_TRIES
        and (
            made.state == MeasurementState.CANCELLED.value
            or (
                made.state == MeasurementState.FAILED.value
                and not rules_of_stored(made.failure or {}).shared
            )
        )
    ]


def have_ended(session: Session, row: schema.Equivalence) -> bool:
    """Whether the controls of a host's conditions have."""
    made = controls(session, row)
    return all(seed in made and MeasurementState(made[seed].state).is_terminal for seed in SEEDS)


def decide(session: Session, row: schema.Equivalence, direction: Direction, now: datetime) -> bool:
    """Decide about a host whose controls have ended. Whether that was possible."""
    if not have_ended(session, row) or to_repeat(session, row):
        return False
    made = controls(session, row)
    failed = [m for m in made.values() if m.state != MeasurementState.SUCCEEDED.value]
    if failed:
        failure = failed[0].failure or {}
        _decided(row, now, equal=False, evidence={"failed": failure.get("message", "cancelled")})
        return True
    environment = get(session, schema.Environment, row.environment_id, "environment")
    where = (session, environment, row.profile)
    ids = family(session, row.environment_id, row.profile, "", row.equals_id).ids
    here = values_of_unmodified(*where, ids, MeasurementKind.SCORE)
    # The shared seeds are paired, and a spread takes as many.
    if not here.keys() & set(SEEDS) or len(here) < len(SEEDS):
        return False
    there = values_of_unmodified(*where, [row.conditions_id], MeasurementKind.CONTROL)
    found = compare(direction, there, here)
    _decided(row, now, equal=found.equal, evidence=found.evidence)
    return True


def _decided(
    row: schema.Equivalence, now: datetime, *, equal: bool, evidence: dict[str, Any]
) -> None:
    row.state = (Equality.EQUAL if equal else Equality.DIFFERENT).value
    row.evidence, row.decided_at = evidence, now


def declare(
    session: Session,
    environment: schema.Environment,
    profile: str,
    direction: Direction,
    conditions: Sequence[str],
    by: str,
    now: datetime,
    *,
    despite_difference: bool = False,
) -> schema.Equivalence:
    """Take the first conditions for equal to the second, as an operator says. Repeating it is
    harmless.

    Raises:
        NotFound: conditions that nobody recorded.
        Conflict: the data or their scoring differ, the unmodified codebase was not measured on
            `SEEDS` under both (`no_evidence`), or it differs by more than chance explains
            (`baselines_differ`, but for `despite_difference`).
    """
    new, old = (get(session, schema.ConditionSet, id_, "conditions") for id_ in conditions)
    differ = "; ".join(differences(new.facts, old.facts))
    for fact in INCOMPARABLE:
        if new.facts.get(fact) != old.facts.get(fact):
            raise Conflict(
                f"they differ in {differ}. {fact} decides the data or how they are scored, so "
                "their results say different things and cannot be equal",
                code="not_comparable",
            )
    values = {}
    for id_ in (new.id, old.id):
        ids = [id_, *family(session, environment.id, profile, "", id_).ids]
        values[id_] = values_of_unmodified(
            session, environment, profile, ids, MeasurementKind.SCORE
        ) | values_of_unmodified(session, environment, profile, [id_], MeasurementKind.CONTROL)
        missing = [seed for seed in SEEDS if seed not in values[id_]]
        if missing:
            raise Conflict(
                f"the unmodified codebase was not measured under {id_} on the seeds {missing}; "
                f"run: assay env calibrate {environment.name} --profile {profile} "
                f"--conditions {id_} --no-write",
                code="no_evidence",
            )
    target = of_setting(session, environment.id, profile).canonical(old.id)
    if target == new.id:
        raise Conflict(
            f"{old.id} is taken for equal to {new.id} already, so nothing is left to declare",
            code="declared_already",
        )
    found = compare(direction, values[new.id], values[old.id])
    if not found.equal and not despite_difference:
        raise Conflict(
            f"the unmodified codebase differs by {found.evidence['effect']} (p "
            f"{found.evidence['p']}) between them, so results of one would say little about the "
            "other. To take them for equal all the same: --despite-difference",
            code="baselines_differ",
        )
    row = session.get(schema.Equivalence, (environment.id, profile, new.id))
    if row is None:
        row = schema.Equivalence(
            environment_id=environment.id,
            profile=profile,
            conditions_id=new.id,
            equals_id=target,
            state=Equality.EQUAL.value,
            created_at=now,
        )
        session.add(row)
    row.equals_id, row.declared_by = target, by
    _decided(row, now, equal=True, evidence=found.evidence | {"agrees": found.equal})
    session.flush()
    return row


def withdraw(
    session: Session, environment_id: str, profile: str, conditions: str
) -> schema.Equivalence:
    """Take back what an operator declared of these conditions. Returns the row that was removed.

    Hosts that the scheduler had decided about are new to it again, and their controls count.

    Raises:
        Conflict: no operator declared anything of them (`not_declared`).
    """
    row = session.get(
        schema.Equivalence, (environment_id, profile, conditions), with_for_update=True
    )
    if row is None or row.declared_by is None:
        raise Conflict(
            f"no operator declared {conditions} equal to others for {environment_id}, {profile}, "
            "so nothing is left to take back",
            code="not_declared",
        )
    session.delete(row)
    session.flush()
    return row


def declared(session: Session) -> Sequence[schema.Equivalence]:
    """The rows that operators declared."""
    table = schema.Equivalence
    return session.scalars(
        select(table)
        .where(table.declared_by.is_not(None))
        .order_by(table.environment_id, table.profile, table.conditions_id)
    ).all()
