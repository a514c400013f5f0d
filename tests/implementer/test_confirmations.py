"""What may be claimed: the first confirmation decides, on seeds that nobody chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.domain.states import AttemptState, MeasurementKind
from assay.environments.catalog import Catalog
from assay.storage import implementations, schema
from assay.storage.attempts import Outcome
from tests.implementer.conftest import served
from tests.storage.lifecycle import CRASH, World

Values = Callable[[int], float]


@pytest.fixture
def api(world: World, catalog: Catalog) -> Iterator[TestClient]:
    with served(world, catalog) as client:
        yield client


def baseline(seed: int) -> float:
    return 3.0 + 0.01 * (seed * 7 % 5)


def better(seed: int) -> float:
    return baseline(seed) + 0.5 + 0.002 * (seed % 3)


def worse(seed: int) -> float:
    return baseline(seed) - 0.5 + 0.002 * (seed % 3)


def scored(value: float) -> Outcome:
    """What a worker that knows the kind reports; `confirmed_score` decides confirmations."""
    return Outcome(
        AttemptState.SUCCEEDED,
        metric=value,
        metrics={"score": value, "confirmed_score": value},
        provenance={"scored_on": "sealed"},
        started=True,
        seconds=1.0,
    )


def measure_all(world: World, idea: Values) -> None:
    """Measure what is queued: of the baseline as it is, of others as `idea` says."""
    with world.db.read() as session:
        unmodified = session.get_one(schema.Environment, world.environment).codebase
        query = select(schema.Measurement).where(schema.Measurement.state == "queued")
        queued = [(row.id, row.seed, row.codebase_id) for row in session.scalars(query)]
    for id_, seed, codebase in queued:
        world.measure(id_, scored((baseline if codebase == unmodified else idea)(seed)))


def result(world: World, code: str = "a = 1\n") -> str:
    """An experiment that was better on three seeds."""
    (row,) = world.experiments(world.submit("an idea", seeds=[0, 1, 2], baseline_seeds=5))
    world.implement(row.id, code)
    measure_all(world, better)
    return row.id


def ask(api: TestClient, name: str, seeds: int = 3, *beside: str) -> list[str]:
    """Ask for a confirmation; the experiments that confirm."""
    body = {"seeds": seeds, "beside": list(beside)}
    answer = api.post(f"/v1/experiments/{name}/confirm", json=body)
    assert answer.status_code == 202, answer.text
    listed = api.get("/v1/experiments", params={"batch": answer.json()["id"]}).json()["data"]
    return [each["id"] for each in listed]


def take(world: World, name: str, **changes: Any) -> None:
    """Do what the implement loop does for an idea whose codebase is given."""
    with world.db.write() as session:
        work = implementations.begin(world.db, session, name)
        assert work is not None
        assert work.given is not None
        work = replace(work, **changes)
        implementations.succeed(world.db, session, work, None, work.given or "")


def confirm(
    api: TestClient, world: World, name: str, values: Values, seeds: int = 3, *beside: str
) -> list[str]:
    made = ask(api, name, seeds, *beside)
    for each in made:
        take(world, each)
    measure_all(world, values)
    return made


def read(api: TestClient, name: str) -> dict[str, Any]:
    body: dict[str, Any] = api.get(f"/v1/experiments/{name}").json()
    return body


def test_the_first_confirmation_decides(api: TestClient, world: World) -> None:
    first = result(world)
    (one,) = confirm(api, world, first, worse)
    assert read(api, first)["confirmation"]["claimed"] is False
    (two,) = confirm(api, world, first, better, 4)
    found = read(api, first)["confirmation"]
    assert (found["experiment"], found["claimed"], found["repeated"]) == (one, False, 1)
    later = read(api, two)
    assert (later["claimed"], later["comparison"]["verdict"]) == (False, "better")


def test_a_confirmation_against_another_base_is_a_first_one(api: TestClient, world: World) -> None:
    first, other = result(world), result(world, "a = 2\n")
    confirm(api, world, first, better, 3, other)
    body = {"seeds": 3, "base": other}
    answer = api.post(f"/v1/experiments/{first}/confirm", json=body)
    assert answer.status_code == 202, answer.text
    listed = api.get("/v1/experiments", params={"batch": answer.json()["id"]}).json()["data"]
    take(world, listed[0]["id"])
    measure_all(world, better)
    found = read(api, first)["confirmation"]
    assert (found["experiment"], found["repeated"]) == (listed[0]["id"], 0)
    assert found["base"]["name"] == other


def test_one_that_was_cancelled_counts_if_a_seed_of_it_was_seen(
    api: TestClient, world: World
) -> None:
    unseen, seen = result(world), result(world, "a = 2\n")
    (never,) = ask(api, unseen)
    api.post(f"/v1/experiments/{never}/cancel")
    confirm(api, world, unseen, better, 4)
    assert read(api, unseen)["confirmation"]["claimed"] is True
    (begun,) = ask(api, seen)
    take(world, begun)
    world.measure(world.measurements(begun)[0], scored(1.0))
    api.post(f"/v1/experiments/{begun}/cancel")
    confirm(api, world, seen, better, 4)
    assert read(api, seen)["confirmation"]["claimed"] is False


def test_seeds_of_a_confirmation_are_not_chosen(api: TestClient, world: World) -> None:
    first = result(world)
    idea = {"text": "an idea", "confirms": first}
    body = {
        "environment": "count", "profile": "tiny", "ideas": [idea],
        "options": {"seeds": [0, 1, 2], "novelty": "allow"},
    }  # fmt: skip
    refused = api.post("/v1/batches", json=body)
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["pointer"]) == (422, "/options/seeds")
    assert "/confirm chooses them" in error["message"]


def test_a_confirmation_is_not_confirmed(api: TestClient, world: World) -> None:
    first = result(world)
    (one,) = confirm(api, world, first, better)
    refused = api.post(f"/v1/experiments/{one}/confirm", json={"seeds": 3})
    assert refused.status_code == 422
    assert f"confirm {first} instead" in refused.text


def test_a_retry_does_not_leave_those_that_were_confirmed_with_it(
    api: TestClient, world: World
) -> None:
    ideas = [result(world, f"a = {n}\n") for n in range(8)]
    made = ask(api, ideas[0], 3, *ideas[1:])
    for each in made:
        take(world, each)
    for name in world.measurements(made[0]):
        world.measure(name, Outcome(AttemptState.FAILED, failure=CRASH, started=True))
    measure_all(world, baseline)
    again = api.post(f"/v1/experiments/{made[0]}/retry").json()["id"]
    take(world, again)
    measure_all(world, lambda seed: baseline(seed) + 0.035)
    found = read(api, again)
    p = found["comparison"]["p"]
    assert 0.05 / 8 < p < 0.05, "alone it might be claimed"
    assert found["claimed"] is False
    assert read(api, ideas[0])["confirmation"]["experiment"] == again


def test_results_of_another_kind_do_not_count(api: TestClient, world: World) -> None:
    """A process of the version before asks for scores where a confirmation is wanted."""
    first = result(world)
    (one,) = ask(api, first)
    take(world, one, kind=MeasurementKind.SCORE)
    measure_all(world, better)
    found = read(api, one)
    assert (found["metric"], found["comparison"], found["claimed"]) == (None, None, False)
