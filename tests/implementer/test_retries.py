"""What failed is measured again: when it is asked for, and when the failure says too little."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.domain.failure_codes import Failure
from assay.domain.states import AttemptState, FailureStage
from assay.environments.catalog import Catalog
from assay.storage import implementations, retries, schema
from assay.storage.attempts import Outcome
from tests.implementer.conftest import served
from tests.storage.lifecycle import CRASH, World

CRASHED = Outcome(AttemptState.FAILED, CRASH, started=True)
CODE = "a = 1\n"


@pytest.fixture
def api(world: World, catalog: Catalog) -> Iterator[TestClient]:
    with served(world, catalog) as client:
        yield client


def ended(code: str, stage: FailureStage = FailureStage.TRAIN) -> Outcome:
    return Outcome(AttemptState.FAILED, Failure(stage, code, "it ended"), started=True)


def experiment(world: World, **options: Any) -> str:
    """An experiment on one codebase."""
    (row,) = world.experiments(world.submit("an idea", **options))
    world.implement(row.id, CODE)
    return row.id


def failed(world: World, outcome: Outcome = CRASHED, **options: Any) -> tuple[str, str]:
    """An experiment that failed, and its measurement."""
    made = experiment(world, **options)
    (measurement,) = world.measurements(made)
    world.measure(measurement, outcome)
    return made, measurement


def take_codebase(world: World, name: str) -> list[str]:
    """Do what the implement loop does for an idea whose codebase is given; its measurements."""
    with world.db.write() as session:
        work = implementations.begin(world.db, session, name)
        assert work is not None
        assert work.given is not None
        implementations.succeed(world.db, session, work, None, work.given)
    return world.measurements(name)


def retry(api: TestClient, kind: str, name: str, status: int = 202) -> dict[str, Any]:
    answer = api.post(f"/v1/{kind}/{name}/retry")
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def read(api: TestClient, name: str) -> dict[str, Any]:
    body: dict[str, Any] = api.get(f"/v1/experiments/{name}").json()
    return body


# -- experiments ----------------------------------------------------------------------------------


def test_a_failed_experiment_is_measured_again_and_stays_failed(
    api: TestClient, world: World
) -> None:
    first, measurement = failed(world)
    made = retry(api, "experiments", first)
    assert (made["state"], made["idea"]["retries"]) == ("submitted", first)
    (again,) = take_codebase(world, made["id"])
    assert again != measurement
    assert world.experiments(made["batch"])[0].state == "queued"
    world.measure(again)
    now = read(api, made["id"])
    assert (now["state"], now["codebase"]) == ("succeeded", read(api, first)["codebase"])
    old = read(api, first)
    assert (old["state"], old["failure"], old["measurements"]) == (
        "failed", CRASH.as_dict(), [measurement],
    )  # fmt: skip
    assert old["retried_as"] == [made["id"]]
    assert api.get(f"/v1/measurements/{measurement}").json()["state"] == "failed"
    kinds = [e["type"] for e in api.get(f"/v1/batches/{made['batch']}/events").json()["data"]]
    assert kinds[-1] == "batch.finished"


def test_asked_twice_it_is_retried_once(api: TestClient, world: World) -> None:
    first, _ = failed(world)
    made = retry(api, "experiments", first)["id"]
    assert retry(api, "experiments", first, 200)["id"] == made
    (again,) = take_codebase(world, made)
    world.measure(again)
    assert retry(api, "experiments", first, 200)["id"] == made, "it succeeded: nothing is left"
    with world.db.read() as session:
        assert len(session.scalars(select(schema.Experiment)).all()) == 2


def test_asked_at_once_by_several_it_is_retried_once(world: World) -> None:
    first, _ = failed(world)

    def ask(_: int) -> str:
        with world.db.write() as session:
            return retries.experiment(world.db, session, first).id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_after_a_retry_that_came_to_nothing_there_is_another(
    api: TestClient, world: World, how: str
) -> None:
    first, _ = failed(world)
    made = retry(api, "experiments", first)["id"]
    if how == "failed":
        world.measure(take_codebase(world, made)[0], CRASHED)
    else:
        api.post(f"/v1/experiments/{made}/cancel")
    assert read(api, made)["state"] == how
    third = retry(api, "experiments", first)["id"]
    assert read(api, first)["retried_as"] == [made, third]


def test_results_of_other_seeds_are_shared(api: TestClient, world: World) -> None:
    name = experiment(world, seeds=[0, 1])
    scored, crashed = world.measurements(name)
    world.measure(scored)
    world.measure(crashed, CRASHED)
    assert read(api, name)["state"] == "failed"
    made = retry(api, "experiments", name)["id"]
    same, again = take_codebase(world, made)
    assert (same, again != crashed) == (scored, True)
    world.measure(again)
    assert read(api, made)["state"] == "succeeded"


def test_what_has_not_failed_is_not_retried(api: TestClient, world: World) -> None:
    name = experiment(world)
    assert retry(api, "experiments", name, 409)["code"] == "not_finished"
    (measurement,) = world.measurements(name)
    assert retry(api, "measurements", measurement, 409)["code"] == "not_finished"
    world.measure(measurement)
    assert retry(api, "experiments", name, 409)["code"] == "nothing_failed"
    assert retry(api, "measurements", measurement, 409)["code"] == "nothing_failed"
    (cancelled,) = world.experiments(world.submit("another"))
    api.post(f"/v1/experiments/{cancelled.id}/cancel")
    assert retry(api, "experiments", cancelled.id, 409)["code"] == "was_cancelled"
    assert retry(api, "experiments", "exp_none", 404)["code"] == "not_found"


def test_an_idea_that_became_no_code_has_nothing_to_measure(api: TestClient, world: World) -> None:
    (row,) = world.experiments(world.submit("no edit"))
    with world.db.write() as session:
        work = implementations.begin(world.db, session, row.id)
        assert work is not None
        wrong = Failure(FailureStage.IMPLEMENT, "no_diff", "no edit")
        implementations.fail(world.db, session, work, wrong)
    assert retry(api, "experiments", row.id, 409)["code"] == "nothing_to_measure"


# -- measurements ---------------------------------------------------------------------------------


def test_a_measurement_is_made_again_and_shared_from_then_on(
    api: TestClient, world: World
) -> None:
    first, measurement = failed(world)
    made = retry(api, "measurements", measurement)
    assert (made["state"], made["replicate"], made["seed"]) == ("queued", 1, 0)
    assert retry(api, "measurements", measurement, 200)["id"] == made["id"]
    world.measure(made["id"])
    assert retry(api, "measurements", measurement, 200)["id"] == made["id"]
    assert read(api, first)["state"] == "failed"
    later = experiment(world)
    assert world.measurements(later) == [made["id"]]
    assert read(api, later)["state"] == "succeeded"


def test_a_seed_of_the_baseline_is_measured_again(api: TestClient, world: World) -> None:
    path = "/v1/environments/count/baseline"
    api.post(path, json={"profile": "tiny", "seeds": [0]})
    with world.db.read() as session:
        seed = session.scalars(select(schema.Measurement.id)).one()
    world.measure(seed, CRASHED)
    made = retry(api, "measurements", seed)["id"]
    body = api.get(path, params={"profile": "tiny"}).json()
    assert (body["pending_seeds"], body["failed"]) == ([0], 0)
    world.measure(made)
    assert api.get(path, params={"profile": "tiny"}).json()["seeds"] == [0]


def test_an_attempt_says_with_which_software_it_ran(api: TestClient, world: World) -> None:
    _, measurement = failed(world)
    (attempt,) = api.get(f"/v1/measurements/{measurement}").json()["attempts"]
    assert attempt["software"] == {"assay": "", "sandbox": "subprocess", "isolated": False}


# -- failures that are shared, and that are not ---------------------------------------------------


def test_a_failure_is_shared_with_a_later_batch(world: World) -> None:
    _, measurement = failed(world)
    assert world.measurements(experiment(world)) == [measurement]


@pytest.mark.parametrize(
    "changes",
    [{"version": "9.9"}, {"sandbox": "bubblewrap"}, {"info": {"torch": "3.0"}}],
    ids=["version", "sandbox", "torch"],
)
def test_a_failure_is_not_shared_once_the_workers_have_changed(
    world: World, changes: dict[str, Any]
) -> None:
    _, measurement = failed(world)
    world.restart("two", **changes)
    (again,) = world.measurements(experiment(world))
    assert again != measurement
    world.measure(again, CRASHED)
    assert world.measurements(experiment(world)) == [again], "now it says what is"


def test_a_failure_is_shared_while_one_worker_is_as_it_was(world: World) -> None:
    _, measurement = failed(world)
    world.another("newer", version="9.9")
    assert world.measurements(experiment(world)) == [measurement]


def test_a_failure_for_which_the_host_may_be_to_blame_is_not_shared(world: World) -> None:
    _, measurement = failed(world, ended("infrastructure"))
    assert world.measurements(experiment(world)) != [measurement]


def test_a_batch_may_ask_for_failures_again(world: World) -> None:
    _, measurement = failed(world)
    first, second = world.experiments(world.submit("one", "two", again=True))
    again = world.implement(first.id, CODE)
    assert again != measurement
    world.measure(again, CRASHED)
    assert world.implement(second.id, CODE) == again, "the same batch does not ask twice"
    assert world.measurements(experiment(world)) == [again]


def test_a_batch_that_asks_again_shares_results(world: World) -> None:
    name = experiment(world)
    (measurement,) = world.measurements(name)
    world.measure(measurement)
    assert world.measurements(experiment(world, again=True)) == [measurement]


# -- pages ----------------------------------------------------------------------------------------


def test_the_pages_of_a_failure_and_its_retry_lead_to_each_other(
    api: TestClient, world: World
) -> None:
    first, _ = failed(world)
    offer = f'action="/experiments/{first}/retry"'
    assert offer in api.get(f"/experiments/{first}").text
    made = retry(api, "experiments", first)["id"]
    page = api.get(f"/experiments/{first}").text
    assert re.search(rf'Retried as <a href="/experiments/{made}">.*?</a> .*?>submitted<', page)
    assert offer not in page, "asking again would give the same one"
    again = api.get(f"/experiments/{made}").text
    assert f'<dt>Retries</dt><dd><a href="/experiments/{first}">' in again
    assert "Builds on" not in again
    assert "with parents" not in again
    (measurement,) = take_codebase(world, made)
    world.measure(measurement, CRASHED)
    page = api.get(f"/experiments/{first}").text
    assert re.search(rf'Retried as <a href="/experiments/{made}">.*?</a> .*?>failed<', page)
    assert offer in page, "the next retry would be another one"
