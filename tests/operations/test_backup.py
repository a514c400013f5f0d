"""The commands of docs/operations.md, carried out: what they save is a whole service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select, text

from assay.client import Client
from assay.domain.errors import NotFound, Unavailable
from assay.storage import attempts, schema
from assay.storage.database import Database
from assay.storage.mirror import main, mirror
from assay.storage.objects import LocalStore
from assay.storage.s3 import S3Store
from tests.storage.embedded import serving
from tests.storage.recorded import IDEAS, RESULTS, restore
from tests.support.databases import POSTGRES
from tests.support.needs import missing
from tests.support.service import running, toy_batch, toy_ideas

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
MANY = 16


def documented(program: str) -> str:
    """The block of commands that uses a program."""
    section = PAGE.read_text().partition("## Backup")[2].partition("\n## ")[0]
    (block,) = [b for b in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) if program in b]
    return str(block)


def carry_out(commands: str, folder: Path, **variables: str) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def wait_for_some(client: Client, batch: str) -> None:
    """Until a part is done and a part is not."""
    for _ in client.batches.events(batch):
        counts = client.batches.get(batch).counts
        if counts.succeeded >= 2:
            assert counts.succeeded < counts.total
            return


def check_whole(db: Database, ideas: int, objects: Path) -> None:
    """Every idea has one result, and everything the database names is there."""
    with db.read() as session:
        assert Counter(session.scalars(select(schema.Experiment.state))) == {"succeeded": ideas}
        results = session.scalars(select(schema.Result.measurement_id)).all()
        assert len(results) == len(set(results)) == ideas + 1
        named = [f"codebases/{c}.zip" for c in session.scalars(select(schema.Codebase.id))]
        named += [f"bundles/{b}.zip" for b in session.scalars(select(schema.Environment.bundle))]
        for stored in session.scalars(select(schema.Artifacts)):
            named += [f"{stored.prefix}/{file['name']}" for file in stored.files]
    assert [name for name in named if not (objects / name).is_file()] == []


@pytest.mark.slow
def test_the_embedded_service_is_saved_while_it_works_and_goes_on_elsewhere(
    tmp_path: Path,
) -> None:
    with running(tmp_path / ".assay", sandbox="subprocess") as service:
        with service.client() as client:
            batch = client.batches.create(toy_batch(toy_ideas(MANY))).id
            wait_for_some(client, batch)
            # The service makes one where no variable names the key.
            (tmp_path / ".assay" / "held-out.key").write_text("0" * 32)
            carry_out(documented("sqlite3.connect"), tmp_path)
        service.kill()
    shutil.rmtree(tmp_path / ".assay")

    with running(tmp_path / "backup", sandbox="subprocess") as restored:
        with restored.client() as client:
            finished = client.batches.wait(batch, timeout=180)
    assert finished.counts.succeeded == MANY
    db = Database(f"sqlite:///{tmp_path}/backup/assay.db")
    check_whole(db, MANY, tmp_path / "backup" / "objects")
    db.dispose()


@pytest.fixture
def empty(unmigrated: Database) -> Iterator[str]:
    """The address of one more empty database on the same server."""
    name = f"{unmigrated.engine.url.database}_restored"
    admin = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield unmigrated.engine.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.mark.slow
@pytest.mark.postgres
def test_servers_are_saved_with_work_in_flight_and_measure_again_what_came_after(
    unmigrated: Database, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("pg_dump") is None:
        missing("pg_dump is not installed")
    data = tmp_path / "data"
    restore(unmigrated, data / "objects")
    unmigrated.migrate()
    carry_out(
        documented("pg_dump"),
        tmp_path,
        ASSAY_SERVER_DATABASE_URL=unmigrated.url,
        ASSAY_SERVER_OBJECTS_URL=str(data / "objects"),
    )
    with unmigrated.read() as session:
        batch = session.execute(text("SELECT id FROM batch")).scalar_one()
    with serving(unmigrated, data, monkeypatch) as client:  # the interval that is lost
        assert client.batches.wait(batch, timeout=120).counts.succeeded == IDEAS
    with unmigrated.read() as session:
        forgotten = session.scalars(
            select(schema.Attempt).where(schema.Attempt.lease_token > RESULTS)
        ).all()
        assert forgotten

    fresh = tmp_path / "restored"
    carry_out(
        documented("pg_restore"),
        tmp_path,
        ASSAY_SERVER_DATABASE_URL=empty,
        ASSAY_SERVER_OBJECTS_URL=str(fresh / "objects"),
    )
    db = Database(empty)
    late = forgotten[-1]
    with pytest.raises(NotFound), db.write() as session:
        attempts.subject(session, late.id, late.worker_id, late.lease_token)
    with serving(db, fresh, monkeypatch) as client:
        assert client.batches.wait(batch, timeout=120).counts.succeeded == IDEAS
    check_whole(db, IDEAS, fresh / "objects")
    db.dispose()


# -- Copies of object stores ----------------------------------------------------------------------


def test_a_copy_takes_what_is_new_and_only_that(tmp_path: Path) -> None:
    source, target = LocalStore(tmp_path / "from"), LocalStore(tmp_path / "to")
    assert mirror(source, target) == 0
    source.put("codebases/a.zip", b"a" * 3_000_000)
    source.put("attempts/mea_1/att_1-1/artifact.zip", b"")
    (tmp_path / "from" / "codebases" / ".new-x").write_bytes(b"half")
    assert mirror(source, target) == 2
    assert target.get("codebases/a.zip") == b"a" * 3_000_000
    assert target.get("attempts/mea_1/att_1-1/artifact.zip") == b""
    source.put("codebases/b.zip", b"b")
    assert mirror(source, target) == 1
    assert sorted(found.key for found in target.list("")) == [
        "attempts/mea_1/att_1-1/artifact.zip",
        "codebases/a.zip",
        "codebases/b.zip",
    ]


def test_an_object_of_another_size_is_no_copy(tmp_path: Path) -> None:
    source, target = LocalStore(tmp_path / "from"), LocalStore(tmp_path / "to")
    source.put("codebases/a.zip", b"whole")
    target.put("codebases/a.zip", b"half")
    with pytest.raises(Unavailable, match="is in the way"):
        mirror(source, target)
    assert target.get("codebases/a.zip") == b"half"


def test_the_command_copies_between_a_bucket_and_a_folder(
    s3_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
        "ASSAY_SERVER_S3_ENDPOINT_URL": s3_url,
        "ASSAY_SERVER_S3_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = S3Store.from_url(
        "s3://backup-source/deep/er", endpoint_url=s3_url, region="us-east-1"
    )
    bucket.check()
    bucket.put("codebases/a.zip", b"abc")
    folder = tmp_path / "copy"
    assert main(["s3://backup-source/deep/er", str(folder)]) == 0
    assert LocalStore(folder).get("codebases/a.zip") == b"abc"
    assert main([str(folder), "s3://backup-target"]) == 0
    again = S3Store.from_url("s3://backup-target", endpoint_url=s3_url, region="us-east-1")
    assert again.get("codebases/a.zip") == b"abc"
    assert "objects copied" in capsys.readouterr().out
    monkeypatch.setenv("ASSAY_SERVER_S3_ENDPOINT_URL", "http://127.0.0.1:1")
    assert main(["s3://backup-source", str(folder)]) == 1
    assert "object store" in capsys.readouterr().err
