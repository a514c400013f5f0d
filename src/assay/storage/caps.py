"""What was spent, and the caps on it: dollars of model calls, hours of GPUs.

A call that is under way counts with what it is expected to cost, a measurement that has not ended
with its whole budget and warm-up: so a cap holds for what was begun, not only for what has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from assay.contracts.base import MAX_DOLLARS, MAX_GPU_HOURS
from assay.contracts.batch import BatchOptions
from assay.contracts.caps import (
    DAY,
    Caps,
    Kind,
    Limit,
    OwnerSpending,
    Scope,
    SearchSpending,
    Spending,
)
from assay.domain.failure_codes import FailureCode
from assay.domain.states import TERMINAL_MEASUREMENT
from assay.storage import schema
from assay.storage.calls import Payer
from assay.storage.database import Database
from assay.storage.types import epoch

#: Failures that say that a cap was reached.
CAP_CODES = (FailureCode.SPEND_CAP, FailureCode.GPU_HOURS_CAP)
KINDS: tuple[Kind, ...] = ("cost_usd", "gpu_hours")
_TERMINAL = [s.value for s in TERMINAL_MEASUREMENT]


@dataclass(frozen=True)
class Reached:
    """A cap that allows nothing more, and what counts against it."""

    limit: Limit
    used: Decimal | float

    @property
    def code(self) -> FailureCode:
        """The code of what it ends."""
        spends = self.limit.kind == "cost_usd"
        return FailureCode.SPEND_CAP if spends else FailureCode.GPU_HOURS_CAP

    def __str__(self) -> str:
        unit = "USD" if self.limit.kind == "cost_usd" else "GPU-hours"
        return f"{self.limit.whose} has used {self.used:.6g} of {self.limit.most:.6g} {unit}"


def reached(
    db: Database,
    session: Session,
    payer: Payer,
    caps: Caps,
    *,
    more_gpu_hours: float = 0.0,
    under_way: bool = True,
    kinds: Collection[Kind] = KINDS,
) -> Reached | None:
    """The first cap that is reached, or that `more_gpu_hours` would pass; None if none is.

    `under_way`: count the calls that have not ended. `kinds`: of which caps to look.
    """
    for limit in caps.limits(payer.batch, payer.search, payer.owner):
        if limit.kind not in kinds:
            continue
        if limit.kind == "cost_usd":
            used: Decimal | float = dollars(db, session, limit.scope, payer, under_way=under_way)
            if used >= limit.most:
                return Reached(limit, used)
        else:
            used = gpu_hours(db, session, limit.scope, payer)
            if used >= limit.most or used + more_gpu_hours > limit.most:
                return Reached(limit, used + more_gpu_hours)
    return None


def dollars(
    db: Database, session: Session, scope: Scope, payer: Payer, *, under_way: bool = True
) -> Decimal:
    """What the calls of a scope have cost, where prices are known."""
    key = _key(scope, payer)
    return dollars_of(db, session, scope, [key], under_way=under_way).get(key, Decimal(0))


def dollars_of(
    db: Database,
    session: Session,
    scope: Scope,
    keys: Collection[str],
    *,
    under_way: bool = True,
) -> dict[str, Decimal]:
    """As `dollars`, of several batches, searches or owners, in one query. Those without calls are
    left out."""
    table = schema.ModelCall
    cost: ColumnElement[Decimal | None] = table.cost_usd.expression
    if under_way:
        cost = func.coalesce(cost, case((table.state == "calling", table.reserved_usd)))
    whose: InstrumentedAttribute[Any] = table.owner
    if scope == "batch":
        whose = table.batch_id
    elif scope in ("search", "ideator", "executor"):
        whose = table.search_id
    query = select(whose, func.sum(cost)).where(whose.in_(keys)).group_by(whose)
    if scope == "ideator":
        query = query.where(table.implementation_id.is_(None))
    elif scope == "executor":
        query = query.where(table.implementation_id.is_not(None))
    elif scope == DAY:
        query = query.where(table.started_at >= _midnight(db, session))
    return {key: total or Decimal(0) for key, total in session.execute(query)}


def _key(scope: Scope, payer: Payer) -> str:
    """The batch, search or owner that a scope is about."""
    if scope == "batch":
        return payer.batch or ""
    return (payer.search or "") if scope in ("search", "ideator", "executor") else payer.owner


def gpu_hours(db: Database, session: Session, scope: Scope, payer: Payer) -> float:
    """GPU-hours of the measurements of a scope; of what has not ended, its budget."""
    key = _key(scope, payer)
    return gpu_hours_of(db, session, scope, [key]).get(key, 0.0)


def gpu_hours_of(
    db: Database, session: Session, scope: Scope, keys: Collection[str]
) -> dict[str, float]:
    """As `gpu_hours`, of several batches, searches or owners, in two queries. Those without
    measurements on GPUs are left out."""
    which = _measurements_of(db, session, scope, keys).subquery().c
    attempt, table = schema.Attempt, schema.Measurement
    ended = session.execute(
        select(
            which.key,
            func.sum(attempt.gpus * (epoch(attempt.finished_at) - epoch(attempt.created_at))),
        )
        .join(attempt, attempt.measurement_id == which.id)
        .where(attempt.finished_at.is_not(None))
        .group_by(which.key)
    )
    open_ = session.execute(
        select(which.key, func.sum(table.gpus * table.budget_seconds))
        .join(table, table.id == which.id)
        .where(table.state.not_in(_TERMINAL))
        .group_by(which.key)
    )
    found: dict[str, float] = defaultdict(float)
    for key, seconds in (*ended, *open_):
        found[key] += float(seconds or 0) / 3600
    return found


def _measurements_of(
    db: Database, session: Session, scope: Scope, keys: Collection[str]
) -> Select[Any, Any]:
    """What was measured on GPUs for batches or searches, or asked for by owners: pairs of `key`
    and the measurement's `id`."""
    table, link = schema.Measurement, schema.ExperimentMeasurement
    if scope in ("batch", "search"):
        whose = schema.Experiment.batch_id if scope == "batch" else schema.Batch.search_id
        return (
            select(whose.label("key"), link.measurement_id.label("id"))
            .join(schema.Experiment, schema.Experiment.id == link.experiment_id)
            .join(schema.Batch, schema.Batch.id == schema.Experiment.batch_id)
            .join(table, table.id == link.measurement_id)
            .where(table.gpus > 0, whose.in_(keys))
            .distinct()
        )
    query = select(table.owner.label("key"), table.id.label("id")).where(
        table.owner.in_(keys), table.gpus > 0
    )
    return query if scope != DAY else query.where(table.created_at >= _midnight(db, session))


def _midnight(db: Database, session: Session) -> Any:
    """When the day began, in UTC."""
    return db.now(session).replace(hour=0, minute=0, second=0, microsecond=0)


def used_by(
    db: Database, session: Session, wanted: Iterable[tuple[Limit, Payer]]
) -> dict[tuple[Kind, Scope, str], Decimal | float]:
    """What counts against caps: see `used`. The number of queries depends on how many kinds and
    scopes there are, not on how many payers."""
    keys: dict[tuple[Kind, Scope], set[str]] = defaultdict(set)
    for limit, payer in wanted:
        keys[limit.kind, limit.scope].add(_key(limit.scope, payer))
    found: dict[tuple[Kind, Scope, str], Decimal | float] = {}
    for (kind, scope), of in keys.items():
        sums: Mapping[str, Decimal | float] = (
            dollars_of(db, session, scope, of)
            if kind == "cost_usd"
            else gpu_hours_of(db, session, scope, of)
        )
        nothing = Decimal(0) if kind == "cost_usd" else 0.0
        found |= {(kind, scope, key): sums.get(key, nothing) for key in of}
    return found


def used(
    found: Mapping[tuple[Kind, Scope, str], Decimal | float], limit: Limit, payer: Payer
) -> Decimal | float:
    """What counts against one of the caps that `used_by` was asked about."""
    return found[limit.kind, limit.scope, _key(limit.scope, payer)]


def all_of(
    session: Session, payer: Payer, options: BatchOptions, owners: Mapping[str, OwnerSpending]
) -> Caps:
    """All caps that a batch is under. `owners`: those of owners by name, `*` for the others."""
    return Caps(
        batch=Spending(max_cost_usd=options.max_cost_usd, max_gpu_hours=options.max_gpu_hours),
        search=spending_of(session.get_one(schema.Search, payer.search))
        if payer.search
        else SearchSpending(),
        owner=of_owner(owners, payer.owner),
    )


def options_of(batch: schema.Batch) -> BatchOptions:
    """Return the options of a batch as it was submitted."""
    return BatchOptions.model_validate(_bounded(batch.options))


def of_ideator(search: schema.Search, owners: Mapping[str, OwnerSpending]) -> Caps:
    """All caps that the calls of a search's ideator are under."""
    return Caps(search=spending_of(search), owner=of_owner(owners, search.owner))


def spending_of(search: schema.Search) -> SearchSpending:
    """Return the caps of a search."""
    return SearchSpending.model_validate(_bounded(search.caps))


def _bounded(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored caps within what a request may name: earlier versions stored any number, and a list
    that shows one must still be answered."""
    found = dict(stored)
    hours = found.get("max_gpu_hours")
    for name in ("max_cost_usd", "max_ideator_cost_usd", "max_executor_cost_usd"):
        if found.get(name) is not None:
            found[name] = min(Decimal(found[name]), Decimal(MAX_DOLLARS))
    if hours is not None:
        found["max_gpu_hours"] = min(float(hours), float(MAX_GPU_HOURS))
    return found


def of_owner(owners: Mapping[str, OwnerSpending], owner: str) -> OwnerSpending:
    """The caps of an owner: its own, or those of the others (`*`)."""
    return owners.get(owner) or owners.get("*") or OwnerSpending()
