"""A result is measured again from its record, and compared with what was measured before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.domain.conditions import OWN_OWNER, Conditions
from assay.domain.failure_codes import Failure
from assay.domain.states import AttemptState, FailureStage, MeasurementKind
from assay.environments.catalog import Catalog
from assay.storage import (
    conditions,
    equivalences,
    fits,
    implementations,
    measurements,
    reproductions,
    schema,
)
from assay.storage.attempts import Outcome
from assay.storage.equivalences import Equality
from assay.storage.measurements import Identity, Terms
from tests.implementer.conftest import served
from tests.storage.lifecycle import CRASH, World

CODE = "a = 1\n"
SEEDS = [0, 1, 2]
VALUES = {0: 3.101234567, 1: 3.121234567, 2: 3.111234567}
Values = Mapping[int, float]


@pytest.fixture
def api(world: World, catalog: Catalog) -> Iterator[TestClient]:
    with served(world, catalog) as client:
        yield client


def scored(value: float) -> Outcome:
    return Outcome(
        AttemptState.SUCCEEDED, metric=value, metrics={"score": value}, started=True, seconds=1.0
    )


def measure(world: World, experiment: str, values: Values) -> None:
    """Give the measurements of an experiment these results, by seed."""
    for name in world.measurements(experiment):
        with world.db.read() as session:
            row = session.get_one(schema.Measurement, name)
        if row.state == "queued" and row.seed in values:
            world.measure(name, scored(values[row.seed]))


def succeeded(world: World, code: str = CODE, **options: Any) -> str:
    """An experiment with a result on three seeds."""
    (row,) = world.experiments(world.submit("an idea", **{"seeds": SEEDS, **options}))
    world.implement(row.id, code)
    measure(world, row.id, VALUES)
    return row.id


def reproduce(api: TestClient, name: str, status: int = 202, **query: Any) -> dict[str, Any]:
    answer = api.post(f"/v1/experiments/{name}/reproduce", params=query)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def read(api: TestClient, name: str) -> dict[str, Any]:
    body: dict[str, Any] = api.get(f"/v1/experiments/{name}").json()
    return body


def take_codebase(world: World, name: str) -> list[str]:
    """Do what the implement loop does for an idea whose codebase is given; its measurements."""
    with world.db.write() as session:
        work = implementations.begin(world.db, session, name)
        assert work is not None
        assert work.given is not None
        implementations.succeed(world.db, session, work, None, work.given)
    return world.measurements(name)


def again(api: TestClient, world: World, name: str, values: Values) -> dict[str, Any]:
    """Reproduce an experiment with these results; what the API says of the reproduction."""
    made: str = reproduce(api, name)["id"]
    take_codebase(world, made)
    measure(world, made, values)
    return read(api, made)


def test_equal_results_agree_to_the_digit(api: TestClient, world: World) -> None:
    first = succeeded(world)
    made = again(api, world, first, VALUES)
    assert (made["state"], made["idea"]["reproduces"]) == ("succeeded", first)
    found = made["agreement"]
    assert (found["agreement"], found["agrees"], found["experiment"]) == (
        "to the digit", True, first,
    )  # fmt: skip
    assert found["seeds"][1] == {
        "seed": 1, "before": 3.121, "again": 3.121, "equal": True, "failure": None,
    }  # fmt: skip
    assert read(api, first)["reproduced_as"] == [made["id"]]
    assert read(api, first)["agreement"] is None


def test_what_is_measured_is_what_the_record_says(api: TestClient, world: World) -> None:
    first = succeeded(world)
    made = reproduce(api, first)
    assert made["agreement"] is None, "it has not ended"
    take_codebase(world, made["id"])
    before, now = (
        api.get("/v1/measurements", params={"experiment": name}).json()["data"]
        for name in (first, made["id"])
    )
    same = ("codebase", "environment", "profile", "hardware_class", "conditions", "seed")
    assert [[each[key] for key in same] for each in now] == [
        [each[key] for key in same] for each in before
    ]
    assert {each["kind"] for each in now} == {"control"}
    assert not {each["id"] for each in now} & {each["id"] for each in before}


def test_a_digit_that_differs_is_told_though_it_is_not_shown(
    api: TestClient, world: World
) -> None:
    first = succeeded(world)
    found = again(api, world, first, VALUES | {2: VALUES[2] + 1e-9})["agreement"]
    assert (found["agreement"], found["agrees"]) == ("within noise", True)
    assert [seed["equal"] for seed in found["seeds"]] == [True, True, False]
    assert (found["seeds"][2]["before"], found["seeds"][2]["again"]) == (3.111, 3.111)
    assert found["difference"] == 0.0, "it is computed from what is shown"


def test_results_far_apart_disagree(api: TestClient, world: World) -> None:
    first = succeeded(world)
    far = {seed: value + 1 for seed, value in VALUES.items()}
    found = again(api, world, first, far)["agreement"]
    assert (found["agreement"], found["agrees"], found["difference"]) == ("disagrees", False, 1.0)
    assert found["p"] < 0.01


def test_a_failure_of_the_code_disagrees_and_one_of_the_host_decides_nothing(
    api: TestClient, world: World
) -> None:
    first = succeeded(world)
    outcomes = {
        "crashed": CRASH,
        "quarantined": Failure(FailureStage.START, "quarantined", "not the code"),
    }
    found = {}
    for code, failure in outcomes.items():
        made = reproduce(api, first)["id"]
        *others, last = take_codebase(world, made)
        for name, seed in zip(others, SEEDS, strict=False):
            world.measure(name, scored(VALUES[seed]))
        world.measure(last, Outcome(AttemptState.FAILED, failure, started=True))
        body = read(api, made)
        assert body["state"] == "failed"
        assert body["agreement"]["seeds"][2]["failure"] == code
        found[code] = (body["agreement"]["agreement"], body["agreement"]["agrees"])
    assert found == {"crashed": ("disagrees", False), "quarantined": ("undecided", None)}


def test_asked_again_while_it_waits_or_runs_it_is_the_same_one(
    api: TestClient, world: World
) -> None:
    first = succeeded(world)
    made = reproduce(api, first)["id"]
    assert reproduce(api, first, 200)["id"] == made
    found = take_codebase(world, made)
    assert reproduce(api, first, 200)["id"] == made
    measure(world, made, VALUES)
    other = reproduce(api, first)["id"]
    assert other != made, "what has ended is no answer to a new question"
    assert not set(take_codebase(world, other)) & set(found), "nothing is shared"
    assert read(api, first)["reproduced_as"] == [made, other]


def test_asked_at_once_by_several_it_is_reproduced_once(world: World) -> None:
    first = succeeded(world)

    def ask(_: int) -> str:
        with world.db.write() as session:
            return reproductions.request(world.db, session, first).id

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


def test_two_experiments_with_the_same_codebase_are_reproduced_apart(
    api: TestClient, world: World
) -> None:
    names = [succeeded(world), succeeded(world)]
    assert world.measurements(names[0]) == world.measurements(names[1]), "their results are shared"
    made = [reproduce(api, name)["id"] for name in names]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda name: take_codebase(world, name), made))
    assert not set(found[0]) & set(found[1])


def test_what_has_no_result_is_not_reproduced(api: TestClient, world: World) -> None:
    (row,) = world.experiments(world.submit("an idea"))
    assert reproduce(api, row.id, 409)["code"] == "not_finished"
    world.implement(row.id, CODE)
    world.measure(world.measurements(row.id)[0], Outcome(AttemptState.FAILED, CRASH, started=True))
    assert reproduce(api, row.id, 404)["code"] == "no_result"
    made = again(api, world, succeeded(world, "b = 2\n"), VALUES)["id"]
    refused = reproduce(api, made, 409)
    assert refused["code"] == "not_reproducible"
    assert read(api, made)["idea"]["reproduces"] in refused["detail"]
    assert reproduce(api, "exp_none", 404)["code"] == "not_found"


# -- where it counts, and where it does not -------------------------------------------------------


def test_it_enters_no_baseline_fit_report_novelty_or_later_experiment(
    api: TestClient, world: World
) -> None:
    with world.db.read() as session:
        environment = session.get_one(schema.Environment, world.environment)
    same = succeeded(world, baseline_seeds=0)
    report = api.get("/v1/reports/execution").json()
    made = again(api, world, same, {seed: value + 5 for seed, value in VALUES.items()})
    assert api.get("/v1/reports/execution").json() == report
    assert made["comparison"] is None
    with world.db.read() as session:
        scores = measurements.baseline_scores(session, environment, "tiny", Conditions("cpu"))
        assert not scores
    (later,) = world.experiments(world.submit("another", seeds=SEEDS))
    world.implement(later.id, CODE)
    assert world.measurements(later.id) == world.measurements(same)
    batch = api.post("/v1/batches", json={
        "environment": "count", "profile": "tiny", "ideas": [{"text": "an idea"}],
        "options": {"novelty": "warn", "baseline_seeds": 0},
    }).json()["id"]  # fmt: skip
    (body,) = api.get("/v1/experiments", params={"batch": batch}).json()["data"]
    assert {each["experiment"] for each in body["idea"]["similar"]} == {same}


def test_a_fit_does_not_see_it(world: World, api: TestClient) -> None:
    with world.db.write() as session:
        environment = session.get_one(schema.Environment, world.environment)
        codebase = environment.codebase
    for seed, value in enumerate([1.0, 1.1, 1.2]):
        with world.db.write() as session:
            identity = Identity(codebase, environment.id, "tiny", seed, Conditions("cpu"))
            terms = Terms("local", world.db.now(session), needs_isolation=False)
            name = measurements.request(world.db, session, identity, world.profile(session), terms)
        world.measure(name, scored(value))
    for number in range(8):
        name = succeeded(world, f"a = {number}\n", seeds=[0])
        again(api, world, name, {0: 9.0})
    with world.db.write() as session, pytest.raises(Exception, match="there are 0"):
        fits.refit(world.db, session, environment, "tiny", Conditions("cpu"), "local")


def test_its_gpu_hours_count_against_caps(api: TestClient, world: World) -> None:
    first = succeeded(world, max_gpu_hours=1)
    made = reproduce(api, first)
    names = take_codebase(world, made["id"])
    with world.db.write() as session:
        for name in names:
            row = session.get_one(schema.Measurement, name)
            row.gpus, row.budget_seconds = 1, 600.0
    batch = api.get(f"/v1/batches/{made['batch']}").json()
    used = {cap["kind"]: cap["used"] for cap in batch["caps"] if cap["scope"] == "batch"}
    assert float(used["gpu_hours"]) == pytest.approx(0.5)


def test_it_is_listed_for_its_owner_alone(api: TestClient, world: World) -> None:
    made = again(api, world, succeeded(world), VALUES)
    with world.db.write() as session:
        for name in made["measurements"]:
            session.get_one(schema.Measurement, name).owner = "somebody else"
    listed = {each["id"] for each in api.get("/v1/measurements").json()["data"]}
    assert not listed & set(made["measurements"])


# -- conditions -----------------------------------------------------------------------------------

OLD, NEW = {"torch": "2.8.0", "numpy": "2.2"}, {"torch": "2.9.1", "numpy": "2.2"}


def on_torch(world: World, **more: Any) -> Conditions:
    """Let the worker tell its facts; the conditions that it measures under."""
    world.restart("told", info=OLD, **more)
    with world.db.write() as session:
        conditions.store_live(world.db, session, ())
        facts = conditions.facts_of(session.get_one(schema.Worker, world.worker))
    return Conditions("cpu", (facts.wide,))


def test_it_says_which_fact_differs_instead_of_waiting_for_ever(
    api: TestClient, world: World
) -> None:
    first = succeeded(world, on=on_torch(world))
    world.restart("upgraded", info=NEW)
    refused = reproduce(api, first, 409)
    assert refused["code"] == "conditions_not_offered"
    assert "torch: 2.8 and 2.9" in refused["detail"]
    assert read(api, first)["reproduced_as"] == []
    made = reproduce(api, first, queue=True)
    take_codebase(world, made["id"])
    (waits,) = api.get(f"/v1/batches/{made['batch']}").json()["waits_for"]
    assert "torch: 2.8 and 2.9" in waits
    assert reproduce(api, first, 200)["id"] == made["id"], "it waits for a worker that fits"


def test_hosts_that_have_the_conditions_again_reproduce(api: TestClient, world: World) -> None:
    on = on_torch(world)
    first = succeeded(world, on=on)
    world.another("newer", info=NEW)
    made = reproduce(api, first)
    take_codebase(world, made["id"])
    with world.db.read() as session:
        ids = set(session.scalars(select(schema.Measurement.conditions_id)).all())
    assert ids == {on.id}


# -- host controls --------------------------------------------------------------------------------


def pending_host(world: World, on: Conditions) -> schema.Equivalence:
    """A host that has to show by controls that it measures as others do."""
    with world.db.write() as session:
        facts = conditions.facts_of(session.get_one(schema.Worker, world.worker))
        row = schema.Equivalence(
            environment_id=world.environment,
            profile="tiny",
            conditions_id=facts.narrow,
            equals_id=on.id,
            state=Equality.PENDING.value,
            created_at=world.db.now(session),
        )
        session.add(row)
    return row


def test_a_reproduction_of_the_unmodified_codebase_is_no_control_of_a_host(
    api: TestClient, world: World
) -> None:
    on = on_torch(world)
    host = pending_host(world, on)
    own = Conditions("cpu", (host.conditions_id,))
    with world.db.read() as session:
        environment = session.get_one(schema.Environment, world.environment)
    (row,) = world.experiments(world.submit("change nothing", seeds=SEEDS, on=own))
    with world.db.write() as session:
        work = implementations.begin(world.db, session, row.id)
        assert work is not None
        implementations.succeed(world.db, session, work, 0, environment.codebase)
    measure(world, row.id, VALUES)
    for _ in range(7):
        again(api, world, row.id, VALUES)
    with world.db.write() as session:
        assert equivalences.controls(session, host) == {}
        assert not equivalences.have_ended(session, host)
        of_hosts = equivalences.values_of_unmodified(
            session, environment, "tiny", own.ids, MeasurementKind.CONTROL
        )
        assert of_hosts == {}
        identity = Identity(
            environment.codebase, environment.id, "tiny", 0, own, MeasurementKind.CONTROL
        )
        terms = Terms(OWN_OWNER, world.db.now(session), 1, needs_isolation=False)
        asked = measurements.request(world.db, session, identity, world.profile(session), terms)
        assert session.get_one(schema.Measurement, asked).state == "queued"
        assert list(equivalences.controls(session, host)) == [0]
    failure = Failure(FailureStage.START, "quarantined", "not the code")
    world.measure(asked, Outcome(AttemptState.FAILED, failure, started=True))
    with world.db.read() as session:
        assert equivalences.to_repeat(session, host) == [0], "it was tried once, not eight times"


def test_a_cancelled_reproduction_of_the_unmodified_codebase_is_not_measured(
    api: TestClient, world: World
) -> None:
    with world.db.read() as session:
        codebase = session.get_one(schema.Environment, world.environment).codebase
    (row,) = world.experiments(world.submit("change nothing", seeds=SEEDS))
    with world.db.write() as session:
        work = implementations.begin(world.db, session, row.id)
        assert work is not None
        implementations.succeed(world.db, session, work, 0, codebase)
    measure(world, row.id, VALUES)
    made = reproduce(api, row.id)["id"]
    names = take_codebase(world, made)
    api.post(f"/v1/experiments/{made}/cancel")
    assert [world.state(name) for name in names] == ["cancelled"] * 3


def test_a_reproduction_that_failed_is_not_retried(api: TestClient, world: World) -> None:
    """A retry would share the first result and count as an idea."""
    first = succeeded(world)
    made = reproduce(api, first)["id"]
    for name in take_codebase(world, made):
        world.measure(name, Outcome(AttemptState.FAILED, failure=CRASH, started=True))
    refused = api.post(f"/v1/experiments/{made}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "nothing_to_measure")
    assert f"{first} again" in refused.json()["detail"]
