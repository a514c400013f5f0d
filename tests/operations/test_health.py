"""Whether a service says that it is ready exactly when it is, and why not."""

from __future__ import annotations

import logging

import pytest
from alembic import command
from sqlalchemy import text
from starlette.testclient import TestClient

from assay.domain.errors import Unavailable
from assay.storage import cordons, leader, schema, workers
from assay.storage.database import Database, alembic_config
from assay.storage.health import check_schema
from services.implementer.app import create_app
from services.implementer.context import Context
from services.scheduler.settings import SchedulerSettings
from tests.storage.lifecycle import World


def test_ready_when_everything_is_there(world: World, api: TestClient, context: Context) -> None:
    leader.acquire(context.db, "s", SchedulerSettings().leader_lease)
    context.probes["broker"] = lambda: None
    answer = api.get("/readyz")
    assert answer.status_code == 200
    checks = dict.fromkeys(("database", "scheduler", "workers", "objects", "broker"), "ok")
    assert answer.json() == {"state": "ready", "checks": checks}


def test_without_scheduler_and_broker_work_is_accepted_and_waits(
    api: TestClient, context: Context
) -> None:
    def deaf() -> None:
        raise Unavailable("Redis does not answer", code="broker_unavailable")

    context.probes["broker"] = deaf
    answer = api.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["state"] == "degraded"
    assert answer.json()["checks"]["broker"] == "broker_unavailable: Redis does not answer"
    assert answer.json()["checks"]["scheduler"].startswith("no_scheduler: ")


def test_an_old_schema_is_not_ready(api: TestClient, db: Database) -> None:
    command.downgrade(alembic_config(db.url), "0001")
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "schema_outdated")
    assert "0001" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "5"
    assert api.get("/healthz").json()["state"] == "ok"
    db.migrate()
    assert api.get("/readyz").status_code == 200


def test_a_newer_schema_serves_this_version_too(db: Database) -> None:
    with db.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with db.read() as session:
        assert check_schema(session) == "9999"


def test_a_store_or_database_that_is_gone_is_not_ready(api: TestClient, context: Context) -> None:
    class Gone:
        def check(self) -> None:
            raise Unavailable("no bucket", code="object_store_unavailable")

    context.store = Gone()  # type: ignore[assignment]
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "object_store_unavailable")

    context.db = Database("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")


def test_every_request_is_one_line_with_its_id(
    world: World, api: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    batch = world.submit("One.")
    with caplog.at_level(logging.INFO, logger="assay.access"):
        answer = api.get(f"/v1/batches/{batch}?bogus=1")
        api.get("/healthz")
    (line,) = [vars(r) for r in caplog.records if r.name == "assay.access"]
    assert line["status"] == answer.status_code == 400
    assert line["route"] == "/v1/batches/{batch_id}"
    assert line["batch"] == batch
    assert line["duration_seconds"] >= 0
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert "bogus" not in str(line.get("extra", ""))


@pytest.mark.parametrize("why", ["removed", "cordoned", "admitted again", "silent", "draining"])
def test_it_is_said_that_no_worker_can_take_work(
    world: World, api: TestClient, db: Database, why: str
) -> None:
    def check() -> str:
        answer = api.get("/readyz")
        assert answer.status_code == 200  # else no worker behind a load balancer could register
        body = answer.json()
        assert body["state"] == "degraded"  # nobody schedules either
        return str(body["checks"]["workers"])

    assert check() == "ok"
    if why == "admitted again":
        workers.admit(db, "w", "another")
    with db.write() as session:
        row = session.get_one(schema.Worker, world.worker)
        if why == "removed":
            workers.remove(db, session, world.worker)
        elif why == "cordoned":
            cordons.cordon(db, session, world.worker, "for a test")
        elif why == "silent":
            row.last_seen_at = db.now(session) - 2 * workers.LEASE
        elif why == "draining":
            row.draining = True
    assert check().startswith("no_worker: ")
    assert "assay worker list" in check()
    if why == "cordoned":
        with db.write() as session:
            cordons.uncordon(db, session, world.worker)
    else:
        world.restart("two")
    assert check() == "ok"


def test_before_any_worker_has_registered_a_service_is_degraded(
    api: TestClient, context: Context
) -> None:
    leader.acquire(context.db, "s", SchedulerSettings().leader_lease)
    workers.admit(context.db, "new", "token")
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["state"]) == (200, "degraded")
    assert answer.json()["checks"]["workers"].startswith("no_worker: ")
