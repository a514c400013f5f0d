"""Smokes from the queue to their end: API, scheduler and worker as they are, over SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.contracts.batch import MeasurementBody
from assay.contracts.worker import WorkerRegistration
from assay.domain.conditions import Conditions
from assay.domain.placement import Placement
from assay.domain.states import MeasurementKind
from assay.environments.catalog import Catalog, Environment
from assay.storage import attempts, baselines, environments, measurements, schema, specs, workers
from assay.storage.database import Database
from assay.storage.measurements import Identity, Terms
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.binding import bind, url_of
from services.implementer.context import Context
from services.implementer.http import http_server
from services.implementer.settings import ImplementerSettings
from services.scheduler.clock import Scheduler
from services.scheduler.settings import SchedulerSettings
from services.worker.settings import WorkerSettings
from services.worker.supervisor import Worker
from tests.support.databases import sqlite_database

ENVIRONMENTS = Path(__file__).parents[2] / "environments"
CLASS = "cpu-test"
TOKEN = "asw_smoke"


@dataclass
class Stack:
    """Everything but the implement loop."""

    db: Database
    store: LocalStore
    catalog: Catalog
    api: TestClient

    def environment(self, name: str) -> Environment:
        environments.register(self.db, self.store, self.catalog.get(name))
        return self.catalog.get(name)

    def request(
        self,
        of: Environment,
        kind: MeasurementKind,
        changes: dict[str, str] | None = None,
        *,
        needs_isolation: bool = False,
    ) -> str:
        """Ask for a measurement of the codebase with other contents of some files."""
        files = of.codebase | (changes or {})
        codebase = environments.put_codebase(self.store, files)
        smoke = of.manifest.smoke_profile("tiny")
        assert smoke is not None
        name, profile = smoke
        if kind is MeasurementKind.SCORE:
            profile = of.profile(name)
        with self.db.write() as session:
            environments.add_codebase(self.db, session, codebase, of.id)
            identity = Identity(codebase, of.id, name, 0, Conditions(CLASS), kind)
            terms = Terms("local", self.db.now(session), needs_isolation=needs_isolation)
            return measurements.request(self.db, session, identity, profile, terms)

    def smoke(self, of: Environment, changes: dict[str, str] | None = None) -> str:
        return self.request(of, MeasurementKind.SMOKE, changes)

    def get(self, path: str) -> Any:
        response = self.api.get(path)
        assert response.status_code == 200, response.text
        is_json = response.headers["content-type"] == "application/json"
        return response.json() if is_json else response.text

    def finished(self, measurement: str, seconds: float = 120) -> MeasurementBody:
        deadline = time.monotonic() + seconds
        while True:
            body = MeasurementBody.model_validate(self.get(f"/v1/measurements/{measurement}"))
            if body.finished_at is not None:
                return body
            assert time.monotonic() < deadline, body
            time.sleep(0.05)

    def results(self) -> dict[str, bool]:
        """Whether there is a metric in it, of every stored result by its measurement."""
        table = schema.Result
        with self.db.read() as session:
            rows = session.execute(select(table.measurement_id, table.metric)).all()
        return {id_: metric is not None for id_, metric in rows}

    def bits(self, measurement: str) -> tuple[int, int]:
        with self.db.read() as session:
            row = session.get_one(schema.Measurement, measurement)
            return row.search_bits, row.sealed_bits


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack in which nothing is scheduled."""
    folder = tmp_path_factory.mktemp("stack")
    db = sqlite_database(folder / "assay.db")
    store = LocalStore(folder / "objects")
    catalog = Catalog([ENVIRONMENTS])
    context = Context(db, store, catalog, ImplementerSettings(), variables={})
    yield Stack(db, store, catalog, TestClient(create_app(context)))
    db.dispose()


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def stack(idle: Stack, tmp_path: Path) -> Iterator[Stack]:
    """A stack that works."""
    context = Context(idle.db, idle.store, idle.catalog, ImplementerSettings(), variables={})
    socket = bind("127.0.0.1", 0, "")
    server = http_server(context, here_only=True)
    scheduler = Scheduler(
        idle.db, SchedulerSettings(tick_seconds=0.05), lambda: None, holder="test"
    )
    workers.admit(idle.db, "smoking", TOKEN)
    worker = Worker(
        WorkerSettings(
            api_url=url_of("127.0.0.1", socket),
            token=SecretStr(TOKEN),
            name="smoking",
            cpus=1,
            memory_bytes=8 << 30,
            cache=tmp_path / "cache",
            hardware_class=CLASS,
            sandbox="subprocess",
            probe="quick",
            poll_seconds=0.2,
            grace_seconds=1,
        )
    )
    http = in_thread(lambda: server.run(sockets=[socket]))
    threads = [in_thread(worker.run), in_thread(scheduler.run)]
    yield idle
    worker.stop()
    scheduler.stop()
    for thread in threads:
        thread.join(20)
    server.should_exit = True
    http.join(10)
    assert not any(thread.is_alive() for thread in (*threads, http))


CRASH = """
from landscape import load_landscape

def main():
    height, dimensions = load_landscape()
    height([0.0] * (dimensions - 1))[0]

main()
"""


def test_from_the_queue_to_its_end(stack: Stack) -> None:
    toy = stack.environment("toy")
    good, bad = stack.smoke(toy), stack.smoke(toy, {"search.py": CRASH})
    score = stack.request(toy, MeasurementKind.SCORE)
    assert len({good, bad, score}) == 3
    assert stack.smoke(toy) == good  # asked for once per codebase

    body = stack.finished(good)
    assert (body.kind, body.state, body.failure) == ("smoke", "succeeded", None)
    assert (body.metric, body.metrics, body.rescore) == (None, {}, None)
    assert body.provenance["isolated"] is False  # where it ran is known, as of every result
    assert body.provenance["passed"] is not None
    assert body.seconds is not None
    assert body.seconds == round(body.seconds)
    assert not body.promotable
    assert [a.state for a in body.attempts] == ["succeeded"]

    body = stack.finished(bad)
    assert (body.state, len(body.attempts)) == ("failed", 1)  # a result: not tried again
    assert body.failure is not None
    assert (body.failure.stage, body.failure.code) == ("train", "crashed")
    assert body.failure.message == "TypeError: 'float' object is not subscriptable"
    log = stack.get(f"/v1/measurements/{bad}/logs")
    assert log.startswith("Traceback (most recent call last):")
    assert "height([0.0] * (dimensions - 1))[0]" in log
    assert log.rstrip().endswith(body.failure.message)

    assert stack.finished(score).metric is not None
    assert stack.results() == {good: False, score: True}
    assert stack.smoke(toy) == good


def test_every_view_copes_with_a_result_without_a_metric(stack: Stack) -> None:
    toy = stack.environment("toy")
    smoke = stack.smoke(toy)
    stack.finished(smoke)
    listed = stack.get("/v1/measurements?environment=toy&state=succeeded")["data"]
    assert smoke in [each["id"] for each in listed]
    assert stack.get(f"/v1/measurements/{smoke}/system")["data"] == []
    # Empty where the smoke passed before the program had printed its last line.
    assert "Traceback" not in stack.get(f"/v1/measurements/{smoke}/logs")
    missing = stack.api.get(f"/v1/measurements/{smoke}/artifacts/artifact.zip")
    assert missing.status_code == 404
    with stack.db.read() as session:
        environment = session.get_one(schema.Environment, toy.id)
        progress = baselines.progress(session, environment, "tiny", Conditions(CLASS))
        values = measurements.baseline_values(session, environment, "tiny", Conditions(CLASS))
    assert (progress.pending, progress.failed) == ([], [])
    assert all(values.values())
    assert len(values) == sum(stack.results().values())


@pytest.mark.slow
def test_a_model_that_trains_passes_and_one_of_wrong_shape_does_not(stack: Stack) -> None:
    nanogpt = stack.environment("nanogpt")
    model = nanogpt.codebase["model.py"]
    right = "self.up = nn.Linear(config.n_embd, hidden, bias=False)"
    wrong = right.replace("n_embd,", "n_embd + 1,")
    assert right in model
    good = stack.smoke(nanogpt)
    bad = stack.smoke(nanogpt, {"model.py": model.replace(right, wrong)})
    body = stack.finished(good)
    assert (body.state, body.failure) == ("succeeded", None)
    body = stack.finished(bad)
    assert body.failure is not None
    assert body.failure.message.startswith("RuntimeError: mat1 and mat2 shapes cannot be")
    assert 'train.py", line' in stack.get(f"/v1/measurements/{bad}/logs")


@pytest.fixture
def given(idle: Stack) -> Callable[[MeasurementKind, str], schema.Attempt]:
    """Gives a worker that does nothing an attempt."""
    worker = workers.admit(idle.db, "idle", "asw_idle")
    registration = WorkerRegistration(
        name="idle",
        incarnation="one",
        cpus=2,
        memory_bytes=1 << 33,
        hardware_class=CLASS,
        sandbox="subprocess",
        isolated=False,
    )

    def give(kind: MeasurementKind, content: str) -> schema.Attempt:
        toy = idle.environment("toy")
        measurement = idle.request(toy, kind, {"search.py": content})
        with idle.db.write() as session:
            workers.register(idle.db, session, worker, registration)
            ttl = ImplementerSettings().lease
            found = attempts.assign(idle.db, session, Placement(measurement, worker), ttl)
            assert found is not None
            [spec] = specs.specs(session, [found.id])
        assert (spec.kind, spec.profile) == (kind.value, "tiny")
        assert spec.rescore is None
        return found

    return give


def finish(stack: Stack, attempt: schema.Attempt, metrics: dict[str, float], **more: Any) -> Any:
    body = {"lease_token": attempt.lease_token, "state": "succeeded", "metrics": metrics, **more}
    path = f"/internal/v1/attempts/{attempt.id}/finish"
    return stack.api.post(path, json=body, headers={"Authorization": "Bearer asw_idle"})


def test_only_a_smoke_succeeds_without_a_metric(
    idle: Stack, given: Callable[[MeasurementKind, str], schema.Attempt]
) -> None:
    before = idle.results()
    score = given(MeasurementKind.SCORE, "a = 1")
    refused = finish(idle, score, {})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["code"] == "metric_missing"
    smoke = given(MeasurementKind.SMOKE, "a = 2")
    assert smoke.bound_seconds == 5 * (20 + 2 * 30) + 60
    for _ in range(2):  # a repeated report changes nothing
        assert finish(idle, smoke, {}).json()["state"] == "succeeded"
    assert idle.finished(smoke.measurement_id).state == "succeeded"
    assert idle.results() == before | {smoke.measurement_id: False}


def test_a_smoke_has_no_metric_and_shows_no_bits_whatever_is_reported(
    idle: Stack, given: Callable[[MeasurementKind, str], schema.Attempt]
) -> None:
    smoke = given(MeasurementKind.SMOKE, "a = 3")
    facts = {"isolated": True, "train_seconds": 2.25, "passed": "steps"}
    rescore = {"metrics": {"score": 9.0}, "seconds": 1.0}
    more = {"provenance": facts, "seconds": 2.75, "rescore": rescore}
    assert finish(idle, smoke, {"score": 9.0}, **more).status_code == 200
    body = idle.finished(smoke.measurement_id)
    assert (body.metric, body.metrics, body.rescore) == (None, {}, None)
    assert body.provenance == facts | {"train_seconds": 2.0}
    assert (body.seconds, body.promotable) == (3.0, False)
    assert idle.results()[smoke.measurement_id] is False
    assert idle.bits(smoke.measurement_id) == (0, 0)


def test_a_smoke_that_passed_without_isolation_is_shared_with_what_needs_isolation(
    idle: Stack, given: Callable[[MeasurementKind, str], schema.Attempt]
) -> None:
    """A score is measured again there: code could have changed its number."""
    changes = {"search.py": "a = 4"}
    for kind, is_shared in ((MeasurementKind.SMOKE, True), (MeasurementKind.SCORE, False)):
        attempt = given(kind, changes["search.py"])
        metrics = {"score": 1.0} if kind is MeasurementKind.SCORE else {}
        answer = finish(idle, attempt, metrics, provenance={"isolated": False})
        assert answer.status_code == 200, answer.text
        again = idle.request(idle.environment("toy"), kind, changes, needs_isolation=True)
        assert (again == attempt.measurement_id) is is_shared
