"""The endpoint that gives experiments as flat records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from assay.domain.hashing import derive_seed
from assay.environments.catalog import Catalog
from tests.implementer.conftest import served
from tests.implementer.scored import Service, score
from tests.implementer.test_confirmations import better, confirm, result
from tests.storage.lifecycle import World

SHOWN = {"score": 10.123456}


def test_records_hold_what_the_experiments_do(service: Service) -> None:
    score(service, SHOWN, {"train_wall": 3.0})
    path = f"/v1/batches/{service.found['batch_id']}/trajectories"
    answer = service.api.get(path)
    assert answer.status_code == 200, answer.text
    scored, waiting = answer.json()["data"]
    shown = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()
    assert scored["experiment"] == shown["id"]
    assert scored["search"] == service.found["search_id"]
    assert (scored["epoch"], scored["position"], scored["kind"]) == (0, 0, "score")
    assert (scored["metric"], scored["reward"]) == (shown["metric"], shown["reward"])
    assert [seed["seed"] for seed in scored["seeds"]] == [0, 1]
    measured = service.api.get(f"/v1/measurements/{scored['seeds'][0]['measurement']}").json()
    assert scored["seeds"][0]["metric"] == measured["metric"] != SHOWN["score"]
    compared = shown["comparison"]
    assert (scored["verdict"], scored["p"]) == (compared["verdict"], compared["p"])
    assert (scored["effect_low"], scored["baseline_n"]) == (compared["low"], 3)
    assert "diff --git a/train.py b/train.py" in scored["diff"]
    assert scored["curve"] is None
    assert waiting["state"] == "submitted"
    assert [waiting[name] for name in ("metric", "verdict", "diff", "finished_at")] == [None] * 4
    assert waiting["seeds"] == []
    assert service.api.get(path, params={"curves": True}).json()["data"][0]["curve"] == []


def test_pages_give_every_record_once(service: Service) -> None:
    path = f"/v1/batches/{service.found['batch_id']}/trajectories"
    first = service.api.get(path, params={"limit": 1}).json()
    rest = service.api.get(path, params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert [e["experiment"] for e in first["data"] + rest["data"]] == service.experiments
    assert rest["next_cursor"] is None


def test_a_failure_says_who_is_to_blame(service: Service) -> None:
    measurements = service.implement(service.experiments[0], "a = 2\n")
    failure = {"stage": "train", "code": "crashed", "message": "ValueError: odd"}
    for measurement in measurements:
        service.finish(measurement, state="failed", failure=failure)
    path = f"/v1/batches/{service.found['batch_id']}/trajectories"
    record = service.api.get(path).json()["data"][0]
    said = [record[f"failure_{name}"] for name in ("stage", "code", "blame", "message")]
    assert said == ["train", "crashed", "idea", "ValueError: odd"]
    assert (record["reward"], record["metric"]) == (0.0, None)
    assert [seed["failure_code"] for seed in record["seeds"]] == ["crashed"] * 2


def test_another_owners_batch_is_not_found(service: Service) -> None:
    answer = service.api.get(f"/v1/batches/bat_{derive_seed(0, 'x')}/trajectories")
    assert answer.status_code == 404


@pytest.fixture
def api(world: World, catalog: Catalog) -> Iterator[TestClient]:
    with served(world, catalog) as client:
        yield client


def test_confirmations_are_given_on_request_alone(api: TestClient, world: World) -> None:
    idea = result(world)
    (confirming,) = confirm(api, world, idea, better)
    path = f"/v1/batches/{_batch(api, confirming)}/trajectories"
    refused = api.get(path)
    assert refused.status_code == 400
    assert "confirmations" in refused.json()["detail"]
    (record,) = api.get(path, params={"confirmations": True}).json()["data"]
    assert (record["kind"], record["confirms"]) == ("confirm", idea)
    assert record["claimed"] is True
    (original,) = api.get(f"/v1/batches/{_batch(api, idea)}/trajectories").json()["data"]
    assert original["claimed"] is None
    assert original["kind"] == "score"


def _batch(api: TestClient, experiment: str) -> str:
    return str(api.get(f"/v1/experiments/{experiment}").json()["batch"])
