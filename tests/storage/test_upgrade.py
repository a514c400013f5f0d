"""A database of the first migration, with work in flight, comes to the newest schema and its work
is finished; and what processes of the version before write is understood while both run."""

from __future__ import annotations

import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from sqlalchemy import select, text

from assay.domain.rounding import shown
from assay.domain.states import LIVE_ATTEMPT
from assay.storage import implementations, schema, shapes
from assay.storage.database import Database, alembic_config
from assay.storage.health import check_schema
from assay.storage.opening import migrate
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from tests.storage.embedded import results, serving
from tests.storage.lifecycle import World
from tests.storage.recorded import HAD_RESULTS, HARDWARE_CLASS, IDEAS, RESULTS, restore
from tests.support.service import ServiceProcess


def the_batch(db: Database) -> str:
    with db.read() as session:
        return session.execute(text("SELECT id FROM batch")).scalar_one()


def check_finished(db: Database, before: dict[str, tuple[object, ...]]) -> None:
    """Everything has one result, and what had one before has that one."""
    with db.read() as session:
        check_schema(session)
        after = results(session)
        assert len(after) == RESULTS
        assert len(before) == HAD_RESULTS
        assert {key: after[key] for key in before} == before
        states = Counter(session.scalars(select(schema.Experiment.state)))
        assert states == {"succeeded": IDEAS}
        attempts = session.scalars(select(schema.Attempt)).all()
        assert [a.id for a in attempts if a.state in {s.value for s in LIVE_ATTEMPT}] == []
        assert [a.id for a in attempts if a.released_at is None] == []
        lost = [a for a in attempts if a.state == "lost"]
        assert len(lost) == 2, "those that ran when the service was killed"
        assert Counter(a.state for a in attempts) == {"succeeded": RESULTS, "lost": 2}
        assert session.scalars(select(schema.Batch.state)).one() == "finished"


def recorded_results(db: Database) -> dict[str, tuple[object, ...]]:
    with db.read() as session:
        return results(session)


def test_calls_of_before_the_ledger_are_in_it(tmp_path: Path) -> None:
    """Also those that had no answer: a sibling had won, or the process died."""
    db = Database(f"sqlite:///{tmp_path}/assay.db")
    restore(db, tmp_path / "objects")
    with db.write() as session:
        work = session.execute(text("SELECT min(implementation_id) FROM sample")).scalar_one()
        for number, (state, code) in enumerate(
            [("cancelled", None), ("calling", None), ("refused", "does_not_compile")], 20
        ):
            session.execute(
                text(
                    "INSERT INTO sample (implementation_id, sample, revision, state, code, "
                    "prompt_version, input_tokens, cached_input_tokens, output_tokens, tries, "
                    "interrupted, started_at) SELECT implementation_id, :n, 0, :state, :code, "
                    "'p', 0, 0, 0, 1, 0, started_at FROM sample WHERE implementation_id = :of "
                    "LIMIT 1"
                ),
                {"n": number, "state": state, "code": code, "of": work},
            )
    db.migrate()
    with db.read() as session:
        check_schema(session)
        made = select(schema.ModelCall).where(schema.ModelCall.implementation_id == work)
        calls = {call.sample: call.state for call in session.scalars(made)}
        asked = select(schema.Sample).where(schema.Sample.implementation_id == work)
        fitted = {row.sample: row.fitted for row in session.scalars(asked)}
    assert {n: calls[n] for n in (20, 21, 22)} == {
        20: "interrupted",
        21: "interrupted",
        22: "interrupted",
    }
    assert {n: fitted[n] for n in (20, 21, 22)} == {20: False, 21: False, 22: True}
    assert calls[0] == "returned"
    assert fitted[0]
    db.dispose()


@pytest.mark.slow
def test_the_embedded_service_finishes_what_the_first_version_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_WORKER_HARDWARE_CLASS", HARDWARE_CLASS)
    data = tmp_path / "data"
    data.mkdir()
    db = Database(f"sqlite:///{data}/assay.db")
    restore(db, data / "objects")
    before = recorded_results(db)
    batch = the_batch(db)
    db.dispose()

    service = ServiceProcess(data, sandbox="subprocess")
    service.start()
    with service.client() as client:
        finished = client.batches.wait(batch, timeout=120)
    assert service.stop() == 0
    assert (finished.state, finished.counts.succeeded) == ("finished", IDEAS)
    check_finished(db, before)
    db.dispose()


@pytest.mark.slow
@pytest.mark.postgres
def test_on_postgres_as_well(
    unmigrated: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    restore(unmigrated, data / "objects")
    before = recorded_results(unmigrated)
    with serving(unmigrated, data, monkeypatch) as client:
        finished = client.batches.wait(the_batch(unmigrated), timeout=120)
    assert (finished.state, finished.counts.succeeded) == ("finished", IDEAS)
    check_finished(unmigrated, before)


def test_every_row_gets_what_the_newest_schema_wants(db: Database, tmp_path: Path) -> None:
    """What the migration itself does, and that the way back keeps every row."""
    downgrade(db)
    restore(db, tmp_path / "objects")
    counts = rows(db)
    db.migrate()
    with db.read() as session:
        measured = session.scalars(select(schema.Measurement)).all()
        (shape,) = session.scalars(select(schema.Shape)).all()
        assert {m.shape_id for m in measured} == {shape.id}
        assert (shape.hardware_class, shape.cpus, shape.gpus) == (HARDWARE_CLASS, 1, 0)
        assert shape.bound_seconds >= shape.budget_seconds
        assert all(m.batch_at == m.created_at for m in measured)
        attempts = session.scalars(select(schema.Attempt)).all()
        assert {a.bound_seconds for a in attempts} == {shape.bound_seconds}
        assert all(a.deadline_at is None and a.devices == [] for a in attempts)
        chunks = session.scalars(select(schema.LogChunk)).all()
        assert [c.size for c in chunks] == [len(c.data or b"") for c in chunks]
        assert len(chunks) > 0
        scored = session.scalars(select(schema.Result)).all()
        assert len(scored) == HAD_RESULTS
        assert [r.shown_metric for r in scored] == [shown(r.metric) for r in scored]
        assert {(m.search_bits, m.sealed_bits) for m in measured} == {(0, 0)}
        with pytest.raises(sa.exc.DatabaseError, match="terminal state is final"):
            session.execute(text("UPDATE attempt SET state = 'lost' WHERE state = 'succeeded'"))
    downgrade(db)
    after = rows(db)
    assert {name: after[name] for name in counts} == counts


def downgrade(db: Database) -> None:
    db.dispose()  # its connections have prepared statements for the schema that was
    command.downgrade(alembic_config(db.url), "0001")


def rows(db: Database) -> dict[str, int]:
    tables = sa.MetaData()
    tables.reflect(db.engine)
    with db.read() as session:
        return {
            table.name: session.execute(select(sa.func.count()).select_from(table)).scalar_one()
            for table in tables.sorted_tables
        }


def test_ideas_get_the_base_of_their_batch(world: World) -> None:
    """Also those whose batch is under way: what they change must not become the baseline."""
    db = world.db
    based = [world.experiments(world.submit("Count by two."))[0] for _ in range(2)]
    based += world.experiments(plain := world.submit("Count by three.", "By four."))
    ideas = [experiment.idea_id for experiment in based]
    base = "b" * 64
    with db.write() as session:
        own = session.scalars(select(schema.Environment.codebase)).one()
        for idea in ideas[:2]:
            row = session.get_one(schema.Idea, idea)
            row.base_id, row.base = base, "best"
    db.dispose()
    command.downgrade(alembic_config(db.url), "0011")
    with db.read() as session:
        listed = session.execute(text("SELECT id, base FROM batch")).all()
        found: dict[str, str | None] = dict(listed)
    assert {found.pop(plain)} == {None}
    assert set(found.values()) == {"best"}
    db.dispose()
    db.migrate()
    with db.read() as session:
        rows = [session.get_one(schema.Idea, idea) for idea in ideas]
        assert [row.base for row in rows] == ["best", "best", None, None]
    with db.write() as session:
        work = [implementations.begin(db, session, experiment.id) for experiment in based]
    assert [each and each.base_codebase for each in work] == [base, base, own, own]


# -- Processes of both versions side by side ------------------------------------------------------


def written_before(db: Database, table: str, row: dict[str, object]) -> None:
    """Insert a row with the columns that the first version knows, as that version does."""
    known = {
        "measurement": "id kind codebase_id environment_id profile seed hardware_class replicate "
        "owner state failure priority needs_isolation cpus gpus memory_bytes budget_seconds "
        "infrastructure_failures cancel_requested created_at queued_at finished_at",
        "attempt": "id measurement_id number worker_id lease_token lease_expires_at state failure "
        "cpus gpus memory_bytes created_at started_at finished_at released_at",
        "log_chunk": "attempt_id stream byte_offset data",
        "worker": "id name token_hash incarnation state cpus gpus memory_bytes hardware_class "
        "sandbox isolated guarantees info draining last_seen_at",
    }[table].split()
    columns = schema.Base.metadata.tables[table].c
    names = [name for name in known if name in row]
    statement = text(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(':' + n for n in names)})"
    ).bindparams(*(sa.bindparam(name, type_=columns[name].type) for name in names))
    with db.write() as session:
        session.execute(statement, {name: row[name] for name in names})


def values(row: schema.Base) -> dict[str, object]:
    """A row by the names of its columns."""
    mapper = sa.inspect(type(row))
    return {
        column.key: getattr(row, mapper.get_property_by_column(column).key)
        for column in row.__table__.columns
    }


@pytest.fixture
def world(db: Database, store: object, catalog: object) -> World:
    return World.create(db, store, catalog)  # type: ignore[arg-type]


def test_what_the_version_before_queues_is_placed(world: World) -> None:
    """It knows no shapes; the scheduler gives its measurements one."""
    db = world.db
    batch = world.submit("Count by two.")
    measurement = world.implement(world.experiments(batch)[0].id, "STEP = 2\n")
    with db.write() as session:
        row = values(session.get_one(schema.Measurement, measurement))
    row |= {"id": "mea_from_before", "replicate": 1}
    written_before(db, "measurement", row)
    with db.read() as session:
        assert shapes.any_missing(session)
        assert session.get_one(schema.Measurement, "mea_from_before").shape_id is None
    scheduler = Scheduler(db, SchedulerSettings(), lambda: None)
    assert scheduler.tick() == 2
    with db.read() as session:
        both = session.scalars(select(schema.Measurement)).all()
        assert {m.state for m in both} == {"running"}
        assert len({m.shape_id for m in both}) == 1
        assert not shapes.any_missing(session)
        given = session.scalars(select(schema.Attempt)).all()
        assert all(attempt.bound_seconds > 0 for attempt in given)


def test_what_the_version_before_assigns_and_reports_is_taken(world: World) -> None:
    """An attempt without a deadline, and log bytes without a size."""
    db = world.db
    batch = world.submit("Count by two.")
    measurement = world.implement(world.experiments(batch)[0].id, "STEP = 2\n")
    attempt = world.assign(measurement)
    assert attempt is not None
    with db.write() as session:
        row = values(session.get_one(schema.Attempt, attempt.id))
        session.execute(text("DELETE FROM attempt"))
    written_before(db, "attempt", row)
    written_before(
        db,
        "log_chunk",
        {"attempt_id": attempt.id, "stream": "train", "byte_offset": 0, "data": b"hello"},
    )
    Scheduler(db, SchedulerSettings(), lambda: None).tick()
    world.claim(attempt)
    world.finish(attempt)
    assert world.state(measurement) == "succeeded"
    with db.read() as session:
        stored = session.get_one(schema.Attempt, attempt.id)
        assert (stored.devices, stored.infrastructure, stored.rings) == ([], False, 0)


def test_a_worker_that_the_version_before_registers_is_given_work(world: World) -> None:
    db = world.db
    with db.write() as session:
        row = values(session.get_one(schema.Worker, world.worker))
        session.execute(text("DELETE FROM worker"))
    written_before(db, "worker", row)
    batch = world.submit("Count by two.")
    world.implement(world.experiments(batch)[0].id, "STEP = 2\n")
    assert Scheduler(db, SchedulerSettings(), lambda: None).tick() == 1


def test_a_state_that_this_version_does_not_know_is_left_alone(world: World) -> None:
    """A newer version may add one; this one neither fails over it nor changes it."""
    db = world.db
    batch = world.submit("Count by two.", "Count by three.")
    first, second = (
        world.implement(e.id, f"STEP = {n}\n") for n, e in enumerate(world.experiments(batch))
    )
    with db.write() as session:
        session.execute(
            text("UPDATE measurement SET state = 'paused' WHERE id = :id"), {"id": first}
        )
    assert Scheduler(db, SchedulerSettings(), lambda: None).tick() == 1
    assert (world.state(first), world.state(second)) == ("paused", "running")


@pytest.mark.postgres
def test_servers_that_start_together_migrate_once(
    unmigrated: Database, caplog: pytest.LogCaptureFixture
) -> None:
    databases = [Database(unmigrated.url) for _ in range(4)]
    with caplog.at_level(logging.INFO, logger="assay.storage.opening"):
        with ThreadPoolExecutor(len(databases)) as pool:
            revisions = set(pool.map(migrate, databases))
    assert len(revisions) == 1
    assert [r.message for r in caplog.records].count("migrating the database") == 1
    with unmigrated.read() as session:
        held = session.scalar(
            text(
                "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database "
                "WHERE locktype = 'advisory' AND datname = current_database()"
            )
        )
    assert held == 0, "the connections are open, and the lock is not held"
    for db in databases:
        db.dispose()
