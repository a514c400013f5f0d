"""Fixtures that several folders share: databases on both back ends, a tiny environment."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from assay.environments.catalog import Catalog
from assay.sandbox import SandboxUnavailable, choose_sandbox
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.s3_server import FaultyS3, s3_server

POSTGRES = os.environ.get(
    "ASSAY_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database: SQLite in a file, and Postgres."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path}/assay.db")
        database.migrate()
        yield database
        database.dispose()
        return
    yield from _postgres()


@pytest.fixture
def postgres() -> Iterator[Database]:
    """A migrated, empty database on Postgres."""
    yield from _postgres()


@pytest.fixture
def unmigrated() -> Iterator[Database]:
    """An empty database on Postgres, without a schema."""
    yield from _postgres(migrate=False)


def _postgres(*, migrate: bool = True) -> Iterator[Database]:
    name = f"assay_test_{uuid.uuid4().hex[:12]}"
    admin = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    try:
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    except OperationalError as error:
        admin.dispose()
        missing(f"no Postgres at {POSTGRES} (set ASSAY_TEST_POSTGRES): {error.orig}")
    database = Database(str(admin.url.set(database=name)))
    try:
        if migrate:
            database.migrate()
        yield database
    finally:
        database.dispose()
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


def missing(what: str) -> None:
    """Skip on a developer's machine; fail where everything must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def require_git() -> None:
    """For tests that compare with git."""
    if shutil.which("git") is None:
        missing("git is not installed")


@functools.cache
def _bubblewrap_problem() -> str | None:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            choose_sandbox("bubblewrap", Path(scratch))
        except SandboxUnavailable as error:
            return str(error)
    return None


@pytest.fixture(autouse=True)
def _require_bubblewrap(request: pytest.FixtureRequest) -> None:
    """Tests marked `bubblewrap` need it; in CI, where it must be there, they fail without it."""
    if request.node.get_closest_marker("bubblewrap") is not None:
        require_bubblewrap()


def require_bubblewrap() -> None:
    """For fixtures of a wider scope, which come before the one above."""
    if (problem := _bubblewrap_problem()) is not None:
        missing(f"bubblewrap does not work: {problem}")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """An empty object store."""
    return LocalStore(tmp_path / "objects")


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """The address of an S3 server, shared by the tests of a process."""
    with s3_server() as url:
        yield url


@pytest.fixture
def faulty_s3(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """The S3 server behind a proxy that makes it fail on demand, and credentials for it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    proxy = FaultyS3(s3_url)
    yield proxy
    proxy.close()


TRAIN = """\
import json, os

STEP = 1
OFFSET = 0

seed = int(os.environ["ASSAY_SEED"])
print("training with step", STEP)
with open(os.path.join(os.environ["ASSAY_OUT"], "answer.json"), "w") as file:
    json.dump({"value": STEP * 10 + OFFSET + seed % 3}, file)
"""

EVALUATE = """\
def evaluate(run):
    return {"score": float(run.read_json("answer.json", 1000)["value"])}
"""

PREPARE = """\
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--profile"); parser.add_argument("--out")
args = parser.parse_args()
for split in ("train", "search", "sealed"):
    (pathlib.Path(args.out) / split).mkdir()
"""

MANIFEST = """\
name = "count"
title = "Count higher"
problem = "Make the number larger."

[metric]
name = "score"
direction = "maximize"
bound = 1000.0
confirmed = "confirmed_score"

[codebase]
protected = ["sealed.py"]

[entry_points]
train = ["python", "train.py"]

[profiles.tiny]
memory_gb = 0.5
[profiles.tiny.budget]
seconds = 10
evaluation_seconds = 10

[[knobs]]
name = "step"
title = "step"
file = "train.py"
line = "STEP = 1"
values = ["2", "3"]

[[recipes]]
name = "offset"
title = "Add an offset"
[[recipes.edits]]
file = "train.py"
search = "OFFSET = 0"
replace = "OFFSET = 5"
"""


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    """A folder with one environment, `count`, whose baseline scores 10 + seed % 3."""
    folder = tmp_path / "environments"
    write_environment(folder / "count")
    return folder


def write_environment(folder: Path) -> None:
    """Write the environment `count`."""
    for name, content in {
        "environment.toml": MANIFEST,
        "codebase/train.py": TRAIN,
        "codebase/sealed.py": "# no diff may touch this\n",
        "evaluator/evaluate.py": EVALUATE,
        "prepare.py": PREPARE,
        "README.md": "Count.\n",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@pytest.fixture
def catalog(environments: Path) -> Catalog:
    """A catalog with the environment `count` alone."""
    return Catalog([environments])
