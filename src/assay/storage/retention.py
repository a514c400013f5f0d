"""Which large artifacts are kept: the best, the baselines', the bases', and what may be asked for.

Weights of a GPU profile take gigabytes, and most ideas are not worth looking at twice. `garbage`
applies this; small artifacts are kept for ever. What is removed stays in its row with the moment
of its removal, so that whoever asks for it is told.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from assay.contracts.environment import MetricSpec
from assay.domain.metrics import Direction
from assay.domain.states import LIVE_ATTEMPT, TERMINAL_EXPERIMENT, TERMINAL_MEASUREMENT
from assay.storage import bases, disclosure, environments, schema
from assay.storage.database import Database
from assay.storage.objects import ObjectStore

_log = logging.getLogger(__name__)
_AT_ONCE = 500
#: Of a file in `Artifacts.files`: when it was removed.
REMOVED_AT = "removed_at"


@dataclass(frozen=True)
class Retention:
    """What is kept: the `best` artifacts of each environment, profile, conditions and kind, those
    of up to `large_bytes`, and those whose attempt ended less than `after` ago."""

    best: int = 10
    large_bytes: int = 64 << 20
    after: timedelta = timedelta(days=1)


@dataclass(frozen=True)
class Removed:
    """What was removed."""

    files: int = 0
    bytes: int = 0


class _Group(NamedTuple):
    """Results of one group can be compared."""

    environment: str
    profile: str
    hardware_class: str
    conditions: str
    kind: str


@dataclass(frozen=True)
class _Large:
    """An attempt with files that are large and stored."""

    attempt: str
    measurement: str
    group: _Group
    #: What ranks it, more being better; None without a result.
    value: float | None
    ended_at: datetime | None
    #: Of the environment's own codebase or of a base.
    is_baseline: bool
    is_open: bool


def apply(db: Database, store: ObjectStore, rules: Retention) -> Removed:
    """Remove the large artifacts that the rules do not keep.

    Each is marked in its row first: a process that is killed in between leaves an object that
    nothing names any more, which `garbage` removes.
    """
    with db.read() as session:
        before = db.now(session) - rules.after
        found = list(_large(session, rules))
        best = _best(found, rules.best)
        old = [
            each
            for each in found
            if each.attempt not in best
            and not each.is_baseline
            and not each.is_open
            and each.ended_at is not None
            and each.ended_at < before
        ]
        needed = _needed(session, [each.measurement for each in old])
    unwanted = [each.attempt for each in old if each.measurement not in needed]
    files = size = 0
    for some in _groups(unwanted):
        with db.write() as session:
            removed = _mark(session, some, rules, db.now(session))
        for key, count in removed.items():
            store.remove(key)
            files, size = files + 1, size + count
    _log.info("removed %d large artifacts of %d bytes", files, size)
    return Removed(files, size)


def is_large(file: Mapping[str, Any], rules: Retention) -> bool:
    """Whether a file of `Artifacts.files` is stored, and large."""
    return REMOVED_AT not in file and file["bytes"] > rules.large_bytes


def _large(session: Session, rules: Retention) -> Iterator[_Large]:
    attempt, measurement, result = schema.Attempt, schema.Measurement, schema.Result
    rows = session.execute(
        select(
            schema.Artifacts.files,
            attempt.id,
            attempt.state,
            attempt.finished_at,
            measurement,
            disclosure.SHOWN_METRIC,
            schema.Environment.codebase,
        )
        .join(attempt, attempt.id == schema.Artifacts.attempt_id)
        .join(measurement, measurement.id == attempt.measurement_id)
        .join(schema.Environment, schema.Environment.id == measurement.environment_id)
        .outerjoin(result, result.attempt_id == attempt.id),
        execution_options={"yield_per": _AT_ONCE},
    )
    kept = bases.all_bases(session)
    live = {state.value for state in LIVE_ATTEMPT}
    ended = {state.value for state in TERMINAL_MEASUREMENT}
    for files, attempt_id, state, finished_at, of, metric, baseline in rows:
        if not any(is_large(file, rules) for file in files):
            continue
        spec = environments.manifest(session, of.environment_id).metric
        yield _Large(
            attempt=attempt_id,
            measurement=of.id,
            group=_Group(
                of.environment_id, of.profile, of.hardware_class, of.conditions_id, of.kind
            ),
            value=None if metric is None else _rank(spec, metric),
            ended_at=finished_at,
            is_baseline=of.codebase_id == baseline or (of.environment_id, of.codebase_id) in kept,
            is_open=state in live or of.state not in ended,
        )


def _rank(spec: MetricSpec, shown: float) -> float:
    """What winners are ranked by, as it is shown: exact numbers would tell, by what is removed,
    which of two equal ones is better."""
    return -shown if spec.direction is Direction.MINIMIZE else shown


def _best(found: Iterable[_Large], count: int) -> set[str]:
    """The best attempts of each group, baselines aside; of equal ones the first."""
    groups: dict[_Group, list[_Large]] = defaultdict(list)
    for each in found:
        if each.value is not None and not each.is_baseline:
            groups[each.group].append(each)
    return {
        each.attempt for group in groups.values() for each in sorted(group, key=_place)[:count]
    }


def _place(each: _Large) -> tuple[float, datetime, str]:
    assert each.value is not None
    assert each.ended_at is not None, "what has a result has ended"
    return -each.value, each.ended_at, each.attempt


def _needed(session: Session, measurements: Sequence[str]) -> set[str]:
    """Those of the measurements that an unfinished experiment, or a confirmation, refers to."""
    experiment, idea, link = schema.Experiment, schema.Idea, schema.ExperimentMeasurement
    confirmed = select(idea.confirms).where(idea.confirms.is_not(None))
    found: set[str] = set()
    for some in _groups(measurements):
        found |= set(
            session.scalars(
                select(link.measurement_id)
                .join(experiment, experiment.id == link.experiment_id)
                .join(idea, idea.id == experiment.idea_id)
                .where(
                    link.measurement_id.in_(some),
                    or_(
                        experiment.state.not_in([s.value for s in TERMINAL_EXPERIMENT]),
                        idea.confirms.is_not(None),
                        experiment.id.in_(confirmed),
                    ),
                )
            )
        )
    return found


def _mark(
    session: Session, attempts: Sequence[str], rules: Retention, now: datetime
) -> dict[str, int]:
    """Note that the large files of attempts are removed; their keys and sizes."""
    removed: dict[str, int] = {}
    rows = session.scalars(
        select(schema.Artifacts)
        .where(schema.Artifacts.attempt_id.in_(attempts))
        .order_by(schema.Artifacts.attempt_id)
        .with_for_update()
    )
    for row in rows:
        large = [file for file in row.files if is_large(file, rules)]
        removed |= {f"{row.prefix}/{file['name']}": file["bytes"] for file in large}
        row.files = [
            file | {REMOVED_AT: now.isoformat()} if file in large else file for file in row.files
        ]
    return removed


def _groups(items: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(items)
    while group := list(islice(rest, _AT_ONCE)):
        yield group
