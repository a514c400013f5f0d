"""The baseline over HTTP: how many seeds, which come first, and what becomes of a failed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.domain.states import AttemptState
from assay.environments.catalog import Catalog
from assay.storage import schema
from assay.storage.attempts import Outcome
from assay.storage.baselines import seeds_of, seeds_wanted
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import batch, served
from tests.storage.lifecycle import CRASH, World
from tests.support.databases import sqlite_database

CRASHED = Outcome(AttemptState.FAILED, CRASH, started=True)
PATH = "/v1/environments/count/baseline"


@pytest.fixture
def world(tmp_path: Path, store: LocalStore, catalog: Catalog) -> Iterator[World]:
    """A database with one worker, which does what a test tells it."""
    db = sqlite_database(tmp_path / "api.db")
    yield World.create(db, store, catalog)
    db.dispose()


@pytest.fixture
def api(world: World, catalog: Catalog) -> Iterator[TestClient]:
    with served(world, catalog) as client:
        yield client


def submit(api: TestClient, **options: Any) -> str:
    """A batch of one idea."""
    answer = api.post("/v1/batches", json=batch(options=options))
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def seeds(world: World) -> dict[int, str]:
    """The newest baseline measurement on each seed."""
    table = schema.Measurement
    with world.db.read() as session:
        baseline = session.get_one(schema.Environment, world.environment).codebase
        query = select(table.seed, table.id).where(table.codebase_id == baseline)
        return dict(session.execute(query.order_by(table.seed, table.replicate)).all())


def test_a_failed_seed_is_not_pending_for_ever(api: TestClient, world: World) -> None:
    made = submit(api, baseline_seeds=3)
    first, second, third = seeds(world).values()
    world.measure(first)
    world.measure(second, CRASHED)
    summary = api.get(f"/v1/batches/{made}").json()["baseline"]
    assert (summary["n"], summary["pending"], summary["failed"]) == (1, 1, 1)
    body = api.get(PATH, params={"profile": "tiny"}).json()
    assert (body["seeds"], body["pending_seeds"], body["pending"]) == ([0], [2], 1)
    assert (body["kind"], body["measurements"]) == ("score", [first])
    (failed,) = body["failures"]
    assert (failed["seed"], failed["measurement"]) == (1, second)
    assert failed["failure"] == CRASH.as_dict()
    world.measure(third)
    assert api.get(f"/v1/batches/{made}").json()["baseline"]["pending"] == 0


def test_the_profile_decides_on_how_many_seeds(api: TestClient, world: World) -> None:
    made = submit(api)
    assert list(seeds(world)) == list(range(20))
    body = api.get(f"/v1/batches/{made}").json()
    assert body["options"]["baseline_seeds"] is None
    assert body["baseline"]["pending"] == 20
    with world.db.read() as session:
        profile = world.profile(session)
    assert seeds_wanted(profile) == 20
    assert seeds_wanted(profile.model_copy(update={"gpus": 1})) == 3
    assert seeds_wanted(profile, 7) == 7
    assert seeds_of(profile, {"baseline_seeds": 3, "seeds": [1, 100, 101]}) == [0, 1, 2, 100, 101]
    assert seeds_of(profile, {"baseline_seeds": 0, "seeds": [0, 1]}) == []


def test_a_batch_is_compared_on_its_own_seeds_alone(api: TestClient, world: World) -> None:
    """Otherwise finished verdicts would change when somebody measures more seeds."""
    default, two = submit(api), submit(api, baseline_seeds=2)
    api.post(PATH, json={"profile": "tiny", "seeds": [40]})
    for seed in (0, 1, 2, 40):
        world.measure(seeds(world)[seed])
    found = [api.get(f"/v1/batches/{made}").json()["baseline"] for made in (default, two)]
    assert [(each["n"], each["pending"]) for each in found] == [(3, 17), (2, 0)]


def test_a_failed_seed_is_measured_again_when_it_is_asked_for(
    api: TestClient, world: World
) -> None:
    submit(api, baseline_seeds=2)
    first, second = seeds(world).values()
    world.measure(first)
    world.measure(second, CRASHED)
    request = {"profile": "tiny", "seeds": [0, 1]}
    assert api.post(PATH, json=request).json()["failed"] == 1
    assert list(seeds(world).values()) == [first, second]
    body = api.post(PATH, json=request | {"again": True}).json()
    assert (body["failed"], body["pending_seeds"]) == (0, [1])
    replicate = seeds(world)[1]
    assert (seeds(world)[0], replicate != second) == (first, True)
    assert api.post(PATH, json=request | {"again": True}).json()["pending_seeds"] == [1]
    assert seeds(world)[1] == replicate, "it waits already"
    world.measure(replicate)
    body = api.get(PATH, params={"profile": "tiny"}).json()
    assert (body["seeds"], body["failed"], body["pending"]) == ([0, 1], 0, 0)


def test_a_request_without_seeds_asks_for_those_of_the_profile(
    api: TestClient, world: World
) -> None:
    (profile,) = api.get("/v1/environments/count").json()["profiles"]
    assert profile["baseline_seeds"] == 20
    body = api.post(PATH, json={"profile": "tiny"}).json()
    assert body["pending_seeds"] == list(range(20))


@pytest.mark.parametrize(
    "wrong", [{"again": "yes"}, {"again": None}, {"seeds": []}, {"seeds": list(range(65))}]
)
def test_bounds_of_a_request(api: TestClient, wrong: dict[str, Any]) -> None:
    answer = api.post(PATH, json={"profile": "tiny"} | wrong)
    assert answer.status_code == 422
    (field,) = wrong
    assert field in answer.text


def test_the_log_of_a_baseline_is_everybodys(world: World, catalog: Catalog) -> None:
    settings = ImplementerSettings(
        api_keys={name: SecretStr(f"key-of-{name}") for name in ("anna", "bert")}
    )
    context = Context(world.db, world.store, catalog, settings, variables={})
    api = TestClient(create_app(context), raise_server_exceptions=False)
    anna, bert = ({"Authorization": f"Bearer key-of-{name}"} for name in ("anna", "bert"))
    api.post(PATH, json={"profile": "tiny", "seeds": [0]}, headers=anna)
    world.measure(seeds(world)[0], CRASHED)
    path = f"/v1/measurements/{seeds(world)[0]}/logs"
    assert api.get(path, headers=bert).status_code == 200
    assert api.get("/v1/measurements", headers=bert).json()["data"] == []
