"""What the API says of a result beside the baseline: each verdict, and the fit behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from assay.domain.verdicts import DEFAULT_PRIOR, FEWEST_CODEBASES
from assay.environments.catalog import Catalog
from assay.storage import schema
from tests.implementer.scored import SEEDS, Service, open_service
from tests.support.environment import MANIFEST, write_environment

BASELINE = (10.0, 10.5, 11.0)


def measure_baseline(service: Service, values: tuple[float, ...] = BASELINE) -> None:
    """Give the baseline its first results."""
    with service.context.db.read() as session:
        table = schema.Measurement
        ids = session.scalars(select(table.id).order_by(table.seed)).all()
    for seed, (measurement, value) in enumerate(zip(ids, values, strict=False)):
        finish(service, measurement, value, artifact=f"baseline {seed}")


def finish(service: Service, measurement: str, score: float, artifact: str = "own") -> None:
    service.finish(
        measurement,
        state="succeeded",
        metrics={"score": score},
        provenance={"isolated": True, "artifact": artifact},
    )


def measure_idea(service: Service, *scores: float, artifacts: tuple[str, ...] = ()) -> Any:
    """Give the first idea a result on each seed; its comparison."""
    ids = service.implement(service.experiments[0], "a = 1\n")
    for seed, (measurement, score) in enumerate(zip(ids, scores, strict=True)):
        finish(service, measurement, score, artifacts[seed] if artifacts else "own")
    return comparison(service)


def comparison(service: Service, number: int = 0) -> Any:
    return service.api.get(f"/v1/experiments/{service.experiments[number]}").json()["comparison"]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [((99.0, 99.5), "better"), ((1.0, 1.5), "worse"), ((10.3, 10.8), "undecided")],
)
def test_a_result_is_judged_beside_the_baseline(
    service: Service, scores: tuple[float, float], verdict: str
) -> None:
    measure_baseline(service)
    found = measure_idea(service, *scores)
    assert found["verdict"] == verdict
    assert (found["low"] > 0, found["high"] < 0) == (verdict == "better", verdict == "worse")
    assert (found["prior"], found["exploratory"]) == (None, False)


def test_results_on_other_data_are_not_comparable(service: Service) -> None:
    measure_baseline(service)
    with service.context.db.write() as session:
        for result in session.scalars(select(schema.Result)):
            result.provenance = result.provenance | {"held_out": "a" * 64}
    ids = service.implement(service.experiments[0], "a = 1\n")
    for measurement in ids:
        service.finish(
            measurement,
            state="succeeded",
            metrics={"score": 99.0},
            provenance={"isolated": True, "held_out": "b" * 64},
        )
    found = comparison(service)
    assert found["verdict"] == "not comparable"
    assert found["mismatch"] == ["held-out data: aaaaaaaaaaaa and bbbbbbbbbbbb"]
    assert found["p"] is found["low"] is None


def test_two_experiments_are_compared_with_one_another(service: Service) -> None:
    first, second = service.experiments
    path, sides = "/v1/comparison", {"a": first, "b": second}
    refused = service.api.get(path, params=sides)
    assert (refused.status_code, refused.json()["code"]) == (404, "no_result")
    measure_baseline(service)
    measure_idea(service, 50.0, 50.5)
    for measurement, score in zip(service.implement(second, "b = 1\n"), (10, 10.5), strict=True):
        finish(service, measurement, score)
    found = service.api.get(path, params=sides).json()
    named = (found["a"]["experiment"], found["b"]["experiment"], found["profile"])
    assert named == (first, second, "tiny")
    assert (found["seeds"], found["direction"]) == ([0, 1], "maximize")
    assert found["comparison"]["effect"] == pytest.approx(40)
    assert (found["comparison"]["n"], found["comparison"]["baseline_n"]) == (2, 2)
    assert found["comparison"]["verdict"] == "better"
    reverse = service.api.get(path, params={"a": second, "b": first})
    assert reverse.json()["comparison"]["effect"] == pytest.approx(-40)
    with service.context.db.write() as session:
        for batch in session.scalars(select(schema.Batch)):
            other = schema.Batch(
                **{c.key: getattr(batch, c.key) for c in schema.Batch.__table__.columns}
                | {"id": "bat_other", "conditions_id": "cnd_other"}
            )
        session.add(other)
        session.flush()
        session.get_one(schema.Experiment, second).batch_id = other.id
    apart = service.api.get(path, params=sides).json()["comparison"]
    assert apart["verdict"] == "not comparable"
    assert apart["mismatch"]


def test_a_verdict_is_provisional_until_the_baseline_is_whole(service: Service) -> None:
    measure_baseline(service, BASELINE[:2])
    found = measure_idea(service, 99.0, 99.5)
    assert (found["verdict"], found["baseline_n"]) == ("provisional", 2)
    assert found["p"] is not None


@pytest.mark.parametrize(
    ("artifacts", "scores", "verdict"),
    [
        (("baseline 0", "baseline 1"), (10.0, 10.5), "identical"),
        (("baseline 0", "own"), (10.0, 10.5), "undecided"),
        (("baseline 1", "baseline 0"), (10.5, 10.0), "undecided"),
        # The same weights, and a predictor that makes something else of them.
        (("baseline 0", "baseline 1"), (10.0, 10.4), "undecided"),
    ],
)
def test_identical_takes_the_same_artifact_and_result_on_every_seed(
    service: Service, artifacts: tuple[str, ...], scores: tuple[float, ...], verdict: str
) -> None:
    measure_baseline(service)
    found = measure_idea(service, *scores, artifacts=artifacts)
    assert found["verdict"] == verdict
    if verdict == "identical":
        assert (found["effect"], found["p"], found["sigmas"]) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("seeds", "exploratory"), [([0, 1, 2], True), ([0, 1], False), ([5, 6], False)]
)
def test_seeds_added_after_a_look_make_a_verdict_exploratory(
    service: Service, seeds: list[int], exploratory: bool
) -> None:
    measure_baseline(service)
    assert measure_idea(service, 12.0, 12.1)["exploratory"] is False
    body = {
        "environment": "count", "profile": "tiny", "ideas": [{"text": "Again."}],
        "options": {"seeds": seeds, "baseline_seeds": len(BASELINE)},
    }  # fmt: skip
    batch = service.api.post("/v1/batches", json=body).json()["id"]
    (made,) = service.api.get("/v1/experiments", params={"batch": batch}).json()["data"]
    shared = set(service.measurements(service.experiments[0]))
    for measurement in service.implement(made["id"], "a = 1\n"):
        if measurement not in shared:
            finish(service, measurement, 12.2)
    read = service.api.get(f"/v1/experiments/{made['id']}").json()
    assert (read["state"], read["comparison"]["n"]) == ("succeeded", len(seeds))
    assert read["comparison"]["exploratory"] is exploratory


def submit(service: Service, ideas: int) -> list[str]:
    body = {
        "environment": "count", "profile": "tiny",
        "ideas": [{"text": f"Number {n}."} for n in range(ideas)],
        "options": {"seeds": SEEDS, "baseline_seeds": len(BASELINE)},
    }  # fmt: skip
    batch = service.api.post("/v1/batches", json=body).json()["id"]
    listed = service.api.get("/v1/experiments", params={"batch": batch}).json()["data"]
    return [str(e["id"]) for e in listed]


def test_a_refit_changes_verdicts_and_nothing_else_does(service: Service) -> None:
    fit = {"profile": "tiny"}
    measure_baseline(service)
    before = measure_idea(service, 11.9, 12.6)
    default = service.api.get("/v1/environments/count/fit", params=fit).json()
    assert (default["id"], default["number"], default["df"]) == (None, 0, DEFAULT_PRIOR.df)
    refused = service.api.post("/v1/environments/count/fit", json=fit)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_few_codebases")

    for n, experiment in enumerate(submit(service, FEWEST_CODEBASES)):
        for seed, measurement in enumerate(service.implement(experiment, f"b = {n}\n")):
            finish(service, measurement, 5.0 + n + 4.0 * seed)
    assert comparison(service) == before

    made = service.api.post("/v1/environments/count/fit", json=fit)
    assert made.status_code == 201
    assert (made.json()["number"], made.json()["codebases"]) == (1, FEWEST_CODEBASES + 1)
    assert service.api.get("/v1/environments/count/fit", params=fit).json() == made.json()
    after = comparison(service)
    assert after["prior"] == made.json()["id"]
    assert after["standard_error"] > before["standard_error"], "these codebases vary a lot"
    again = service.api.post("/v1/environments/count/fit", json=fit).json()
    assert again["number"] == 2
    same = {"id", "number", "created_at"}
    assert {k: v for k, v in again.items() if k not in same} == {
        k: v for k, v in made.json().items() if k not in same
    }


def test_a_fit_needs_a_baseline_with_a_spread(service: Service) -> None:
    measure_baseline(service, (10.0,))
    refused = service.api.post("/v1/environments/count/fit", json={"profile": "tiny"})
    assert (refused.status_code, refused.json()["code"]) == (409, "no_baseline")
    assert "assay env calibrate count --profile tiny" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("number", "changes", "said"),
    [
        (1, {}, "is submitted"),
        (0, {"executor": "offline:other"}, "name the same ones"),
        (0, {"ideator": "openai:gpt-5"}, "name the same ones"),
        (None, {}, "no such experiment"),
    ],
)
def test_what_cannot_be_confirmed_is_refused(
    service: Service, number: int | None, changes: dict[str, Any], said: str
) -> None:
    measure_baseline(service)
    measure_idea(service, 12.0, 12.1)
    named = "exp_x" if number is None else service.experiments[number]
    batch = service.api.get(f"/v1/batches/{service.found['batch_id']}").json()
    body = {
        "environment": "count", "profile": "tiny", "executor": batch["executor"],
        "ideator": batch["ideator"], "ideas": [],
    } | changes  # fmt: skip
    body["ideas"].append({"text": "Again.", "confirms": named})
    answer = service.api.post("/v1/batches", json=body)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/ideas/0/confirms", "not_confirmable")
    assert said in error["message"]


def test_a_batch_confirms_all_of_its_ideas_or_none(service: Service) -> None:
    measure_baseline(service)
    measure_idea(service, 12.0, 12.1)
    mixed = [{"text": "Again.", "confirms": service.experiments[0]}, {"text": "Something else."}]
    body = {"environment": "count", "profile": "tiny", "ideas": mixed}
    answer = service.api.post("/v1/batches", json=body)
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, "/ideas/1/confirms")
    assert "in a batch of its own" in error["message"]


def test_of_artifacts_the_best_seed_counts(tmp_path: Path) -> None:
    manifest = MANIFEST.replace("[metric]\n", '[metric]\njudged = "artifact"\n')
    folder = tmp_path / "environments" / "count"
    write_environment(folder)
    (folder / "environment.toml").write_text(manifest)
    service = open_service(tmp_path, Catalog([tmp_path / "environments"]))
    measure_baseline(service)
    found = measure_idea(service, 9.0, 11.5)
    assert (found["verdict"], found["effect"], found["p"], found["n"]) == ("better", 0.5, None, 2)
    experiment = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()
    batch = service.api.get(f"/v1/batches/{service.found['batch_id']}").json()
    assert experiment["metric"] == batch["best"]["metric"] == 11.5
    service.context.db.dispose()
