"""The execution rate: every stage is counted, for each owner alone, on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import event, select, update
from starlette.testclient import TestClient

from assay.contracts.batch import BatchRequest
from assay.domain.conditions import Conditions
from assay.domain.failure_codes import Failure, FailureCode
from assay.domain.states import ExperimentState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import batches, environments, experiments, schema, workers
from assay.storage.batches import Similar
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import batch

OPUS, SONNET = "anthropic:claude-opus-4-5", "anthropic:claude-sonnet-4-5"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
REPORT = "/v1/reports/execution"
ANN, BOB = ({"Authorization": f"Bearer key-{name}"} for name in "ab")


@dataclass
class Scene:
    """Puts experiments into the database as if they had come so far."""

    db: Database
    environment: str
    worker: str
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def submit(
        self,
        ideas: int,
        ideator: str | None = OPUS,
        executor: str = OPUS,
        *,
        owner: str = "ann",
        similar: int = 0,
        created_at: datetime = NOON,
        hardware_class: str = "cpu",
        **changes: Any,
    ) -> tuple[str, list[str]]:
        """A batch and its experiments; the last `similar` are skipped as near duplicates."""
        texts = [f"idea {next(self.numbers)}" for _ in range(ideas)]
        options = {"baseline_seeds": 2, "novelty": "skip"}
        body = batch(*texts, executor=executor, ideator=ideator, options=options, **changes)
        alike = [[Similar(0.9)] if i >= ideas - similar else [] for i in range(ideas)]
        with self.db.write() as session:
            request = BatchRequest.model_validate(body)
            id_ = batches.create(
                self.db,
                session,
                request,
                owner,
                self.environment,
                Conditions(hardware_class),
                alike,
            )
            session.execute(
                update(schema.Batch).where(schema.Batch.id == id_).values(created_at=created_at)
            )
            table = schema.Experiment
            found = select(table.id).where(table.batch_id == id_).order_by(table.position)
            return id_, list(session.scalars(found))

    def add(self, *rows: Any) -> None:
        with self.db.write() as session:
            for row in rows:  # one after another: they refer to those before
                session.add(row)
                session.flush()

    def implementation(self, experiment: str) -> str:
        table = schema.Implementation
        with self.db.read() as session:
            return session.scalars(select(table.id).where(table.experiment_id == experiment)).one()

    def fit(self, experiment: str, *, fitted: bool = True) -> None:
        """A sample whose diff applied, or did not."""
        self.add(
            schema.Sample(
                implementation_id=self.implementation(experiment), sample=0, revision=0,
                state="applied" if fitted else "refused", fitted=fitted, prompt_version="v",
                started_at=NOON,
            )
        )  # fmt: skip

    def patch(self, experiment: str, *, started: bool = False) -> str:
        """Give an experiment a codebase, and maybe start it."""
        codebase = f"{next(self.numbers):064d}"
        self.add(schema.Codebase(id=codebase, environment_id=self.environment, created_at=NOON))
        with self.db.write() as session:
            session.execute(
                update(schema.Experiment)
                .where(schema.Experiment.id == experiment)
                .values(codebase_id=codebase, was_started=started)
            )
        return codebase

    def measure(self, codebase: str, *experiments: str, **changes: Any) -> str:
        """A measurement that these experiments share; `role` is what it is to them."""
        id_ = f"mea_{next(self.numbers)}"
        role = changes.pop("role", "score")
        values = {
            "id": id_, "kind": "score", "codebase_id": codebase, "profile": "tiny", "seed": 0,
            "environment_id": self.environment, "hardware_class": "cpu", "replicate": 0,
            "owner": "ann", "state": "succeeded", "priority": 0, "needs_isolation": False,
            "cpus": 1, "gpus": 0, "memory_bytes": 1, "budget_seconds": 10.0,
            "created_at": NOON, "queued_at": NOON,
        }  # fmt: skip
        links = [
            schema.ExperimentMeasurement(experiment_id=e, measurement_id=id_, role=role)
            for e in experiments
        ]
        self.add(schema.Measurement(**(values | changes)), *links)
        return id_

    def attempt(
        self, measurement: str, seconds: float, state: str = "failed", *, number: int = 1
    ) -> str:
        id_ = f"att_{next(self.numbers)}"
        started = NOON + timedelta(minutes=1)
        self.add(
            schema.Attempt(
                id=id_, measurement_id=measurement, number=number, worker_id=self.worker,
                lease_token=next(self.numbers), lease_expires_at=NOON, state=state, cpus=1, gpus=0,
                memory_bytes=1, created_at=NOON, started_at=started,
                finished_at=started + timedelta(seconds=seconds), released_at=NOON,
            )
        )  # fmt: skip
        return id_

    def result(self, measurement: str, metric: float, seconds: float = 5.0) -> None:
        attempt = self.attempt(measurement, seconds, "succeeded", number=9)
        self.add(
            schema.Result(
                measurement_id=measurement, attempt_id=attempt, metric=metric, metrics={},
                provenance={}, seconds=seconds, created_at=NOON,
            )
        )  # fmt: skip

    def end(self, experiment: str, failure: Failure | None = None) -> None:
        """An experiment failed, or else succeeded."""
        state = ExperimentState.FAILED if failure else ExperimentState.SUCCEEDED
        with self.db.write() as session:
            assert experiments.move(session, experiment, state, failure)

    def cancel(self, experiment: str) -> None:
        with self.db.write() as session:
            batches.cancel_experiment(self.db, session, experiment)

    def score(self, experiment: str, *metrics: float) -> str:
        """A scored experiment, on as many seeds; its codebase."""
        codebase = self.patch(experiment, started=True)
        for seed, metric in enumerate(metrics):
            self.result(self.measure(codebase, experiment, seed=seed), metric)
        self.end(experiment)
        return codebase

    def repair(self, experiment: str, codebase: str, measurement: str) -> None:
        self.add(
            schema.Repair(
                experiment_id=experiment, number=0, state="repaired", codebase_id=codebase,
                measurement_id=measurement, failure=CRASHED.as_dict(), sample=0, revision=1,
                repaired_id=codebase, created_at=NOON,
            )
        )  # fmt: skip

    def call(self, experiment: str, cost: str | None = "0.5", **changes: Any) -> str:
        id_ = f"call_{next(self.numbers):026d}"
        with self.db.read() as session:
            of = session.get_one(schema.Experiment, experiment).batch_id
        values = {
            "id": id_, "owner": "ann", "batch_id": of, "sample": 0, "revision": 0, "number": 1,
            "implementation_id": self.implementation(experiment), "model": OPUS,
            "request_hash": "h", "prompt_version": "v", "state": "returned",
            "input_tokens": 100, "cached_input_tokens": 20, "cache_write_tokens": 10,
            "output_tokens": 40, "cost_usd": None if cost is None else Decimal(cost),
            "started_at": NOON, "finished_at": NOON,
        }  # fmt: skip
        self.add(schema.ModelCall(**(values | changes)))
        return id_


CRASHED = Failure(FailureStage.TRAIN, FailureCode.CRASHED, "ValueError: no")
MISFIT = Failure(FailureStage.IMPLEMENT, FailureCode.NO_MATCH, "nothing fits")


@pytest.fixture
def scene(db: Database, store: LocalStore, catalog: Catalog) -> Scene:
    environment = environments.register(db, store, catalog.get("count"))
    return Scene(db, environment, workers.admit(db, "w", "secret"))


@pytest.fixture
def api(scene: Scene, store: LocalStore, catalog: Catalog) -> Iterator[TestClient]:
    """A client with the key of Ann; Bob has one, too."""
    settings = ImplementerSettings(api_keys={"ann": SecretStr("key-a"), "bob": SecretStr("key-b")})
    context = Context(scene.db, store, catalog, settings, variables={})
    with TestClient(create_app(context), headers=ANN, raise_server_exceptions=False) as client:
        yield client


def report(api: TestClient, **query: Any) -> dict[str, Any]:
    response = api.get(REPORT, params=query)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def only(api: TestClient, **query: Any) -> dict[str, Any]:
    (row,) = report(api, **query)["data"]
    found: dict[str, Any] = row
    return found


def test_nothing_submitted_is_an_empty_report(api: TestClient) -> None:
    assert report(api) == {
        "object": "execution_report", "environment": None, "batches": [], "search": None,
        "since": None, "data": [],
    }  # fmt: skip


def test_every_stage_is_counted(api: TestClient, scene: Scene) -> None:
    _, ids = scene.submit(10, similar=1)
    misfit, fits, patched, crashed, scored, again, _, stopped, shared, _ = ids
    scene.fit(misfit, fitted=False)
    scene.end(misfit, MISFIT)
    scene.fit(fits)  # but preflight refused it
    scene.end(fits, Failure(FailureStage.IMPLEMENT, FailureCode.SYNTAX_ERROR, "no"))
    scene.fit(patched)
    scene.patch(patched)
    scene.patch(crashed, started=True)
    scene.end(crashed, CRASHED)
    codebase = scene.score(scored, 10.0, 14.0)
    scene.score(again, 20.0)
    scene.cancel(stopped)
    # It shares a finished measurement, so nothing was started for it.
    with scene.db.write() as session:
        session.execute(
            update(schema.Experiment)
            .where(schema.Experiment.id == shared)
            .values(codebase_id=codebase)
        )
    scene.end(shared)
    row = only(api)
    assert row["funnel"] == {
        "submitted": 8, "applied": 6, "patched": 5, "started": 4, "scored": 3,
    }  # fmt: skip
    assert row["shares"] == {"applied": 0.75, "patched": 0.625, "started": 0.5, "scored": 0.375}
    assert (row["cancelled"], row["near_duplicates"]) == (2, 1)
    assert row["unfinished"] == 2
    assert (row["execution"], row["batches"], row["hardware_classes"]) == ("self", 1, ["cpu"])
    assert (row["environment"], row["profile"]) == (scene.environment, "tiny")


def test_failures_come_most_frequent_first(api: TestClient, scene: Scene) -> None:
    _, ids = scene.submit(6)
    for experiment, failure in zip(ids, [MISFIT, CRASHED, CRASHED, MISFIT, CRASHED], strict=False):
        scene.end(experiment, failure)
    scene.end(ids[5], Failure(FailureStage.SCORE, FailureCode.LEAK, "it looks ahead"))
    assert only(api)["failures"] == [
        {"stage": "train", "code": "crashed", "count": 3},
        {"stage": "implement", "code": "no_match", "count": 2},
        {"stage": "score", "code": "leak", "count": 1},
    ]


def test_average_and_best_stand_beside_the_baseline(api: TestClient, scene: Scene) -> None:
    _, (first, second, failed) = scene.submit(3)
    scene.score(first, 10.0, 14.0)
    scene.score(second, 20.0)
    codebase = scene.patch(failed, started=True)
    scene.result(scene.measure(codebase, failed), 99.0)  # its other seed crashed
    scene.end(failed, CRASHED)
    with scene.db.read() as session:
        baseline = session.get_one(schema.Environment, scene.environment).codebase
        table = schema.Measurement
        asked = session.scalars(select(table.id).where(table.codebase_id == baseline)).all()
    assert len(asked) == 2
    row = only(api)
    assert (row["metric"]["baseline_mean"], row["metric"]["baseline_n"]) == (None, 0)
    for measurement, metric in zip(asked, (9.0, 11.0), strict=True):
        scene.result(measurement, metric)
    # Of a seed that no batch asked for, and of other hardware.
    scene.result(scene.measure(baseline, seed=7), 1000.0)
    scene.result(scene.measure(baseline, hardware_class="gpu"), 1000.0)
    assert only(api)["metric"] == {
        "name": "score", "direction": "maximize", "average": 16.0, "best": 20.0,
        "worn": False, "baseline_mean": 10.0, "baseline_n": 2,
    }  # fmt: skip
    scene.submit(1, hardware_class="gpu")
    row = only(api)
    assert row["hardware_classes"] == ["cpu", "gpu"]
    assert row["metric"]["baseline_mean"] is None  # which of the two?


def test_repairs_and_what_was_wasted(api: TestClient, scene: Scene) -> None:
    _, (mended, lost, gone) = scene.submit(3)
    before = scene.patch(mended, started=True)
    crash = scene.measure(before, mended, lost, role="replaced", state="failed")
    scene.attempt(crash, 30)  # of two experiments, and counted once
    scene.repair(mended, before, crash)
    scene.repair(lost, before, crash)
    scene.end(lost, CRASHED)
    smoke = scene.measure(before, mended, role="smoke", kind="smoke", state="failed", seed=3)
    scene.attempt(smoke, 1000)
    after = scene.patch(mended, started=True)
    measured = scene.measure(after, mended)
    scene.attempt(measured, 12, "lost")
    scene.result(measured, 11.0, seconds=400)
    scene.end(mended)
    scene.attempt(scene.measure(scene.patch(gone), gone), 1000)
    scene.repair(gone, after, measured)
    scene.cancel(gone)
    row = only(api)
    assert row["repairs"] == {"experiments": 2, "scored": 1}
    assert row["wasted_seconds"] == pytest.approx(42.0, abs=0.01)


def test_calls_tokens_and_dollars_per_idea(api: TestClient, scene: Scene) -> None:
    _, (one, two, three, four) = scene.submit(4)
    scene.patch(one)
    scene.patch(two)
    scene.call(one)
    scene.call(one, "0.25", state="interrupted", is_estimate=True)
    scene.call(three, None, state="calling", finished_at=None, input_tokens=0,
               cached_input_tokens=0, cache_write_tokens=0, output_tokens=0)  # fmt: skip
    scene.call(four, "100")
    scene.cancel(four)
    row = only(api)
    assert row["usage"] == {
        "calls": 3, "under_way": 1, "input_tokens": 260, "cached_input_tokens": 40,
        "cache_write_tokens": 20, "output_tokens": 80, "cost_usd": "0.75",
        "estimated_usd": "0.25",
    }  # fmt: skip
    assert row["per_submitted"] == {
        "calls": 1.0, "input_tokens": 86.7, "output_tokens": 26.7, "cost_usd": "0.25",
    }  # fmt: skip
    assert row["per_patched"] == {
        "calls": 1.5, "input_tokens": 130.0, "output_tokens": 40.0, "cost_usd": "0.375",
    }  # fmt: skip
    scene.call(two, None)
    row = only(api)
    assert row["usage"]["cost_usd"] is None
    assert row["per_submitted"]["cost_usd"] is row["per_patched"]["cost_usd"] is None
    assert row["usage"]["calls"] == 4


def test_a_row_for_each_ideator_executor_and_profile(api: TestClient, scene: Scene) -> None:
    scene.submit(1, OPUS, OPUS)
    scene.submit(2, SONNET, OPUS)
    scene.submit(3, None, OPUS)
    scene.submit(1, OPUS, OPUS)
    _, (ended,) = scene.submit(1, OPUS, SONNET)
    scene.cancel(ended)
    rows = report(api)["data"]
    assert [(r["execution"], r["ideator"], r["executor"], r["batches"]) for r in rows] == [
        ("person", None, OPUS, 1),
        ("self", OPUS, OPUS, 2),
        ("cross", SONNET, OPUS, 1),
        ("cross", OPUS, SONNET, 1),
    ]
    assert [r["funnel"]["submitted"] for r in rows] == [3, 2, 2, 0]
    assert rows[3]["shares"]["scored"] is rows[3]["per_submitted"] is None


def test_filters(api: TestClient, scene: Scene) -> None:
    old, _ = scene.submit(1, created_at=NOON - timedelta(days=2))
    search = "srch_1"
    scene.add(
        schema.Search(
            id=search, owner="ann", environment_id=scene.environment, profile="tiny",
            strategy="s", seed=0, epochs=1, batch_size=1, ideator=OPUS, executor=OPUS, config={},
            labels={}, caps={}, state="running", created_at=NOON,
        )
    )  # fmt: skip
    new, _ = scene.submit(2, search=search, epoch=0)
    third, _ = scene.submit(4)

    def submitted(**query: Any) -> int:
        total = sum(row["funnel"]["submitted"] for row in report(api, **query)["data"])
        return int(total)

    assert submitted() == 7
    assert submitted(environment="count") == submitted(environment=scene.environment) == 7
    assert submitted(environment="other") == 0
    assert submitted(search=search) == 2
    assert submitted(batch=[old, third]) == 5
    assert submitted(batch=[new, new]) == 2
    assert submitted(since="2026-11-20") == 6
    assert submitted(since="2026-11-21") == 0
    body = report(api, batch=[third, old], search=search, since="2026-11-20")
    assert (body["batches"], body["search"]) == (sorted([third, old]), search)
    assert (body["since"], body["data"]) == ("2026-11-20", [])


def test_an_owner_sees_only_their_own(api: TestClient, scene: Scene) -> None:
    mine, ids = scene.submit(1)
    scene.call(ids[0])
    theirs, _ = scene.submit(5, owner="bob")
    assert only(api)["funnel"]["submitted"] == 1
    assert api.get(REPORT, params={"batch": [mine, theirs]}).status_code == 404
    assert api.get(REPORT, headers={"Authorization": ""}).status_code == 401
    (row,) = api.get(REPORT, headers=BOB).json()["data"]
    assert (row["funnel"]["submitted"], row["usage"]["calls"]) == (5, 0)
    assert api.get(f"/v1/batches/{mine}/calls", headers=BOB).status_code == 404


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"since": "yesterday"}, 400, "invalid_parameter"),
        ({"since": "2026-13-01"}, 400, "invalid_parameter"),
        ({"batch": "bat_none"}, 404, "not_found"),
        ({"batch": ["b"] * 201}, 400, "invalid_parameter"),
        ({"search": "srch_none"}, 404, "not_found"),
        ({"enviroment": "count"}, 400, "unknown_parameter"),
        ({"environment": "a\0b"}, 400, "invalid_parameter"),
    ],
)
def test_bad_parameters(api: TestClient, query: dict[str, Any], status: int, code: str) -> None:
    response = api.get(REPORT, params=query)
    assert (response.status_code, response.json()["code"]) == (status, code)


def test_the_number_of_queries_does_not_grow(api: TestClient, scene: Scene) -> None:
    asked: list[str] = []
    engine = scene.db.engine
    event.listen(engine, "before_cursor_execute", lambda _c, _cu, text, *_: asked.append(text))

    def queries() -> int:
        asked.clear()
        report(api)
        return len([text for text in asked if "SELECT" in text])

    _, ids = scene.submit(2)
    report(api)  # which reads the manifest, once
    few = queries()
    for ideator in (OPUS, SONNET, None, "openai:gpt-5"):
        _, ids = scene.submit(5, ideator)
        for experiment in ids:
            scene.fit(experiment)
            scene.call(experiment)
            scene.score(experiment, 1.0, 2.0)
    assert queries() == few


def test_the_ledger_of_a_batch_in_pages(api: TestClient, scene: Scene) -> None:
    id_, (one, two) = scene.submit(2)
    made = [scene.call(experiment) for experiment in (one, two, one, two)]
    failed = scene.call(one, "0", state="failed", code="rate_limited", message="slower")
    scene.call(scene.submit(1)[1][0])
    url = f"/v1/batches/{id_}/calls"
    first = api.get(url, params={"limit": 3}).json()
    rest = api.get(url, params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [c["id"] for c in first["data"] + rest["data"]] == [*made, failed]
    assert rest["next_cursor"] is None
    (call,) = api.get(url, params={"state": "failed"}).json()["data"]
    assert (call["id"], call["code"], call["cost_usd"]) == (failed, "rate_limited", "0")
    assert call["batch"] == id_
    assert (call["input_tokens"], call["cached_input_tokens"]) == (100, 20)
    wrong = api.get(url, params={"state": "lost"})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_parameter")
    other = api.get(url, params={"state": "failed", "cursor": first["next_cursor"]})
    assert "other filters" in other.json()["detail"]
    assert api.get("/v1/batches/bat_none/calls").status_code == 404
