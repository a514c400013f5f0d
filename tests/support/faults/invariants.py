"""Seven invariants, checked when everything has come to rest.

I1  every accepted experiment reaches exactly one terminal state;
I2  a result for each success and for nothing else, each with a manifest whose hashes verify;
I3  no lease (attempt, token) has two starts;
I4  at no instant do two containers hold one GPU, by the journals that hosts keep;
I5  no attempt, slot, message, process, container or prefix is left;
I6  stored logs and points are what the container wrote;
I7  model calls are at most those recorded, plus one per crash and sample it interrupted.

The database and the object store are read directly; what really ran comes from journals and from
the list of processes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from assay.domain.errors import NotFound
from assay.domain.states import (
    LIVE_ATTEMPT,
    TERMINAL_MEASUREMENT,
    AttemptState,
    MeasurementKind,
    MeasurementState,
)
from assay.storage import schema
from assay.storage.database import Database
from assay.storage.objects import ObjectStore
from tests.support.faults.hosts.journal import Interval, intervals
from tests.support.faults.hosts.work import log_bytes, point, value
from tests.support.faults.timing import SETTLE_SECONDS, TERMINAL

_ENDED_BY_REPORT = ("succeeded", "failed", "cancelled")
#: A stopped container's device may be taken again in the same instant.
_SAME_INSTANT = 1e-6


@dataclass(frozen=True)
class Expected:
    """What a database holds when faults changed nothing: so much, and all of it succeeded."""

    experiments: int
    measurements: int


@dataclass
class Evidence:
    """Where to look. What is None or empty is not looked at."""

    db: Database
    store: ObjectStore | None = None
    journals: Path | None = None
    accepted: Sequence[str] = ()  # ids of experiments that a client was told of
    scratch: Sequence[Path] = ()  # folders in which attempts have their workspaces
    processes: Callable[[], list[str]] = list  # what still runs and should not
    model_calls: int | None = None  # as the model counted them
    crashes: int = 0  # of whoever makes model calls
    expected: Expected | None = None
    verified: set[str] = field(default_factory=set)  # attempts whose files need no second look


@dataclass
class Report:
    """What was found; `violations` is empty if all invariants hold."""

    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def demand(self, holds: bool, invariant: str, text: str) -> None:
        """Note a violation."""
        if not holds:
            self.violations.append(f"{invariant}: {text}")

    def assert_sound(self) -> Report:
        """Raise AssertionError with everything that is wrong."""
        assert not self.violations, "\n".join(self.violations[:40])
        return self


def check(evidence: Evidence) -> Report:
    """Check every invariant for which there is evidence."""
    report = Report()
    ran = intervals(evidence.journals) if evidence.journals is not None else []
    with evidence.db.read() as session:
        _experiments(session, evidence, report)
        _measurements(session, report)
        if evidence.expected is not None:
            _expected(session, evidence.expected, report)
        _results(session, evidence, report)
        _slots(session, report)
        _prefixes(session, evidence.store, report)
        _model_calls(session, evidence, report)
        if evidence.journals is not None:
            _starts(session, ran, report)
            _devices(ran, report)
            _telemetry(session, evidence.store, ran, report)
            _values(session, ran, report)
    for folder in evidence.scratch:
        left = [p.name for p in (folder / "attempts").glob("*") if p.name != "probes"]
        report.demand(not left, "I5", f"{folder}: workspaces left: {left}")
    running = evidence.processes()
    report.demand(not running, "I5", f"still running: {running}")
    return report


def settle(evidence: Evidence, seconds: float = SETTLE_SECONDS) -> Report:
    """Check until every invariant holds, for so many seconds at most; return the last report."""
    deadline = time.monotonic() + seconds
    while (report := check(evidence)).violations and time.monotonic() < deadline:
        time.sleep(0.2)
    return report


def _experiments(session: Session, evidence: Evidence, report: Report) -> None:
    states = {row.id: row.state for row in session.execute(_columns(schema.Experiment))}
    for wanted in evidence.accepted:
        report.demand(wanted in states, "I1", f"{wanted} was accepted and is not stored")
    for experiment, state in states.items():
        report.demand(state in TERMINAL, "I1", f"{experiment} is {state}")
        report.counts[f"experiments_{state}"] += 1
    report.counts["experiments"] = len(states)
    ended: Counter[str] = Counter()
    for row in session.execute(select(schema.Event.experiment_id, schema.Event.data)):
        if row.experiment_id is not None and row.data.get("state") in TERMINAL:
            ended[row.experiment_id] += 1
    for experiment, state in states.items():
        if state in TERMINAL:
            times = ended[experiment]
            report.demand(times == 1, "I1", f"{experiment} ended {times} times")
    open_batches = session.scalars(
        select(schema.Batch.id).where(schema.Batch.finished_at.is_(None))
    ).all()
    report.demand(not open_batches, "I1", f"batches without an end: {list(open_batches)}")


def _columns(table: Any) -> Any:
    return select(table.id, table.state)


def _measurements(session: Session, report: Report) -> None:
    terminal = {s.value for s in TERMINAL_MEASUREMENT}
    for row in session.execute(_columns(schema.Measurement)):
        report.demand(row.state in terminal, "I1", f"measurement {row.id} is {row.state}")
        report.counts["measurements"] += 1
    doubled = session.execute(
        select(schema.Attempt.measurement_id, func.count())
        .where(schema.Attempt.state == AttemptState.SUCCEEDED.value)
        .group_by(schema.Attempt.measurement_id)
        .having(func.count() > 1)
    ).all()
    report.demand(not doubled, "I2", f"measured successfully twice: {list(doubled)}")
    report.counts["doubled"] = len(doubled)


def _expected(session: Session, expected: Expected, report: Report) -> None:
    """Nothing is lost, nothing is doubled, nothing failed."""
    for table, count in (
        (schema.Experiment, expected.experiments),
        (schema.Measurement, expected.measurements),
    ):
        states = dict(Counter(row.state for row in session.execute(_columns(table))))
        report.demand(
            states == {"succeeded": count},
            "I1",
            f"{table.__tablename__}: {states}, and not {count} that succeeded",
        )
    results = session.scalars(select(func.count()).select_from(schema.Result)).one()
    wanted = expected.measurements
    report.demand(results == wanted, "I2", f"{results} results of {wanted} measurements")


def _results(session: Session, evidence: Evidence, report: Report) -> None:
    succeeded = set(
        session.scalars(
            select(schema.Measurement.id).where(
                schema.Measurement.state == MeasurementState.SUCCEEDED.value
            )
        )
    )
    rows = session.execute(
        select(
            schema.Result.measurement_id,
            schema.Result.attempt_id,
            schema.Attempt.measurement_id.label("of"),
            schema.Attempt.state,
            schema.Artifacts.prefix,
            schema.Artifacts.files,
        )
        .join(schema.Attempt, schema.Attempt.id == schema.Result.attempt_id)
        .outerjoin(schema.Artifacts, schema.Artifacts.attempt_id == schema.Result.attempt_id)
    ).all()
    decided = {row.measurement_id for row in rows}
    report.demand(
        decided == succeeded,
        "I2",
        f"results and successes differ: {sorted(decided ^ succeeded)[:10]}",
    )
    report.counts["results"] = len(rows)
    for row in rows:
        right = row.of == row.measurement_id and row.state == AttemptState.SUCCEEDED.value
        report.demand(right, "I2", f"the result of {row.measurement_id} is of a wrong attempt")
        if evidence.store is None or not row.files:
            continue
        if row.attempt_id not in evidence.verified and _manifest(
            evidence.store, row.prefix, row.attempt_id, row.files, report
        ):
            evidence.verified.add(row.attempt_id)


def _manifest(
    store: ObjectStore, prefix: str, attempt: str, files: list[Any], report: Report
) -> bool:
    """Return whether the manifest is the one committed, and its files are what it says."""
    before = len(report.violations)
    try:
        manifest = json.loads(store.get(f"{prefix}/manifest.json"))
    except NotFound:
        report.demand(False, "I2", f"{prefix} has no manifest")
        return False
    same = manifest["attempt"] == attempt and _named(manifest["files"]) == _named(files)
    report.demand(same, "I2", f"the manifest of {attempt} is not the one committed")
    for entry in manifest["files"]:
        try:
            data = store.get(f"{prefix}/{entry['name']}")
        except NotFound:
            report.demand(False, "I2", f"{prefix}/{entry['name']} is missing")
            continue
        right = (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"])
        report.demand(right, "I2", f"{prefix}/{entry['name']} is not what its hash says")
    report.counts["manifests"] += 1
    return len(report.violations) == before


def _named(files: Iterable[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return sorted((one["name"], one["bytes"], one["sha256"]) for one in files)


def _slots(session: Session, report: Report) -> None:
    live = [s.value for s in LIVE_ATTEMPT]
    for row in session.execute(
        select(schema.Attempt.id, schema.Attempt.state, schema.Attempt.worker_id).where(
            schema.Attempt.released_at.is_(None)
            | schema.Attempt.finished_at.is_(None)
            | schema.Attempt.state.in_(live)
        )
    ):
        text = f"{row.id} ({row.state}) on {row.worker_id} has not ended, or still holds its slots"
        report.demand(False, "I5", text)
    waiting = session.scalars(select(func.count()).select_from(schema.Outbox)).one()
    report.demand(waiting == 0, "I5", f"{waiting} messages wait in the outbox")
    for state, count in session.execute(
        select(schema.Attempt.state, func.count()).group_by(schema.Attempt.state)
    ):
        report.counts[f"attempts_{state}"] = count


def _prefixes(session: Session, store: ObjectStore | None, report: Report) -> None:
    """Every file of an attempt lies below the prefix of an attempt that is known."""
    if store is None:
        return
    known = {
        f"attempts/{row.measurement_id}/{row.id}-{row.lease_token}"
        for row in session.execute(
            select(schema.Attempt.measurement_id, schema.Attempt.id, schema.Attempt.lease_token)
        )
    }
    for item in store.list("attempts/"):
        prefix = "/".join(item.key.split("/")[:3])
        report.demand(prefix in known, "I5", f"{item.key} belongs to no attempt")


def _model_calls(session: Session, evidence: Evidence, report: Report) -> None:
    states = session.scalars(select(schema.ModelCall.state)).all()
    interrupted = states.count("interrupted")
    report.counts["model_calls_recorded"] = len(states)
    report.counts["model_calls_repeated"] = interrupted
    if evidence.model_calls is not None:
        most = len(states)
        report.demand(
            evidence.model_calls <= most,
            "I7",
            f"{evidence.model_calls} calls were made, {most} are on record",
        )
    if evidence.crashes == 0:
        report.demand(interrupted == 0, "I7", f"{interrupted} calls repeated without a crash")


def _starts(session: Session, ran: list[Interval], report: Report) -> None:
    starts = Counter(one.key for one in ran)
    for key, times in starts.items():
        report.demand(times == 1, "I3", f"{key} was started {times} times")
    report.counts["starts"] = len(ran)
    hosts = {one.host for one in ran}
    known = set()
    for row in session.execute(
        select(
            schema.Attempt.id, schema.Attempt.lease_token, schema.Attempt.state, schema.Worker.name
        ).join(schema.Worker, schema.Worker.id == schema.Attempt.worker_id)
    ):
        key = (row.id, row.lease_token)
        known.add(key)
        if row.name in hosts and row.state == AttemptState.SUCCEEDED.value:
            report.demand(starts[key] == 1, "I3", f"{key} succeeded and was never started")
    for key in starts:
        report.demand(key in known, "I3", f"{key} was started and is not known")


def _devices(ran: list[Interval], report: Report) -> None:
    by_device: dict[str, list[Interval]] = defaultdict(list)
    for one in ran:
        report.demand(one.stop is not None, "I5", f"{one.key} still runs on {one.host}")
        for device in one.devices:
            by_device[device].append(one)
    for device, held in by_device.items():
        for first, second in itertools.pairwise(held):
            until = float("inf") if first.stop is None else first.stop
            report.demand(
                until <= second.start + _SAME_INSTANT,
                "I4",
                f"{device} was held by {first.key} and {second.key} at once",
            )
    report.counts["devices_used"] = len(by_device)


def _telemetry(
    session: Session, store: ObjectStore | None, ran: list[Interval], report: Report
) -> None:
    states = {
        (row.id, row.lease_token): row.state
        for row in session.execute(
            select(schema.Attempt.id, schema.Attempt.lease_token, schema.Attempt.state)
        )
    }
    logs, points = _stored_logs(session, store), _stored_points(session)
    for one in ran:
        whole = states.get(one.key) in _ENDED_BY_REPORT and bool(one.written)
        _log(one, logs.get(one.attempt, []), whole, report)
        stored = points.get(one.attempt, {})
        for seq, values in stored.items():
            right = values == point(one.attempt, seq)
            report.demand(right, "I6", f"point {seq} of {one.attempt} is not what was written")
        if whole:
            wanted = set(range(one.written["points"]))
            report.demand(set(stored) == wanted, "I6", f"{one.attempt}: points are missing")


def _stored_logs(
    session: Session, store: ObjectStore | None
) -> dict[str, list[tuple[int, bytes]]]:
    found: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    table = schema.LogChunk
    for row in session.execute(
        select(table.attempt_id, table.byte_offset, table.data, table.key)
        .where(table.stream == "train")
        .order_by(table.attempt_id, table.byte_offset)
    ):
        data = row.data
        if data is None:
            assert store is not None, f"{row.key} lies in a store that nobody named"
            data = store.get(row.key)
        found[row.attempt_id].append((row.byte_offset, bytes(data)))
    return found


def _stored_points(session: Session) -> dict[str, dict[int, Any]]:
    found: dict[str, dict[int, Any]] = defaultdict(dict)
    table = schema.CurvePoint
    for row in session.execute(select(table.attempt_id, table.seq, table.values)):
        found[row.attempt_id][row.seq] = row.values
    return found


def _log(one: Interval, chunks: list[tuple[int, bytes]], whole: bool, report: Report) -> None:
    position = 0
    for offset, data in chunks:
        report.demand(offset >= position, "I6", f"{one.attempt}: bytes at {offset} twice")
        right = data == log_bytes(one.attempt, one.token, offset, len(data))
        report.demand(right, "I6", f"{one.attempt}: bytes at {offset} are not those written")
        report.demand(
            not whole or offset == position, "I6", f"{one.attempt}: a gap before {offset}"
        )
        position = offset + len(data)
    if whole:
        wanted = one.written["log"]
        report.demand(
            position == wanted, "I6", f"{one.attempt}: {position} of {wanted} bytes are stored"
        )
    report.counts["log_bytes"] += sum(len(data) for _, data in chunks)


def _values(session: Session, ran: list[Interval], report: Report) -> None:
    """A result is the number of its codebase and seed, whichever host measured it."""
    of_fleet = {one.attempt for one in ran}
    for row in session.execute(
        select(
            schema.Result.attempt_id,
            schema.Result.metric,
            schema.Measurement.codebase_id,
            schema.Measurement.seed,
        )
        .join(schema.Measurement, schema.Measurement.id == schema.Result.measurement_id)
        .where(schema.Measurement.kind != MeasurementKind.SMOKE.value)
    ):
        if row.attempt_id in of_fleet:
            right = row.metric == value(row.codebase_id, row.seed)
            report.demand(right, "I2", f"the result of {row.attempt_id} is another's")
