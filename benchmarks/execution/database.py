"""A database of its own with many workers and a long queue."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text

from assay.contracts.worker import WorkerRegistration
from assay.environments.catalog import Catalog
from assay.storage import environments, shapes, workers
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.support.faults.hosts.environment import profile_name, write_environment

CLASS = "fake-gpu"
HOSTS, GPUS = 128, 8
GIB = 1 << 30
#: GPUs of a measurement, and which share of the queue asks for so many.
MIX = {1: 0.6, 2: 0.2, 4: 0.1, 8: 0.1}
SERVER = os.environ.get(
    "ASSAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)


@dataclass(frozen=True)
class World:
    """The database, the tokens of its hosts by name, and the ids of its hosts."""

    db: Database
    tokens: dict[str, str]
    hosts: list[str]
    objects: Path


@contextmanager
def database() -> Iterator[Database]:
    """A migrated, empty database on Postgres, dropped in the end."""
    name = f"assay_bench_{uuid.uuid4().hex[:12]}"
    admin = create_engine(SERVER, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    db = Database(admin.url.set(database=name).render_as_string(hide_password=False))
    try:
        db.migrate()
        yield db
    finally:
        db.dispose()
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


def fill(db: Database, folder: Path, queued: int) -> World:
    """Hosts that are registered, and a queue in batches of 256 ideas of one size each."""
    catalog = Catalog([write_environment(folder / "environments", budget_seconds=300)])
    store = LocalStore(folder / "objects")
    environment = environments.register(db, store, catalog.get("toy"))
    tokens = {f"host-{n:03}": workers.new_token() for n in range(HOSTS)}
    hosts = [_register(db, name, token) for name, token in tokens.items()]
    with db.write() as session:
        manifest = environments.manifest(session, environment)
        for gpus, share in MIX.items():
            profile = manifest.profiles[profile_name(gpus)]
            shape = shapes.find(session, CLASS, profile, needs_isolation=False)
            session.execute(
                text(_QUEUE),
                {"gpus": gpus, "number": round(queued * share), "shape": shape}
                | {"environment": environment, "codebase": catalog.get("toy").id}
                | {"profile": profile_name(gpus), "memory": GIB, "cpus": gpus, "class": CLASS},
            )
    with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    return World(db, tokens, hosts, folder / "objects")


def _register(db: Database, name: str, token: str) -> str:
    host = workers.admit(db, name, token)
    with db.write() as session:
        workers.register(
            db,
            session,
            host,
            WorkerRegistration(
                name=name,
                incarnation="one",
                cpus=64,
                gpus=GPUS,
                memory_bytes=512 * GIB,
                hardware_class=CLASS,
                sandbox="fake",
                isolated=True,
            ),
        )
    return host


#: Batches, ideas, experiments, measurements and what links them: as after implementation.
_QUEUE = """
WITH made AS (
  SELECT n, lpad(n::text, 8, '0') AS tail, (n / 256)::text AS batch
  FROM generate_series(0, :number - 1) AS n
), environment_ AS (
  SELECT id, codebase FROM environment WHERE id = :environment
), batches AS (
  INSERT INTO batch (id, owner, environment_id, profile, hardware_class, executor, options,
    labels, state, version, created_at)
  SELECT DISTINCT 'bat_' || :gpus || '_' || batch, 'local', :environment, :profile, :class,
    'offline:literal', '{}'::jsonb, '{}'::jsonb, 'running', 0, now() FROM made
), ideas AS (
  INSERT INTO idea (id, batch_id, position, text, operator, parents)
  SELECT 'idea_' || :gpus || '_' || tail, 'bat_' || :gpus || '_' || batch, n % 256, 'an idea',
    'seed', '[]'::jsonb FROM made
), experiments AS (
  INSERT INTO experiment (id, batch_id, idea_id, position, state, codebase_id, was_started,
    created_at)
  SELECT 'exp_' || :gpus || '_' || tail, 'bat_' || :gpus || '_' || batch,
    'idea_' || :gpus || '_' || tail, n % 256, 'queued', environment_.codebase, false, now()
  FROM made, environment_
), measurements AS (
  INSERT INTO measurement (id, kind, codebase_id, environment_id, profile, seed, hardware_class,
    replicate, owner, state, priority, needs_isolation, cpus, gpus, memory_bytes, budget_seconds,
    shape_id, batch_at, infrastructure_failures, cancel_requested, created_at, queued_at)
  SELECT 'mea_' || :gpus || '_' || tail, 'score', environment_.codebase, :environment, :profile,
    n, :class, 0, 'local', 'queued', 0, false, :cpus, :gpus, :memory, 300, :shape,
    now() + (n / 256) * interval '1 ms', 0, false, now(), now() FROM made, environment_
)
INSERT INTO experiment_measurement (experiment_id, measurement_id)
SELECT 'exp_' || :gpus || '_' || tail, 'mea_' || :gpus || '_' || tail FROM made
WHERE :codebase <> ''
"""
