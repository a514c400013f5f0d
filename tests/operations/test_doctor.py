"""`assay doctor` for servers and workers, against servers that are well, wrong or away."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import update
from typer.testing import CliRunner

from assay.cli.app import build_app
from assay.cli.doctor import Finding, examine_parts
from assay.storage import leader, schema, workers
from assay.storage.database import Database, alembic_config
from services.doctor import host, server
from services.implementer.app import create_app
from services.implementer.context import Context
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import World
from tests.support.needs import missing
from tests.support.stack import Redis

pytestmark = pytest.mark.postgres
PASSWORD = "database-password-1"


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    server = Redis(tmp_path, os.environ)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def configured(
    postgres: Database, redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Database:
    """Servers that are all there."""
    for name, value in {
        "DATABASE_URL": postgres.url,
        "BROKER_URL": redis_server.url,
        "OBJECTS_URL": str(tmp_path / "objects"),
    }.items():
        monkeypatch.setenv(f"ASSAY_SERVER_{name}", value)
    return postgres


def test_servers_that_are_well(configured: Database, redis_server: Redis) -> None:
    leader.acquire(configured, "sch_1", SchedulerSettings().leader_lease)
    with redis_server.connection() as redis:
        redis.config_set("appendonly", "yes")
    found = by_name(server.examine())
    assert found.pop("workers").state == "note"
    assert {name: f.detail for name, f in found.items() if f.state != "ok"} == {}
    assert list(found) == [
        "database", "clock", "schema", "scheduler", "outbox", "broker", "broker memory",
        "broker log", "broker users", "objects",
    ]  # fmt: skip
    assert found["database"].detail.startswith("PostgreSQL ")
    assert found["schema"].detail.startswith("revision ")


def test_what_is_wrong_with_a_broker_is_said(
    configured: Database, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_server.connection() as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
        redis.execute_command(
            "ACL", "SETUSER", "weak", "on", ">weak-password-1", "~*", "+@all", "-acl"
        )
    found = by_name(server.examine())
    assert (found["broker memory"].state, found["broker memory"].detail) == ("note", "allkeys-lru")
    assert "noeviction" in found["broker memory"].remedy
    assert found["broker log"].state == "note"

    weak = redis_server.url.replace(f":{redis_server.password}@", "weak:weak-password-1@")
    monkeypatch.setenv("ASSAY_SERVER_BROKER_URL", weak)
    found = by_name(server.examine())
    assert found["broker users"].state == "missing"
    assert "ACL SETUSER" in found["broker users"].remedy

    redis_server.kill()
    found = by_name(server.examine())
    assert found["broker"].state == "missing"
    assert found["objects"].state == "ok"
    assert "weak-password-1" not in str(found)


def test_a_database_that_is_old_or_away_is_said(
    configured: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured.dispose()
    command.downgrade(alembic_config(configured.url), "0001")
    assert by_name(server.examine())["schema"].state == "missing"
    monkeypatch.setenv(
        "ASSAY_SERVER_DATABASE_URL", f"postgresql://nobody:{PASSWORD}@127.0.0.1:1/none"
    )
    found = by_name(server.examine())
    assert found["database"].state == "missing"
    assert "schema" not in found
    assert PASSWORD not in str(found)


def test_workers_that_get_no_work_are_said(
    configured: Database, store: object, catalog: object
) -> None:
    World.create(configured, store, catalog)  # type: ignore[arg-type]
    assert by_name(server.examine())["workers"].detail == "1 active"
    with configured.write() as session:
        session.execute(update(schema.Worker).values(draining=True))
    finding = by_name(server.examine())["workers"]
    assert (finding.state, finding.detail) == ("note", "1 draining")


def test_a_bucket_that_is_away_is_said(
    configured: Database, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "ASSAY_SERVER_OBJECTS_URL": "s3://doctor",
        "ASSAY_SERVER_S3_ENDPOINT_URL": s3_url,
        "ASSAY_SERVER_S3_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test-secret-key",
    }.items():
        monkeypatch.setenv(name, value)
    found = by_name(server.examine())
    assert found["objects"].state == "ok"
    assert found["objects, conditional put"].detail == "refuses to overwrite"
    monkeypatch.setenv("ASSAY_SERVER_S3_ENDPOINT_URL", "http://127.0.0.1:1")
    finding = by_name(server.examine())["objects"]
    assert finding.state == "missing"
    assert "test-secret-key" not in str(finding)


def test_a_wrong_setting_is_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_SERVER_DATABASE_URL", "mysql://x:database-password-1@y/z")
    monkeypatch.setenv("ASSAY_SERVER_OBJECTS_URL", "relative/folder")
    found = server.examine()
    assert {f.check for f in found} == {"ASSAY_SERVER_DATABASE_URL", "ASSAY_SERVER_OBJECTS_URL"}
    assert PASSWORD not in str(found)


def test_the_command_checks_what_is_configured(
    configured: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = CliRunner().invoke(build_app(["doctor"]), ["--api", "http://127.0.0.1:9", "doctor"])
    assert "PostgreSQL" in answer.stdout
    assert "assay scheduler" in answer.stdout, "a remedy"
    assert answer.exit_code == 0
    monkeypatch.setenv("ASSAY_SERVER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    answer = CliRunner().invoke(build_app(["doctor"]), ["--api", "http://127.0.0.1:9", "doctor"])
    assert answer.exit_code == 1
    assert "Missing: database" in answer.stderr


# -- Workers --------------------------------------------------------------------------------------


def program(folder: Path, name: str, says: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs before all others."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_gpus_of_a_host(tools: Path, tmp_path: Path) -> None:
    loaded = tmp_path / "version"
    loaded.write_text("NVRM version: 570\n")
    program(tools, "nvidia-smi", "NVIDIA H200, 570.1\nNVIDIA H200, 570.1")
    program(tools, "nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.18.1")
    found = by_name(host.examine(loaded=loaded))
    assert found["NVIDIA driver"].detail == "2 GPUs: NVIDIA H200, 570.1"
    assert (found["container toolkit"].state, found["container toolkit"].detail) == (
        "ok",
        "1.18.1",
    )
    program(tools, "nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.9.0\ncommit: abc")
    assert by_name(host.examine(loaded=loaded))["container toolkit"].state == "note"
    program(tools, "nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch", 18)
    finding = by_name(host.examine(loaded=loaded))["NVIDIA driver"]
    assert (finding.state, "NVML" in finding.detail) == ("missing", True)
    assert "reboot" in finding.remedy


def test_a_host_without_a_gpu_can_be_a_worker(tmp_path: Path) -> None:
    found = by_name(host.examine(loaded=tmp_path / "none"))
    assert found["NVIDIA driver"].state == "note"
    assert found["ASSAY_WORKER_TOKEN"].state == "missing"


def test_a_worker_that_the_api_knows(
    context: Context, api_url: str, redis_server: Redis, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    token = workers.new_token()
    workers.admit(context.db, "gpu-0", token)
    for name, value in {
        "TOKEN": token,
        "API_URL": api_url,
        "CACHE": str(tmp_path / "not" / "yet"),
        "BROKER_URL": redis_server.address,
    }.items():
        monkeypatch.setenv(f"ASSAY_WORKER_{name}", value)
    found = by_name(examine_parts(server=False, worker=False))
    for check in ("API", "clock", "broker"):
        assert found[check].state == "ok", found[check]
    assert "GiB free" in found["cache"].detail
    redis_server.kill()
    monkeypatch.setenv("ASSAY_WORKER_TOKEN", "asw_" + "x" * 40)
    found = by_name(host.examine())
    assert found["broker"].state == "note"
    assert (found["API"].state, "assay worker admit" in found["API"].remedy) == ("missing", True)
    monkeypatch.setenv("ASSAY_WORKER_API_URL", "http://127.0.0.1:9")
    assert by_name(host.examine())["API"].state == "missing"
    assert token not in str(found)


@pytest.fixture
def api_url(context: Context) -> Iterator[str]:
    """The API over real HTTP."""
    import socket
    import threading

    import uvicorn

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        served = uvicorn.Server(
            uvicorn.Config(create_app(context), log_config=None, lifespan="off")
        )
        thread = threading.Thread(target=lambda: served.run(sockets=[bound]))
        thread.start()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        served.should_exit = True
        thread.join(10)
