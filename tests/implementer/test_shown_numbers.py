"""Held-out data cannot leave through the digits of results: exact numbers are stored and judged,
rounded ones are shown, and what they show is counted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.analysis import worn_note
from assay.contracts.environment import EnvironmentBody
from assay.domain.placement import Placement
from assay.domain.rounding import OUTCOME_BITS
from assay.environments.catalog import Catalog
from assay.evaluation.codes import InvalidCode
from assay.storage import attempts, disclosure, environments, implementations, schema, workers
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import WORKER_TOKEN
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database
from tests.support.environment import MANIFEST, write_environment

HEADERS = {"Authorization": f"Bearer {WORKER_TOKEN}"}
IDEAS = 2
SEEDS = [0, 1]
#: Two results that differ by less than is shown, in every number an evaluation gives.
ONE = {
    "score": 12.50123, "score/se": 0.21234, "score/part": 0.71234,
    "confirmed_score": 11.40123, "other": 0.123412345,
}  # fmt: skip
TWO = {
    "score": 12.50456, "score/se": 0.21432, "score/part": 0.70654,
    "confirmed_score": 11.40345, "other": 0.123411111,
}  # fmt: skip
FACTS_ONE = {"evaluation_seconds": 2.6123, "evaluation_cpu_seconds": 1.7123, "rescored": 12.50321}
FACTS_TWO = {"evaluation_seconds": 2.9456, "evaluation_cpu_seconds": 2.2456, "rescored": 12.50245}
_IDS = re.compile(r"\b(?:att|bat|call|exp|idea|impl|mea|req|srch|wrk)_[0-9a-z]{10,}")
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")


@dataclass
class Service:
    """The API over one search of two ideas, each on two seeds; the first idea has been scored."""

    api: TestClient
    context: Context
    experiments: list[str]
    found: dict[str, str]

    def finish(self, measurement: str, **body: Any) -> None:
        """Let the worker report the end of a measurement."""
        with self.context.db.write() as session:
            worker = session.scalars(select(schema.Worker.id)).one()
            given = attempts.assign(
                self.context.db, session, Placement(measurement, worker), timedelta(seconds=60)
            )
            assert given is not None
        path = f"/internal/v1/attempts/{given.id}/finish"
        body = {"lease_token": given.lease_token, "seconds": 4.4, "started": True} | body
        answer = self.api.post(path, json=body, headers=HEADERS)
        assert answer.status_code == 200, answer.text

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
    found = {"batch_id": batch, "search_id": search, "experiment_id": experiments[0]}
    with db.read() as session:
        found["worker"] = session.scalars(select(schema.Worker.id)).one()
    return Service(api, context, experiments, found)


@pytest.fixture
def service(tmp_path: Path, catalog: Catalog) -> Iterator[Service]:
    made = open_service(tmp_path, catalog)
    yield made
    made.context.db.dispose()


def score(service: Service, metrics: dict[str, float], facts: dict[str, Any]) -> None:
    """Measure the baseline on three seeds, and the first idea on two."""
    with service.context.db.read() as session:
        table = schema.Measurement
        baseline = session.scalars(select(table.id).order_by(table.seed)).all()
    for number, measurement in enumerate(baseline):
        service.finish(measurement, state="succeeded", metrics={"score": 10.00001 + 0.5 * number})
    provenance = {"isolated": True, "train_seconds": 1.0, **facts}
    for measurement in service.implement(service.experiments[0], "a = 1\n"):
        service.finish(measurement, state="succeeded", metrics=metrics, provenance=provenance)
    service.found["measurement_id"] = service.measurements(service.experiments[0])[0]
    read = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()
    service.found["implementation_id"] = read["implementation"]


def bodies(service: Service) -> dict[str, str]:
    """The answers of all GET endpoints, without ids and times."""
    paths = service.api.get("/openapi.json").json()["paths"]
    asked = {}
    for template, operations in paths.items():
        if "get" not in operations or not template.startswith("/v1/"):
            continue
        path = template.format(**service.found | {"name": name_in(template)})
        answer = service.api.get(path, params=params_of(operations["get"]))
        assert answer.status_code == 200 or path.endswith("/artifacts/none.zip"), answer.text
        asked[template] = _TIMES.sub("TIME", _IDS.sub("ID", answer.text))
    return asked


def name_in(template: str) -> str:
    return "none.zip" if "artifacts" in template else "count"


def params_of(operation: dict[str, Any]) -> dict[str, str]:
    """The query parameters that an endpoint needs."""
    known = {"profile": "tiny"}
    needed = [p for p in operation.get("parameters", []) if p["in"] == "query" and p["required"]]
    return {p["name"]: known[p["name"]] for p in needed}


def test_results_that_differ_by_less_than_is_shown_look_the_same_everywhere(
    tmp_path: Path, catalog: Catalog
) -> None:
    seen = []
    for name, metrics, facts in (("one", ONE, FACTS_ONE), ("two", TWO, FACTS_TWO)):
        (tmp_path / name).mkdir()
        service = open_service(tmp_path / name, catalog)
        score(service, metrics, facts)
        seen.append(bodies(service))
        with service.context.db.read() as session:
            stored = session.get_one(schema.Result, service.found["measurement_id"])
            assert stored.metrics == metrics, "exact in the store"
            assert stored.metric == metrics["score"]
            assert stored.provenance["rescored"] == facts["rescored"]
        service.context.db.dispose()
    one, two = seen
    assert len(one) > 20
    assert one.keys() == two.keys()
    assert [template for template in one if one[template] != two[template]] == []
    everything = json.dumps(one)
    assert "12.5" in everything
    numbers = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", everything)
    assert {n for n in numbers if len(n.replace(".", "").strip("0")) > 4} == set()


def test_views_show_what_the_rules_of_rounding_say(service: Service) -> None:
    score(service, ONE, FACTS_ONE | {"peak_memory_bytes": (3 << 20) + 5})
    get = service.api.get
    measurement = get(f"/v1/measurements/{service.found['measurement_id']}").json()
    assert measurement["metric"] == 12.5
    assert measurement["metrics"] == {
        "score": 12.5, "score/se": 0.21, "score/part": 0.71, "confirmed_score": 11.4,
        "other": 0.1234,
    }  # fmt: skip
    assert measurement["provenance"]["evaluation_seconds"] == 3.0
    assert measurement["provenance"]["peak_memory_bytes"] == 3 << 20
    assert measurement["provenance"]["rescored"] == 12.5
    experiment = get(f"/v1/experiments/{service.experiments[0]}").json()
    assert experiment["metric"] == experiment["reward"] == 12.5
    assert experiment["confirmed"] == 11.4
    assert experiment["seconds"] == 8.0
    assert experiment["comparison"] == {
        "baseline_mean": 10.5, "baseline_spread": 0.5, "baseline_n": 3, "delta": 2.0,
        "standard_error": 0.4564, "sigmas": 4.382, "verdict": "better",
    }  # fmt: skip
    result = get(f"/v1/experiments/{service.experiments[0]}/result").json()
    assert (result["metric"], result["reward"]) == (12.5, 12.5)
    assert result["measurements"][0]["metrics"] == measurement["metrics"]
    batch = get(f"/v1/batches/{service.found['batch_id']}").json()
    assert batch["best"]["metric"] == 12.5
    assert (batch["baseline"]["mean"], batch["baseline"]["spread"]) == (10.5, 0.5)
    search = get(f"/v1/searches/{service.found['search_id']}").json()
    assert [entry["metric"] for entry in search["best"]] == []  # its epoch has not finished
    (row,) = get("/v1/reports/execution").json()["data"]
    assert (row["metric"]["average"], row["metric"]["best"]) == (12.5, 12.5)
    baseline = get("/v1/environments/count/baseline", params={"profile": "tiny"}).json()
    assert baseline["values"] == [10.0, 10.5, 11.0]


@pytest.mark.parametrize(("excess", "verdict"), [(0.0004, "better"), (-0.0004, "within_noise")])
def test_a_verdict_is_that_of_the_exact_numbers(
    service: Service, excess: float, verdict: str
) -> None:
    """Both are shown as 11.41, on either side of two standard errors: 10.50001 + 2 · 0.4564…"""
    edge = 10.50001 + 2 * 0.5 * (1 / 2 + 1 / 3) ** 0.5
    score(service, {"score": edge + excess}, {})
    experiment = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()
    assert experiment["metric"] == 11.41
    assert experiment["comparison"]["verdict"] == verdict


def test_equal_numbers_share_the_first_place(service: Service) -> None:
    """Otherwise the choice of the best would compare digits that are not shown."""
    score(service, ONE, {})
    for measurement in service.implement(service.experiments[1], "a = 2\n"):
        service.finish(measurement, state="succeeded", metrics=TWO)
    batch = service.api.get(f"/v1/batches/{service.found['batch_id']}").json()
    assert batch["best"] == {"experiment": service.experiments[0], "metric": 12.5}
    search = service.api.get(f"/v1/searches/{service.found['search_id']}").json()
    assert [entry["best_so_far"] for entry in search["best"]] == [12.5]


def test_bits_are_counted_once_per_end_and_not_for_the_baseline(service: Service) -> None:
    with service.context.db.read() as session:
        table = schema.Measurement
        baseline = session.scalars(select(table.id).order_by(table.seed)).all()
    service.finish(baseline[0], state="succeeded", metrics=ONE)
    first, second = service.implement(service.experiments[0], "a = 1\n")
    assert splits(service) == {"search": 0, "sealed": 0}
    service.finish(first, state="succeeded", metrics=ONE, provenance=FACTS_ONE)
    after_one = splits(service)
    assert 50 < after_one["sealed"] < after_one["search"] < 250
    bodies_read = [service.api.get(f"/v1/measurements/{first}").text for _ in range(3)]
    assert len(set(bodies_read)) == 1
    assert splits(service) == after_one, "reading again shows nothing new"
    leak = {"stage": "score", "code": "leak", "message": "no"}
    service.finish(second, state="failed", failure=leak)
    assert splits(service) == {name: bits + OUTCOME_BITS for name, bits in after_one.items()}


def test_what_never_met_held_out_data_shows_nothing(service: Service) -> None:
    first, _ = service.implement(service.experiments[0], "a = 1\n")
    crash = {"stage": "train", "code": "crashed", "message": "no"}
    service.finish(first, state="failed", failure=crash)
    assert splits(service) == {"search": 0, "sealed": 0}


def test_a_failure_in_scoring_that_is_tried_again_counts_each_time(service: Service) -> None:
    first, _ = service.implement(service.experiments[0], "a = 1\n")
    failure = {"stage": "score", "code": "evaluator_error", "message": "no", "retryable": True}
    service.finish(first, state="failed", failure=failure, infrastructure=True)
    assert splits(service) == {"search": OUTCOME_BITS, "sealed": OUTCOME_BITS}


def test_every_code_of_scoring_fits_into_the_bits_of_an_outcome() -> None:
    of_guard = {"implausible", "not_confirmed"}
    assert len({*InvalidCode, *of_guard, "succeeded"}) <= 1 << OUTCOME_BITS


def splits(service: Service) -> dict[str, int]:
    return {split.name: split.bits_shown for split in service.environment().splits}


def test_past_its_budget_a_split_is_worn_and_rankings_ask_for_confirmation(
    tmp_path: Path, service: Service
) -> None:
    assert worn_note(service.environment()) is None
    folder = tmp_path / "tight" / "count"
    write_environment(folder)
    (folder / "environment.toml").write_text(f"held_out_bits = 100\n{MANIFEST}")
    (tmp_path / "again").mkdir()
    tight = open_service(tmp_path / "again", Catalog([tmp_path / "tight"]))
    score(tight, ONE, FACTS_ONE)
    found = {split.name: split for split in tight.environment().splits}
    assert (found["search"].bits_budget, found["search"].worn) == (100, True)
    assert found["search"].bits_shown > 100
    note = worn_note(tight.environment())
    assert note is not None
    assert "confirm the top results on a fresh split" in note
    assert f"search ({found['search'].bits_shown:,} of 100 bits shown)" in note
    (row,) = tight.api.get("/v1/reports/execution").json()["data"]
    assert row["metric"]["worn"] is True
    assert service.environment().splits[0].bits_budget == 10_000
    tight.context.db.dispose()


def test_counting_is_one_query_that_reads_an_index_alone(service: Service) -> None:
    score(service, ONE, FACTS_ONE)
    with service.context.db.read() as session:
        plan = session.connection().exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT environment_id, sum(search_bits), sum(sealed_bits) "
            "FROM measurement WHERE environment_id IN ('a', 'b') GROUP BY environment_id"
        )
        assert "COVERING INDEX ix_measurement_bits" in str(plan.all())
        assert disclosure.shown_bits(session, ["unknown"])["unknown"].search == 0


def test_a_held_out_key_that_is_not_text_is_not_shown(tmp_path: Path, catalog: Catalog) -> None:
    service = open_service(tmp_path, catalog)
    with service.context.db.read() as session:
        name = session.scalars(select(schema.Worker.name)).one()
    body = {
        "name": name, "incarnation": "two", "cpus": 4, "memory_bytes": 1 << 30,
        "hardware_class": "cpu", "sandbox": "bubblewrap", "isolated": True,
        "info": {"held_out_key": 5},
    }  # fmt: skip
    answer = service.api.post("/internal/v1/workers", json=body, headers=HEADERS)
    assert answer.status_code < 300, answer.text
    assert answer.json()["held_out_key"] is None
