"""What workers report: refused with a reason when it cannot be right, and never a 500."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.storage import batches, environments, implementations, schema, workers
from assay.storage.objects import LocalStore
from services.implementer.context import Context
from tests.implementer.conftest import WORKER_TOKEN, batch, given_attempt

HEADERS = {"Authorization": f"Bearer {WORKER_TOKEN}"}
CRASH = {"stage": "train", "code": "crashed", "message": "no"}


@pytest.fixture
def attempt(api: TestClient, context: Context) -> schema.Attempt:
    """An attempt that the worker was given."""
    return given_attempt(api, context)


def finish(api: TestClient, attempt: schema.Attempt, **body: Any) -> Any:
    body = {"lease_token": attempt.lease_token, "metrics": {"score": 1.0}} | body
    path = f"/internal/v1/attempts/{attempt.id}/finish"
    return api.post(path, json=body, headers=HEADERS)


@pytest.mark.parametrize(
    "body",
    [
        {"state": "failed"},
        {"state": "succeeded", "failure": CRASH},
        {"state": "succeeded", "infrastructure": True},
        {"state": "failed", "failure": CRASH | {"stage": "lunch"}},
        {"state": "succeeded", "seconds": 1e15},
        {"state": "succeeded", "lease_token": 2**70},
    ],
)
def test_an_end_that_cannot_be_right(
    api: TestClient, attempt: schema.Attempt, context: Context, body: dict[str, Any]
) -> None:
    response = finish(api, attempt, **body)
    assert response.status_code == 422, response.text
    with context.db.read() as session:
        assert session.get_one(schema.Attempt, attempt.id).state == "assigned"


@pytest.mark.parametrize(
    "report",
    [
        {"logs": [{"stream": "train", "offset": 0, "data": "***"}]},
        {"logs": [{"stream": "train", "offset": 2**70, "data": "aGVq"}]},
        {"points": [{"seq": 2**40, "values": {}}]},
    ],
)
def test_a_report_that_cannot_be_stored(
    api: TestClient, attempt: schema.Attempt, report: dict[str, Any]
) -> None:
    body = {"lease_token": attempt.lease_token} | report
    path = f"/internal/v1/attempts/{attempt.id}/progress"
    assert api.post(path, json=body, headers=HEADERS).status_code == 422


@pytest.mark.parametrize("name", ["%2e", "%2e%2e", ".hidden", "a%5cb", "n" * 300, "manifest.json"])
def test_an_artifact_of_a_name_that_is_not_one(
    api: TestClient, attempt: schema.Attempt, store: LocalStore, name: str
) -> None:
    path = f"/internal/v1/attempts/{attempt.id}/artifacts/{name}"
    params = {"lease_token": attempt.lease_token}
    response = api.put(path, params=params, content=b"x", headers=HEADERS)
    assert response.status_code in (400, 422), response.text
    assert _files(store.folder / "attempts") == []


def test_another_worker_cannot_write_the_manifest_of_an_attempt(
    api: TestClient, attempt: schema.Attempt, context: Context, store: LocalStore
) -> None:
    workers.admit(context.db, "other", "asw_other")
    body = {
        "lease_token": attempt.lease_token,
        "state": "succeeded",
        "metrics": {"score": 1.0},
        "artifacts": [{"name": "a.zip", "bytes": 1, "sha256": "0" * 64}],
    }
    path = f"/internal/v1/attempts/{attempt.id}/finish"
    response = api.post(path, json=body, headers={"Authorization": "Bearer asw_other"})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert _files(store.folder / "attempts") == []


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_success_that_comes_before_the_stop_counts(
    api: TestClient, attempt: schema.Attempt, context: Context
) -> None:
    with context.db.write() as session:
        batches.cancel(context.db, session, session.scalars(select(schema.Batch.id)).one())
    assert finish(api, attempt, state="succeeded").status_code == 200
    api.post("/v1/batches", json=batch(options={"baseline_seeds": 0}))
    with context.db.write() as session:
        again = session.scalars(
            select(schema.Experiment.id).where(schema.Experiment.state == "submitted")
        ).one()
        work = implementations.begin(context.db, session, again)
        assert work is not None
        codebase = environments.put_codebase(context.store, {"train.py": "a = 1\n"})
        implementations.succeed(context.db, session, work, 0, codebase)
        assert session.scalars(select(schema.Measurement.id)).all() == [attempt.measurement_id]
