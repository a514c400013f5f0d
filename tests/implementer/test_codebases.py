"""Codebases that were uploaded: what is refused, and how they are measured and compared."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select
from starlette.testclient import TestClient

from assay.domain.hashing import text_tree_hash
from assay.patching.guard import MAX_GROWTH_BYTES
from assay.storage import environments, schema
from services.implementer.app import create_app
from services.implementer.context import Context
from tests.implementer.conftest import batch
from tests.implementer.scored import Service
from tests.implementer.test_verdicts import finish, measure_baseline, measure_idea

SEALED = "# no diff may touch this\n"
FILES = {"train.py": "print(1)\n", "sealed.py": SEALED}
UPLOAD = "/v1/environments/count/codebases"


def upload(api: TestClient, files: dict[str, Any] | None = None) -> Any:
    return api.post(UPLOAD, json={"files": FILES if files is None else files})


def given(*codebases: str, executor: str = "none", **changes: Any) -> dict[str, Any]:
    """The body of a batch that measures codebases as they are."""
    ideas = [{"text": f"Measure {codebase}.", "codebase": codebase} for codebase in codebases]
    return batch(executor=executor, **changes) | {"ideas": ideas}


def stored(context: Context) -> tuple[set[str], int]:
    with context.db.read() as session:
        rows = session.scalars(select(func.count()).select_from(schema.Codebase)).one()
    return {item.key for item in context.store.list("codebases/")}, rows


def test_a_codebase_is_stored_once_under_the_hash_of_its_content(api: TestClient) -> None:
    first, second = upload(api), upload(api)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    body = first.json()
    assert (body["object"], body["id"], body["files"]) == (
        "codebase", text_tree_hash(FILES), FILES,
    )  # fmt: skip
    assert body["environment"] == api.get("/v1/environments/count").json()["id"]


HOSTILE: list[tuple[dict[str, str | None], str]] = [
    ({"sealed.py": "SEALED = False\n"}, "sealed.py is protected"),
    ({"sealed.py": None}, "sealed.py is protected"),
    ({"sealed/__init__.py": ""}, "would import"),
    ({"SEALED.py": SEALED}, "protected"),
    ({"../outside.py": ""}, "`..`"),
    ({"/etc/passwd": ""}, "absolute"),
    ({".git/hooks/post-checkout": ""}, ".git"),
    ({"Train.py": ""}, "cannot stand beside"),
    ({"train.py/more.py": ""}, "cannot stand beside"),
    ({"a": "", "a/b": ""}, "cannot stand beside"),
    ({"weights.py": "x" * 2 * MAX_GROWTH_BYTES}, "may not carry data"),
]
MALFORMED: list[dict[str, Any]] = [
    {"train.py": 1},
    {"train.py": None},
    {"train.py": "\x00"},
    {"train\x00.py": ""},
    {"x" * 1_001: ""},
    {f"{n}": "" for n in range(1_001)},
]


def test_a_hostile_codebase_is_refused_and_not_stored(api: TestClient, context: Context) -> None:
    before = stored(context)
    for changed, said in HOSTILE:
        files = {name: text for name, text in (FILES | changed).items() if text is not None}
        refused = upload(api, files)
        assert (refused.status_code, refused.json()["code"]) == (422, "codebase_refused"), changed
        assert said in refused.json()["detail"]
        assert refused.json()["errors"][0]["pointer"] == "/files"
    for files in MALFORMED:
        assert upload(api, files).json()["code"] == "validation_failed", files
    assert stored(context) == before


def test_an_upload_may_be_larger_than_other_requests(api: TestClient) -> None:
    escaped = "\\u0041" * (200 << 10)
    content = f'{{"files": {{"train.py": "{escaped}", "sealed.py": {SEALED!r}}}}}'
    content = content.replace(repr(SEALED), '"# no diff may touch this\\n"')
    made = api.post(UPLOAD, content=content, headers={"content-type": "application/json"})
    assert len(content) > 1 << 20
    assert made.status_code == 201, made.text


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        (given("a" * 64), "/ideas/0/codebase", "unknown_codebase"),
        (given("baseline", executor="offline:literal"), "/ideas/0/codebase", "executor_not_none"),
        (batch(executor="none"), "/ideas/0/codebase", "codebase_missing"),
    ],
)
def test_a_batch_that_asks_no_model_names_codebases_that_are_there(
    api: TestClient, body: dict[str, Any], pointer: str, code: str
) -> None:
    baseline = api.get("/v1/environments/count").json()["codebase"]
    for idea in body["ideas"]:
        idea["codebase"] = {"baseline": baseline}.get(idea.get("codebase"), idea.get("codebase"))
    refused = api.post("/v1/batches", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert refused.json()["errors"][0]["pointer"] == pointer
    assert api.get("/v1/batches").json()["data"] == []


def test_uploaded_code_needs_isolation_and_the_baseline_does_not(
    api: TestClient, context: Context
) -> None:
    codebase = upload(api).json()["id"]
    refused = api.post("/v1/batches", json=given(codebase))
    assert (refused.status_code, refused.json()["code"]) == (422, "isolation_required")
    baseline = api.get("/v1/environments/count").json()["codebase"]
    assert api.post("/v1/batches", json=given(baseline)).status_code == 202
    risked = given(codebase, options={"allow_unisolated": True})
    assert api.post("/v1/batches", json=risked).status_code == 202
    with context.db.read() as session:
        executors = session.scalars(select(schema.Implementation.executor)).all()
    assert executors == ["none", "none"]


def test_nothing_is_charged_where_no_model_is_asked(api: TestClient) -> None:
    codebase = upload(api).json()["id"]
    options = {"max_cost_usd": "0.01", "allow_unisolated": True}
    capped = given(codebase, options=options)
    said = api.post("/v1/batches", params={"dry_run": True}, json=capped).json()
    assert said["cost_usd"] == {"low": "0", "high": "0"}
    assert said["measurements"] == 1


def test_a_codebase_of_another_version_is_judged_by_its_content(
    api: TestClient, context: Context
) -> None:
    """Its hash is recorded once, for the version where it was first seen."""
    environment = context.environments.get("count")
    environments.register(context.db, context.store, environment)
    fine = environments.put_codebase(context.store, FILES)
    wrong = environments.put_codebase(context.store, FILES | {"sealed.py": "open\n"})
    with context.db.write() as session:
        row = session.get_one(schema.Environment, environment.id)
        columns = {c.key: getattr(row, c.key) for c in schema.Environment.__table__.columns}
        session.add(schema.Environment(**columns | {"id": "count@another"}))
        session.flush()
        for codebase in (fine, wrong):
            environments.add_codebase(context.db, session, codebase, "count@another")
    options = {"allow_unisolated": True}
    assert api.post("/v1/batches", json=given(fine, options=options)).status_code == 202
    refused = api.post("/v1/batches", json=given(fine, wrong, options=options))
    assert (refused.status_code, refused.json()["code"]) == (422, "codebase_refused")
    assert refused.json()["errors"][0]["pointer"] == "/ideas/1/codebase"


def test_an_idea_names_one_codebase(api: TestClient) -> None:
    baseline = api.get("/v1/environments/count").json()["codebase"]
    body = given(baseline)
    body["ideas"][0]["confirms"] = "exp_1"
    assert api.post("/v1/batches", json=body).status_code == 422


def test_an_epoch_holds_no_codebases(service: Service) -> None:
    search = service.found["search_id"]
    idea = {"text": "Measure it.", "codebase": text_tree_hash(FILES)}
    refused = service.api.put(f"/v1/searches/{search}/epochs/1", json={"ideas": [idea]})
    assert (refused.status_code, refused.json()["code"]) == (422, "executor_not_none")


def compared(service: Service, a: str, b: str, **where: str) -> Any:
    return service.api.get("/v1/comparison", params={"a": a, "b": b, **where})


def test_an_experiment_is_compared_with_the_baseline_on_seeds_that_both_have(
    service: Service,
) -> None:
    measure_baseline(service)  # on seeds 0 to 2
    measure_idea(service, 50.0, 50.5)  # on 0 and 1
    first = service.experiments[0]
    found = compared(service, first, "baseline").json()
    assert (found["a"]["experiment"], found["b"]["experiment"]) == (first, None)
    assert (found["a"]["is_baseline"], found["b"]["is_baseline"]) == (False, True)
    assert found["seeds"] == [0, 1]
    assert found["comparison"]["effect"] == pytest.approx(40)
    assert found["comparison"]["baseline_n"] == found["comparison"]["n"] == 2
    reverse = compared(service, "baseline", first).json()
    assert reverse["comparison"]["effect"] == pytest.approx(-40)
    assert reverse["comparison"]["verdict"] == "worse"


def test_codebases_are_compared_by_their_hashes(service: Service) -> None:
    measure_baseline(service)
    measure_idea(service, 50.0, 50.5)
    codebase = service.api.get(f"/v1/experiments/{service.experiments[0]}").json()["codebase"]
    where = {"environment": "count", "profile": "tiny"}
    found = compared(service, codebase, "baseline", **where).json()
    assert (found["a"]["codebase"], found["seeds"]) == (codebase, [0, 1])
    assert found["comparison"]["verdict"] == "better"
    for missing in ({}, {"profile": "tiny"}, {"environment": "count"}):
        refused = compared(service, codebase, "baseline", **missing)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    unknown = compared(service, "b" * 64, "baseline", **where)
    assert (unknown.status_code, unknown.json()["code"]) == (404, "no_result")
    assert "--seeds" in unknown.json()["detail"]


def test_a_hash_shows_no_results_of_other_owners(service: Service) -> None:
    measure_baseline(service)
    measure_idea(service, 50.0, 50.5)
    first = service.experiments[0]
    codebase = service.api.get(f"/v1/experiments/{first}").json()["codebase"]
    service.context.settings.api_keys = {"ann": SecretStr("key-of-ann")}
    with TestClient(create_app(service.context)) as api:
        api.headers["Authorization"] = "Bearer key-of-ann"
        where = {"environment": "count", "profile": "tiny"}
        for side, code in ((codebase, "no_result"), (first, "not_found")):
            refused = api.get("/v1/comparison", params={"a": side, "b": "baseline", **where})
            assert (refused.status_code, refused.json()["code"]) == (404, code)


def test_results_without_a_common_seed_are_not_compared(service: Service) -> None:
    first, second = service.experiments
    measure_baseline(service)
    measure_idea(service, 50.0, 50.5)
    for measurement, score in zip(service.implement(second, "b = 1\n"), (10, 11), strict=True):
        finish(service, measurement, score)
    with service.context.db.write() as session:
        for number, measurement in enumerate(service.measurements(second)):
            session.get_one(schema.Measurement, measurement).seed = 7 + number
    refused = compared(service, first, second)
    assert (refused.status_code, refused.json()["code"]) == (404, "no_common_seed")
    assert "seeds 0, 1 and 7, 8" in refused.json()["detail"]


def test_a_baseline_of_other_conditions_is_not_comparable(service: Service) -> None:
    measure_baseline(service)
    measure_idea(service, 50.0, 50.5)
    first = service.experiments[0]
    baseline = service.api.get("/v1/environments/count").json()["codebase"]
    with service.context.db.write() as session:
        batch_row = session.get_one(schema.Batch, service.found["batch_id"])
        facts = session.get_one(schema.ConditionSet, batch_row.conditions_id).facts
        columns = {"hardware_class": "cpu", "created_at": batch_row.created_at}
        facts = {**facts, "torch": "1.0"}
        session.add(schema.ConditionSet(id="cnd_old", facts=facts, **columns))
        table = schema.Measurement
        for row in session.scalars(select(table).where(table.codebase_id == baseline)):
            row.conditions_id = "cnd_old"
    found = compared(service, first, "baseline").json()
    assert found["comparison"]["verdict"] == "not comparable"
    assert "torch: " in found["comparison"]["mismatch"][0]
    assert (found["a"]["conditions"] != "cnd_old", found["b"]["conditions"]) == (True, "cnd_old")


def test_a_codebase_is_no_duplicate_for_its_words(api: TestClient) -> None:
    """Nobody implements them, so a second codebase under the same words is measured too."""
    options = {"allow_unisolated": True, "novelty": "skip"}
    codebases = [upload(api, FILES | {"train.py": f"print({n})\n"}).json()["id"] for n in (1, 2)]
    body = given(*codebases, options=options)
    for idea in body["ideas"]:
        idea["text"] = "Measure what I wrote today."
    made = api.post("/v1/batches", json=body).json()
    assert (made["counts"]["total"], made["counts"]["cancelled"]) == (2, 0)
