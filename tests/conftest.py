"""Fixtures that several folders share: databases on both back ends, a tiny environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.environments.catalog import Catalog
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from tests.support.databases import postgres_database, sqlite_database
from tests.support.environment import write_environment
from tests.support.s3_server import FaultyS3, s3_server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database: SQLite in a file, and Postgres."""
    if request.param == "sqlite":
        database = sqlite_database(tmp_path / "assay.db")
        yield database
        database.dispose()
        return
    with postgres_database() as database:
        yield database


@pytest.fixture
def postgres() -> Iterator[Database]:
    """A migrated, empty database on Postgres."""
    with postgres_database() as database:
        yield database


@pytest.fixture
def unmigrated() -> Iterator[Database]:
    """An empty database on Postgres, without a schema."""
    with postgres_database(migrated=False) as database:
        yield database


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


@pytest.fixture
def environments(tmp_path: Path) -> Path:
    """A folder with one environment, `count`, whose baseline scores 10 + seed % 3."""
    folder = tmp_path / "environments"
    write_environment(folder / "count")
    return folder


@pytest.fixture
def catalog(environments: Path) -> Catalog:
    """A catalog with the environment `count` alone."""
    return Catalog([environments])
