"""The API over a search whose results a test reports itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.contracts.environment import EnvironmentBody
from assay.domain.placement import Placement
from assay.environments.catalog import Catalog
from assay.storage import attempts, environments, implementations, schema, workers
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database

WORKER_TOKEN = "asw_test"
HEADERS = {"Authorization": f"Bearer {WORKER_TOKEN}"}
IDEAS = 2
SEEDS = [0, 1]


@dataclass
class Service:
    """The API over one search of two ideas, each on two seeds; the first idea has been scored."""

    api: TestClient
    context: Context
    experiments: list[str]
    found: dict[str, str]

    def finish(self, measurement: str, **body: Any) -> None:
        """Let the worker report the end of a measurement."""
        answer = self.report(measurement, **body)
        assert answer.status_code == 200, answer.text

    def report(self, measurement: str, **body: Any) -> httpx2.Response:
        """The answer to a worker that reports the end of a measurement."""
        with self.context.db.write() as session:
            worker = session.scalars(select(schema.Worker.id)).one()
            given = attempts.assign(
                self.context.db, session, Placement(measurement, worker), timedelta(seconds=60)
            )
            assert given is not None
        path = f"/internal/v1/attempts/{given.id}/finish"
        body = {"lease_token": given.lease_token, "seconds": 4.4, "started": True} | body
        return self.api.post(path, json=body, headers=HEADERS)

    def measurements(self, experiment: str) -> list[str]:
        read = self.api.get(f"/v1/experiments/{experiment}").json()["measurements"]
        return [str(each) for each in read]

    def implement(self, experiment: str, content: str) -> list[str]:
        """Give an experiment a codebase; its measurements."""
        codebase = environments.put_codebase(self.context.store, {"train.py": content})
        with self.context.db.write() as session:
            work = implementations.begin(self.context.db, session, experiment)
            assert work is not None
            implementations.succeed(self.context.db, session, work, 0, codebase)
        return self.measurements(experiment)

    def environment(self) -> EnvironmentBody:
        return EnvironmentBody.model_validate(self.api.get("/v1/environments/count").json())


def open_service(folder: Path, catalog: Catalog) -> Service:
    db = sqlite_database(folder / "api.db")
    World.create(db, LocalStore(folder / "objects"), catalog)
    with db.write() as session:
        row = session.scalars(select(schema.Worker)).one()
        row.token_hash = workers.token_hash(WORKER_TOKEN)
    context = Context(
        db, LocalStore(folder / "objects"), catalog, ImplementerSettings(), variables={}
    )
    api = TestClient(create_app(context), raise_server_exceptions=False)
    made = api.post(
        "/v1/searches",
        json={
            "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 1,
            "batch_size": IDEAS,
        },
    )  # fmt: skip
    search = made.json()["id"]
    ideas = [{"text": f"Idea {n}."} for n in range(IDEAS)]
    api.put(f"/v1/searches/{search}/epochs/0", json={"ideas": ideas})
    options = {"seeds": SEEDS, "baseline_seeds": 3}
    batch = api.post(f"/v1/searches/{search}/epochs/0/batch", json=options).json()["id"]
    listed = api.get("/v1/experiments", params={"batch": batch}).json()["data"]
    experiments = [str(e["id"]) for e in listed]
    webhook = api.post("/v1/webhooks", json={"url": "https://receiver.example/assay"}).json()["id"]
    delivery = api.post(f"/v1/webhooks/{webhook}/test").json()["id"]
    found = {"batch_id": batch, "search_id": search, "experiment_id": experiments[0]}
    found |= {"webhook_id": webhook, "delivery_id": delivery}
    with db.read() as session:
        found["worker"] = session.scalars(select(schema.Worker.id)).one()
    return Service(api, context, experiments, found)


def score(
    service: Service,
    metrics: dict[str, float],
    facts: dict[str, Any],
    rescore: dict[str, Any] | None = None,
) -> None:
    """Measure the baseline on three seeds, and the first idea on two."""
    with service.context.db.read() as session:
        table = schema.Measurement
        baseline = session.scalars(select(table.id).order_by(table.seed)).all()
    for number, measurement in enumerate(baseline):
        service.finish(measurement, state="succeeded", metrics={"score": 10.00001 + 0.5 * number})
    provenance = {"isolated": True, "train_seconds": 1.0, **facts}
    for measurement in service.implement(service.experiments[0], "a = 1\n"):
        body = {"metrics": metrics, "provenance": provenance, "rescore": rescore}
        service.finish(measurement, state="succeeded", **body)
    service.found["measurement_id"] = service.measurements(service.experiments[0])[0]
    read = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()
    service.found["implementation_id"] = read["implementation"]
