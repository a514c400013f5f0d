"""A database full of experiments that were never run, made by SQL in minutes.

`full_database` makes one, or takes one that an earlier run kept. Each step is one transaction that
is noted when it is done, so a filling that was interrupted continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, Integer, bindparam, create_engine, make_url, text

from assay.contracts.batch import BatchOptions
from assay.environments import Catalog
from assay.storage import environments, workers
from assay.storage.database import Database
from assay.storage.objects import LocalStore

#: Raised when the steps change: databases that were filled before are then made anew.
VERSION = 1
EPOCHS, EPOCH_IDEAS, SINGLE_IDEAS = 10, 80, 100
SEARCH_IDEAS = EPOCHS * EPOCH_IDEAS
#: Share of the experiments that are in searches; the others are in batches of their own.
IN_SEARCHES = 0.64
#: One of so many experiments has a codebase in the object store, so that its page has a diff.
STORED_EVERY = 500
#: Statements that insert curve points, so that each takes seconds.
CHUNKS = 20
#: The baseline's measurements have the numbers before the first experiment's.
BASELINE_SEEDS = 20
STEPS = Path(__file__).with_suffix(".sql")


@dataclass(frozen=True)
class Filled:
    """A full database, its objects, and how much is in it.

    `succeeded` are numbers of experiments with a result; those of `shown` have a diff too.
    """

    url: str
    objects: Path
    experiments: int
    points: int
    mebibytes: int
    succeeded: tuple[int, ...]
    shown: tuple[int, ...]

    @property
    def searches(self) -> int:
        """How many searches there are; the first experiments belong to them, in order."""
        return searches_of(self.experiments)


def searches_of(experiments: int) -> int:
    """How many searches so many experiments are divided among."""
    return max(1, int(experiments * IN_SEARCHES) // SEARCH_IDEAS)


@contextmanager
def full_database(
    server: str, folder: Path, owner: str, experiments: int, points: int, *, keep: bool
) -> Iterator[Filled]:
    """A database `assay_bench_api_EXPERIMENTS` on a Postgres server, dropped at the end.

    With `keep` it stays, with its objects in `folder`, for the next run. `points`: curve points
    of all experiments together.
    """
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    name = f"assay_bench_api_{experiments}"
    url = make_url(server).set(database=name).render_as_string(hide_password=False)
    objects = folder / name
    wanted = f"version {VERSION}, {points} points, owner {owner}"
    try:
        with admin.connect() as connection:
            there = connection.execute(
                text("SELECT shobj_description(oid, 'pg_database') FROM pg_database "
                     "WHERE datname = :name"), {"name": name},
            ).all()  # fmt: skip
            if there and (there[0][0] != wanted or not objects.exists()):
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
                there = []
            if not there:
                connection.execute(text(f"CREATE DATABASE {name}"))
                connection.execute(text(f"COMMENT ON DATABASE {name} IS '{wanted}'"))
        _fill(url, objects, owner, experiments, points)
        with admin.connect() as connection:
            size = connection.execute(text(f"SELECT pg_database_size('{name}')")).scalar_one()
        filled = create_engine(url)
        with filled.connect() as connection:
            known = "SELECT n FROM bench_plan WHERE search IS NOT NULL AND outcome = 'succeeded'"
            succeeded = connection.execute(text(f"{known} ORDER BY md5(n::text) LIMIT 5000"))
            shown = connection.execute(text(f"{known} AND n IN (SELECT n FROM bench_stored)"))
            numbers = (tuple(succeeded.scalars()), tuple(shown.scalars()))
        filled.dispose()
        yield Filled(url, objects, experiments, points, size >> 20, *numbers)
    finally:
        if not keep:
            with admin.connect() as connection:
                connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        admin.dispose()


def _fill(url: str, objects: Path, owner: str, experiments: int, points: int) -> None:
    objects.mkdir(parents=True, exist_ok=True)
    db, store = Database(url), LocalStore(objects)
    db.migrate()
    environment = Catalog().get("toy")
    environment_id = environments.register(db, store, environment)
    _carry_out(
        db.engine,
        {
            "owner": owner,
            "environment": environment_id,
            "own": environments.put_codebase(store, environment.codebase),
            "worker": workers.admit(db, "bench-host", workers.new_token()),
            "options": json.dumps(
                BatchOptions().model_dump(mode="json") | {"baseline_seeds": BASELINE_SEEDS}
            ),
            "experiments": experiments,
            "searches": searches_of(experiments),
            "epochs": EPOCHS,
            "epoch_ideas": EPOCH_IDEAS,
            "single_ideas": SINGLE_IDEAS,
            "search_ideas": SEARCH_IDEAS,
            "chunks": CHUNKS,
            "points": max(1, round(points / max(1, int(experiments * 0.85)))),
        },
        _stored_codebases(store, environment.codebase, experiments),
    )
    db.dispose()


def _stored_codebases(
    store: LocalStore, files: dict[str, str], experiments: int
) -> list[dict[str, object]]:
    """Real codebases, whose diffs can be shown, and the experiments that have them."""
    found: list[dict[str, object]] = []
    for number in range(0, experiments, STORED_EVERY):
        step = f"STEP = {0.05 + number / experiments:.6f}"
        changed = {name: each.replace("STEP = 0.6", step) for name, each in files.items()}
        found.append({"n": number, "sha": environments.put_codebase(store, changed)})
    return found


def _read_steps() -> Iterator[tuple[str, str]]:
    """The name of each step, and its statement."""
    for part in STEPS.read_text().split("\n-- ")[1:]:
        name, _, statement = part.partition("\n")
        yield name, statement


def _carry_out(engine: Engine, values: dict[str, object], stored: list[dict[str, object]]) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS bench_done (step text PRIMARY KEY)"))
        done = set(connection.execute(text("SELECT step FROM bench_done")).scalars())
    for name, statement in _read_steps():
        for chunk in range(CHUNKS if name == "points" else 1):
            step = f"{name} {chunk}"
            if step in done:
                continue
            with engine.begin() as connection:
                # Neither foreign keys nor triggers are checked: that would take most of the time.
                connection.execute(text("SET LOCAL session_replication_role = replica"))
                connection.execute(text("SET LOCAL synchronous_commit = off"))
                clause = text(statement)
                known = {**values, "chunk": chunk}
                given = {bound: known[bound] for bound in clause.compile().params}
                # Of plain numbers Postgres would take small ones for smallint.
                typed = [
                    bindparam(n, v, type_=Integer) for n, v in given.items() if type(v) is int
                ]
                connection.execute(clause.bindparams(*typed), given)
                if name == "stored":
                    connection.execute(text("INSERT INTO bench_stored VALUES (:n, :sha)"), stored)
                connection.execute(text("INSERT INTO bench_done VALUES (:step)"), {"step": step})
    if "vacuum" not in done:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
            connection.execute(text("INSERT INTO bench_done VALUES ('vacuum')"))
