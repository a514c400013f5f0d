"""What each process says about wrong settings, and how it waits for the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import create_engine, make_url, text

from assay.processes import Parts
from assay.storage.database import Database
from assay.storage.opening import migrate
from services.implementer.server import migrate_database, serve_api
from services.implementer.worker import implement
from services.scheduler.cli import schedule
from services.worker.__main__ import main as measure
from tests.support.databases import POSTGRES
from tests.support.ports import free_port
from tests.support.stack import Part
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SECRET = "a-password-of-mine"
GOOD = {
    "ASSAY_SERVER_DATABASE_URL": f"postgresql://me:{SECRET}@127.0.0.1:1/nothing",
    "ASSAY_SERVER_OBJECTS_URL": "/tmp/objects",
}
TOKEN = {"ASSAY_WORKER_TOKEN": "asw_token"}


def environment(**variables: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")} | variables


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "assay.cli", *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(**variables),
    )


#: What the commands call, in this process: to start an interpreter for each takes seconds.
COMMANDS: dict[str, Callable[[], object]] = {
    "scheduler": schedule,
    "migrate": migrate_database,
    "implement-worker": implement,
    "serve": serve_api,
    "worker": measure,
}


@pytest.mark.parametrize(
    ("command", "variables", "words"),
    [
        ("scheduler", {}, ["ASSAY_SERVER_DATABASE_URL", "is not set", "ASSAY_SERVER_OBJECTS_URL"]),
        ("migrate", {}, ["ASSAY_SERVER_DATABASE_URL", "is not set"]),
        ("worker", {}, ["ASSAY_WORKER_TOKEN", "is not set"]),
        (
            "worker",
            TOKEN | {"ASSAY_WORKER_BROKER_URL": f"redis://me:{SECRET}@host/0"},
            ["ASSAY_WORKER_BROKER_URL", "credentials"],
        ),
        (
            "implement-worker",
            GOOD | {"ASSAY_SERVER_DATABASE_URL": f"sqlite:///{SECRET}.db"},
            ["ASSAY_SERVER_DATABASE_URL", "PostgreSQL"],
        ),
        (
            "implement-worker",
            GOOD | {"ASSAY_SERVER_OBJECTS_URL": "objects"},
            ["ASSAY_SERVER_OBJECTS_URL", "s3://"],
        ),
        (
            "scheduler",
            GOOD | {"ASSAY_SERVER_BROKER_URL": f"amqp://me:{SECRET}@host"},
            ["ASSAY_SERVER_BROKER_URL", "redis://"],
        ),
        (
            "scheduler",
            GOOD | {"ASSAY_SERVER_BROKER": "redis://host"},
            ["ASSAY_SERVER_BROKER", "ASSAY_SERVER_BROKER_URL"],
        ),
        (
            "serve",
            GOOD | {"ASSAY_IMPLEMENTER_HOST": "0.0.0.0"},
            ["ASSAY_IMPLEMENTER_HOST", "ASSAY_IMPLEMENTER_API_KEYS"],
        ),
        (
            "serve",
            GOOD | {"ASSAY_IMPLEMENTER_WORKERS": '{"gpu-0": "short"}'},
            ["ASSAY_IMPLEMENTER_WORKERS", "gpu-0", "16"],
        ),
    ],
)
def test_wrong_settings_are_named_without_secrets(
    command: str,
    variables: dict[str, str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("ASSAY_")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        COMMANDS[command]()
    assert ended.value.code == 2
    said = capfd.readouterr()
    for word in words:
        assert word in said.err
    assert SECRET not in said.err + said.out


def test_commands_end_with_the_code_for_wrong_settings() -> None:
    for command in ("serve", "worker"):
        ended = run(command, ASSAY_SERVER_BROKER_URL="redis://host")
        assert ended.returncode == 2, ended.stderr
        assert "is not set" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_flags_of_the_embedded_service_are_refused_in_server_mode() -> None:
    ended = run("serve", "--data-dir", "/tmp/x", **GOOD)
    assert ended.returncode == 2
    assert "--data-dir" in ended.stderr


@pytest.fixture
def database() -> Iterator[str]:
    """The address of a database that does not exist yet; dropped at the end."""
    name = f"assay_late_{os.getpid()}_{free_port()}"
    yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    on_server(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def on_server(statement: str) -> None:
    engine = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


@pytest.mark.postgres
def test_processes_start_in_any_order(tmp_path: Path, postgres: Database, database: str) -> None:
    """Scheduler and API come before their database; `/readyz` says what the API waits for."""
    port = free_port()
    env = environment(
        ASSAY_SERVER_DATABASE_URL=database,
        ASSAY_SERVER_OBJECTS_URL=str(tmp_path / "objects"),
        ASSAY_IMPLEMENTER_PORT=str(port),
    )
    api, scheduler = (
        Part(name, [sys.executable, "-m", "assay.cli", command], tmp_path, env)
        for name, command in (("api", "serve"), ("scheduler", "scheduler"))
    )
    try:
        scheduler.start(wait=False)
        api.start(wait=False)

        def readiness() -> tuple[int, str]:
            try:
                answer = httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=10)
            except httpx2.TransportError:
                return 0, ""
            return answer.status_code, answer.text

        wait_until(lambda: readiness()[0] == 503, "the API says that it is not ready", 60)
        assert "database" in readiness()[1]
        assert httpx2.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        wait_until(lambda: "cannot use the database" in scheduler.tail(), "a line in the log", 60)
        on_server(f"CREATE DATABASE {make_url(database).database}")
        assert api.wait_ready().ready["api"] == f"http://127.0.0.1:{port}"
        assert scheduler.wait_ready().ready["holder"]
        assert readiness()[0] == 200
        # A request to the API of a database that is not migrated is no error of ours either.
        assert "Traceback" not in api.tail()
    finally:
        codes = [part.stop() for part in (scheduler, api) if part.running]
    assert codes == [0, 0]


@pytest.mark.postgres
def test_migrate_is_a_command_and_may_be_repeated(tmp_path: Path, database: str) -> None:
    on_server(f"CREATE DATABASE {make_url(database).database}")
    settings = {"ASSAY_SERVER_DATABASE_URL": database, "ASSAY_SERVER_OBJECTS_URL": str(tmp_path)}
    first, second = (run("migrate", **settings) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    assert json.loads(first.stdout) == json.loads(second.stdout)
    assert "migrating" in first.stderr
    assert "migrating" not in second.stderr


@pytest.mark.postgres
def test_a_newer_schema_is_left_alone(postgres: Database) -> None:
    with postgres.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert migrate(postgres) == "9999"


@pytest.mark.postgres
def test_several_processes_may_migrate_at_once(database: str) -> None:
    on_server(f"CREATE DATABASE {make_url(database).database}")
    parts, revisions = Parts(), []
    for number in range(4):

        def one() -> None:
            db = Database(database)
            revisions.append(migrate(db))
            db.dispose()

        parts.thread(f"migration {number}", one)
    assert parts.join() == 0
    assert len(revisions) == 4
    assert len(set(revisions)) == 1


def test_an_api_image_needs_nothing_of_a_worker() -> None:
    """Servers that hold keys import no sandbox, and neither torch nor Docker."""
    for module in ("services.implementer.server", "services.implementer.worker"):
        code = (
            f"import sys, services.local.cli, {module}, services.scheduler.cli\n"
            "heavy = {'docker', 'torch', 'numpy', 'psutil', 'assay.sandbox', 'services.worker'}\n"
            "print(sorted(heavy & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "[]"
