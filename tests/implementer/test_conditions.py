"""Conditions over the API: who has which, and what an operator takes for equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from assay.domain.conditions import Conditions, host_facts
from assay.domain.states import MeasurementKind
from assay.environments.catalog import Catalog
from assay.storage import equivalences, measurements, schema
from assay.storage.equivalences import Equality
from assay.storage.measurements import Identity, Terms
from assay.storage.objects import LocalStore
from assay.storage.rows import get
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import batch
from tests.implementer.test_epochs import new_search, put
from tests.storage.lifecycle import World
from tests.support.databases import sqlite_database

INFO: dict[str, Any] = {"torch": "2.9.0", "held_out_key": "one", "evaluation": 1, "driver": "1"}


def opened(folder: Path, catalog: Catalog, *infos: dict[str, Any]) -> tuple[TestClient, World]:
    """The API with a worker for each of `infos`; the first has most processors."""
    store = LocalStore(folder / "objects")
    world = World.create(sqlite_database(folder / "api.db"), store, catalog)
    world.restart("two", info=infos[0], cpus=8)
    for number, info in enumerate(infos[1:]):
        world.another(f"w{number}", info=info)
    context = Context(world.db, store, catalog, ImplementerSettings(), variables={})
    return TestClient(create_app(context), raise_server_exceptions=False), world


def test_workers_and_conditions_say_what_they_share(tmp_path: Path, catalog: Catalog) -> None:
    api, _ = opened(tmp_path, catalog, INFO, INFO | {"driver": "2"}, INFO | {"torch": "2.8.1"})
    workers = {each["name"]: each for each in api.get("/v1/workers").json()["data"]}
    assert workers["w"]["conditions"] == workers["w0"]["conditions"] != workers["w1"]["conditions"]
    assert workers["w0"]["recorded"] == {"driver": "2", "torch_version": "2.9.0"}
    sets = {each["id"]: each for each in api.get("/v1/conditions").json()["data"]}
    shared = sets[workers["w"]["conditions"]]
    assert shared["workers"] == ["w", "w0"]
    assert shared["facts"] == workers["w"]["facts"]
    alone = [each["workers"] for each in sets.values() if "driver" in each["facts"]]
    assert sorted(alone) == [["w"], ["w0"], ["w1"]]


def test_conditions_name_workers_that_tell_their_packages(
    tmp_path: Path, catalog: Catalog
) -> None:
    packages = {"torch": "2.9.0", "vllm": "0.9"}
    api, _ = opened(tmp_path, catalog, INFO | {"packages": packages})
    (worker,) = api.get("/v1/workers").json()["data"]
    sets = {each["id"]: each for each in api.get("/v1/conditions").json()["data"]}
    shared = sets[worker["conditions"]]
    assert (shared["facts"], shared["workers"]) == (worker["facts"], ["w"])


def test_a_batch_says_under_which_conditions_it_is_measured(
    tmp_path: Path, catalog: Catalog
) -> None:
    api, _ = opened(tmp_path, catalog, INFO, INFO | {"torch": "2.8.1"})
    most, other = (each["conditions"] for each in api.get("/v1/workers").json()["data"])
    body = api.post("/v1/batches", json=batch("one"))
    assert body.json()["conditions"] == most
    named = api.post("/v1/batches", json=batch("two", conditions=other)).json()
    assert named["conditions"] == other
    (experiment,) = api.get("/v1/experiments", params={"batch": named["id"]}).json()["data"]
    assert (experiment["hardware_class"], experiment["conditions"]) == ("cpu", other)
    measurements = api.get("/v1/measurements", params={"environment": "count"}).json()["data"]
    assert {each["conditions"] for each in measurements} == {most, other}
    query = {"profile": "tiny", "conditions": other}
    baseline = api.get("/v1/environments/count/baseline", params=query).json()
    sets = {each["id"]: each["facts"] for each in api.get("/v1/conditions").json()["data"]}
    assert (baseline["conditions"], baseline["facts"]) == (other, sets[other])
    wrong = api.post("/v1/batches", json=batch("three", conditions="cnd_none"))
    assert (wrong.status_code, wrong.json()["code"]) == (422, "unknown_conditions")
    assert wrong.json()["errors"][0]["pointer"] == "/conditions"


def test_a_search_is_measured_under_the_conditions_it_names(
    tmp_path: Path, catalog: Catalog
) -> None:
    api, _ = opened(tmp_path, catalog, INFO, INFO | {"torch": "2.8.1"})
    most, other = (each["conditions"] for each in api.get("/v1/workers").json()["data"])
    search = new_search(api, conditions=other)
    assert api.get(f"/v1/searches/{search}").json()["conditions"] == other
    assert put(api, search, 0).status_code == 201
    batch = api.post(f"/v1/searches/{search}/epochs/0/batch").json()
    assert batch["conditions"] == other != most
    body = {"environment": "count", "profile": "tiny", "strategy": "s", "epochs": 1}
    body |= {"batch_size": 1, "conditions": "cnd_none"}
    wrong = api.post("/v1/searches", json=body)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "unknown_conditions")
    assert wrong.json()["errors"][0]["pointer"] == "/conditions"


def test_what_is_equal_is_declared_with_evidence(tmp_path: Path, catalog: Catalog) -> None:
    api, _ = opened(tmp_path, catalog, INFO, INFO | {"torch": "2.8.1"})
    most, other = (each["conditions"] for each in api.get("/v1/workers").json()["data"])
    api.post("/v1/batches", json=batch("one"))
    body = {"profile": "tiny", "conditions": other, "equals": most}
    refused = api.post("/v1/environments/count/conditions", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "no_evidence")
    assert "assay env calibrate" in refused.json()["detail"]
    unknown = api.post("/v1/environments/count/conditions", json=body | {"equals": "cnd_none"})
    assert unknown.status_code == 404
    known = api.get("/v1/environments/count/conditions", params={"profile": "tiny"})
    assert known.json()["data"] == []


def test_a_declaration_is_shown_on_workers_and_can_be_taken_back(
    tmp_path: Path, catalog: Catalog
) -> None:
    api, world = opened(tmp_path, catalog, INFO, INFO | {"torch": "2.8.1"})
    most, other = (each["conditions"] for each in api.get("/v1/workers").json()["data"])
    with world.db.write() as session:
        now = world.db.now(session)
        states = {other: Equality.EQUAL}
        equivalences.add(session, world.environment, "tiny", most, states, now)
        where = (world.environment, "tiny", other)
        session.get_one(schema.Equivalence, where).declared_by = "me"
    declared = {each["name"]: each["declared"] for each in api.get("/v1/workers").json()["data"]}
    there = {"environment": world.environment, "profile": "tiny", "equals": most}
    assert declared == {"w": [], "w0": [there]}
    body = {"profile": "tiny", "conditions": other}
    path = "/v1/environments/count/conditions/separate"
    taken = api.post(path, json=body)
    assert (taken.status_code, taken.json()["equals"]) == (200, most), taken.text
    again = api.post(path, json=body)
    assert (again.status_code, again.json()["code"]) == (409, "not_declared")
    known = api.get("/v1/environments/count/conditions", params={"profile": "tiny"})
    assert known.json()["data"] == []


def test_controls_are_listed_though_nobody_submitted_them(
    tmp_path: Path, catalog: Catalog
) -> None:
    api, world = opened(tmp_path, catalog, INFO)
    profile = catalog.get("count").manifest.profiles["tiny"]
    with world.db.write() as session:
        codebase = get(session, schema.Environment, world.environment, "environment").codebase
        on = Conditions("cpu", ("cnd_new",))
        identity = Identity(codebase, world.environment, "tiny", 0, on, MeasurementKind.CONTROL)
        terms = Terms("assay", world.db.now(session), 100, needs_isolation=False)
        measurements.request(world.db, session, identity, profile, terms)
    listed = api.get("/v1/measurements").json()["data"]
    assert [(each["kind"], each["conditions"]) for each in listed] == [("control", "cnd_new")]


def test_a_worker_says_where_it_measures_apart(tmp_path: Path, catalog: Catalog) -> None:
    api, world = opened(tmp_path, catalog, INFO, INFO | {"driver": "2"})
    facts = host_facts("cpu", INFO | {"driver": "2"})
    with world.db.write() as session:
        states = {facts.narrow: Equality.DIFFERENT}
        equivalences.add(
            session, world.environment, "tiny", facts.wide, states, world.db.now(session)
        )
    apart = {each["name"]: each["apart"] for each in api.get("/v1/workers").json()["data"]}
    assert apart["w"] == []
    assert apart["w0"] == [
        {"environment": world.environment, "profile": "tiny", "state": "different"}
    ]
