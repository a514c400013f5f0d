"""Bad input: a clear message that names the field and the remedy; nothing is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from starlette.testclient import TestClient

from assay.contracts.caps import OwnerSpending
from assay.storage import schema
from assay.storage.objects import LocalStore, disk_faults
from services.implementer.app import create_app
from services.implementer.context import Context
from tests.implementer.conftest import batch


@pytest.fixture(autouse=True)
def nothing_changes(context: Context) -> Iterator[None]:
    """Every test of this file must leave the database as it found it."""
    before = _rows(context)
    yield
    assert _rows(context) == before


def _rows(context: Context) -> dict[str, int]:
    tables = (
        schema.Batch,
        schema.Idea,
        schema.Experiment,
        schema.Measurement,
        schema.Search,
        schema.IdempotencyKey,
        schema.Outbox,
    )
    with context.db.read() as session:
        return {
            t.__tablename__: session.scalars(select(func.count()).select_from(t)).one()
            for t in tables
        }


def refused(response: Any, status: int, code: str, *words: str) -> dict[str, Any]:
    """Assert that a response is a problem of that code which says those words."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["code"] == code
    assert problem["request_id"].startswith("req_")
    for word in words:
        assert word in problem["detail"], problem["detail"]
    return problem


def test_unknown_environment(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(environment="nope"))
    problem = refused(response, 422, "unknown_environment", "'nope'", "count")
    assert problem["errors"][0]["pointer"] == "/environment"


def test_environment_of_another_version(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(environment="count@000000000000"))
    refused(response, 422, "invalid", "/environment", "installed here")


def test_unknown_profile(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(profile="huge"))
    refused(response, 422, "invalid", "/profile", "'huge'", "tiny")


def test_empty_batch(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch() | {"ideas": []})
    refused(response, 422, "validation_failed", "/ideas", "at least 1")


def test_idea_over_64_kib(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch("ä" * 33_000))
    refused(response, 422, "validation_failed", "/ideas/0/text", "66000", "65536")


def test_idea_of_exactly_64_kib_is_no_error(api: TestClient) -> None:
    response = api.post("/v1/batches?dry_run=true", json=batch("x" * 65_536))
    assert response.status_code == 200


def test_blank_idea(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch("  \n"))
    refused(response, 422, "validation_failed", "/ideas/0/text", "empty")


def test_10001_ideas(api: TestClient) -> None:
    body = batch() | {"ideas": [{"text": "x"}] * 10_001}
    refused(api.post("/v1/batches", json=body), 422, "validation_failed", "/ideas", "10000")


def test_malformed_json(api: TestClient) -> None:
    headers = {"content-type": "application/json"}
    response = api.post("/v1/batches", content=b'{"environment": ', headers=headers)
    refused(response, 400, "malformed_json", "not valid JSON")


def test_body_that_is_no_object(api: TestClient) -> None:
    refused(api.post("/v1/batches", json=[1, 2]), 422, "validation_failed")


def test_unknown_field(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(enviroment="count"))
    refused(response, 422, "validation_failed", "/enviroment", "not permitted")


def test_duplicate_client_key(api: TestClient) -> None:
    body = batch("a", "b")
    for idea in body["ideas"]:
        idea["client_key"] = "same"
    problem = refused(
        api.post("/v1/batches", json=body), 422, "duplicate_client_key", "'same'", "idea 0"
    )
    assert problem["errors"][0]["pointer"] == "/ideas/1/client_key"


def test_unknown_query_parameter(api: TestClient) -> None:
    refused(api.get("/v1/batches?stat=running"), 400, "unknown_parameter", "'stat'", "state")
    refused(api.post("/v1/batches?dryrun=1", json=batch()), 400, "unknown_parameter", "dry_run")


@pytest.mark.parametrize("limit", ["-1", "0", "ten"])
def test_a_page_limit_that_is_no_positive_number(api: TestClient, limit: str) -> None:
    refused(api.get(f"/v1/batches?limit={limit}"), 400, "invalid_parameter", "limit")


@pytest.mark.parametrize(
    "option",
    [
        {"samples": -1},
        {"samples": 0},
        {"revisions": -1},
        {"max_cost_usd": "-0.01"},
        {"seeds": [-1]},
        {"seeds": []},
        {"baseline_seeds": -5},
    ],
)
def test_negative_limits(api: TestClient, option: dict[str, Any]) -> None:
    response = api.post("/v1/batches", json=batch(options=option))
    refused(response, 422, "validation_failed", f"/options/{next(iter(option))}")


def test_nul_bytes(api: TestClient) -> None:
    refused(
        api.post("/v1/batches", json=batch("a\x00b")),
        422,
        "validation_failed",
        "/ideas/0/text",
        "NUL",
    )
    refused(api.post("/v1/batches", json=batch(profile="t\x00")), 422, "validation_failed", "NUL")
    refused(api.get("/v1/batches?search=a%00b"), 400, "invalid_parameter", "NUL")
    refused(api.get("/v1/batches/a%00b"), 400, "invalid_parameter", "NUL")


def test_lone_surrogate(api: TestClient) -> None:
    body = json.dumps(batch("x")).replace('"x"', '"\\ud800"')
    headers = {"content-type": "application/json"}
    response = api.post("/v1/batches", content=body, headers=headers)
    assert response.status_code in (400, 422), response.text


def test_missing_key_of_a_provider(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(executor="anthropic:claude-opus-4-5"))
    problem = refused(response, 422, "missing_key", "ANTHROPIC_API_KEY", "export")
    assert problem["errors"][0]["pointer"] == "/executor"


def test_model_written_code_without_isolation(api: TestClient, context: Context) -> None:
    context.variables = {"ANTHROPIC_API_KEY": "k"}
    body = batch(executor="anthropic:claude-opus-4-5")
    response = api.post("/v1/batches", json=body)
    refused(response, 422, "isolation_required", "bubblewrap", "subprocess")
    by_ideator = batch(ideator="anthropic:claude-opus-4-5")
    refused(api.post("/v1/batches", json=by_ideator), 422, "isolation_required")


def test_a_cap_that_could_not_be_kept(api: TestClient, context: Context) -> None:
    context.variables = {"OPENAI_API_KEY": "k"}
    body = batch(executor="openai:unheard-of", options={"max_cost_usd": "1"})
    refused(api.post("/v1/batches", json=body), 422, "price_unknown", "unheard-of")
    search = {
        "environment": "count",
        "profile": "tiny",
        "strategy": "random",
        "seed": 0,
        "epochs": 1,
        "batch_size": 1,
        "executor": "openai:unheard-of",
        "caps": {"max_cost_usd": "1"},
    }
    problem = api.post("/v1/searches", json=search)
    refused(problem, 422, "price_unknown", "unheard-of")
    assert problem.json()["errors"][0]["pointer"] == "/caps/max_cost_usd"


def test_an_owners_cap_that_could_not_be_kept(api: TestClient, context: Context) -> None:
    context.variables = {"OPENAI_API_KEY": "k"}
    context.settings.caps = {"*": OwnerSpending(max_cost_usd_per_day=Decimal(5))}
    body = batch(executor="openai:unheard-of", options={"allow_unisolated": True})
    refused(api.post("/v1/batches", json=body), 422, "price_unknown", "ASSAY_IMPLEMENTER_CAPS")
    context.settings.caps = {"local": OwnerSpending(), "*": OwnerSpending(max_cost_usd=Decimal(5))}
    looked_at = api.post("/v1/batches?dry_run=true", json=body)
    assert looked_at.status_code == 200, "this owner has no cap"


def test_unknown_provider(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(executor="acme:best"))
    refused(response, 422, "unknown_model", "acme", "anthropic")


def test_no_worker_fits_and_no_class_is_named(api: TestClient, context: Context) -> None:
    with context.db.write() as session:
        session.execute(schema.Worker.__table__.update().values(state="stopped"))
    refused(api.post("/v1/batches", json=batch()), 503, "no_fitting_worker", "hardware_class")


def test_idempotency_key_of_another_owner_length(api: TestClient) -> None:
    headers = {"Idempotency-Key": "x" * 256}
    response = api.post("/v1/batches", json=batch(), headers=headers)
    refused(response, 400, "invalid_parameter", "Idempotency-Key")


def test_cursor_that_is_none(api: TestClient) -> None:
    refused(api.get("/v1/batches?cursor=hello"), 400, "invalid_parameter", "cursor", "next_cursor")


def test_unknown_ids_and_paths(api: TestClient) -> None:
    refused(api.get("/v1/batches/bat_none"), 404, "not_found", "bat_none")
    refused(api.get("/v1/experiments/exp_none"), 404, "not_found", "exp_none")
    refused(api.get("/v1/environments/none"), 404, "not_found", "none", "count")
    refused(api.get("/v1/nothing"), 404, "not_found", "/openapi.json")
    refused(api.delete("/v1/batches"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/batches", "GET, POST"),
        ("/v1/workers", "GET, POST"),
        ("/v1/environments/count/baseline", "GET, POST"),
        ("/v1/searches/s/epochs/0", "PUT"),
        ("/healthz", "GET"),
    ],
)
def test_a_method_that_is_not_allowed_is_answered_with_all_that_are(
    api: TestClient, path: str, methods: str
) -> None:
    response = api.delete(path)
    refused(response, 405, "method_not_allowed")
    assert response.headers["allow"] == methods


def test_a_day_is_a_date_and_no_number(api: TestClient) -> None:
    for since in ("0", "1700000000", "2024-1-1", "2024-02-30"):
        response = api.get(f"/v1/reports/execution?since={since}")
        refused(response, 400, "invalid_parameter", "since")
    assert api.get("/v1/reports/execution?since=2024-01-01").status_code == 200


def test_an_optional_parameter_is_never_described_as_null(api: TestClient) -> None:
    for path, operations in api.get("/openapi.json").json()["paths"].items():
        for verb, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                assert "null" not in str(parameter["schema"]), (path, verb, parameter["name"])


def test_text_and_truth_are_no_numbers(api: TestClient) -> None:
    for wrong in ({"samples": "3"}, {"samples": True}, {"allow_unisolated": 1}, {"seeds": ["0"]}):
        response = api.post("/v1/batches?dry_run=true", json=batch(options=wrong))
        refused(response, 422, "validation_failed", f"/options/{next(iter(wrong))}")
    whole = api.post("/v1/batches?dry_run=true", json=batch(options={"samples": 3.0}))
    assert whole.status_code == 200, "JSON has one kind of number"


def test_body_over_the_limit(context: Context) -> None:
    context.settings.max_body_bytes = 2_000
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        response = api.post("/v1/batches", json=batch("x" * 3_000))
        refused(response, 413, "body_too_large", "2000", "split")


def test_object_store_read_only(api: TestClient, context: Context, tmp_path: Path) -> None:
    # Nobody may make folders in sysfs, not even root; elsewhere permissions do.
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    folder = Path("/sys/assay") if os.geteuid() == 0 else locked / "objects"
    context.store = LocalStore(folder)
    response = api.post("/v1/batches", json=batch())
    refused(response, 503, "object_store_read_only", "permissions")


def test_object_store_on_a_full_disk(api: TestClient, context: Context) -> None:
    context.store = FullStore(Path("/dev/full"))
    response = api.post("/v1/batches", json=batch())
    refused(response, 503, "disk_full", "free space")
    assert response.headers["retry-after"] == "5"


class FullStore(LocalStore):
    """A store on a disk that really has no space left: every write gets ENOSPC."""

    def check(self) -> None:
        with disk_faults(self.folder), self.folder.open("wb", buffering=0) as file:
            file.write(b"x")


def test_database_on_a_full_disk(api: TestClient, context: Context) -> None:
    # Each new connection may not grow the file: SQLite then says "database or disk is full".
    api.get("/v1/environments/count/baseline?profile=tiny")  # registers the environment
    with context.db.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    context.db.dispose()
    from sqlalchemy import event

    def no_growth(connection: Any, _record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(context.db.engine, "connect", no_growth)
    body = batch(*(f"{i} " + "x" * 60_000 for i in range(20)))
    try:
        refused(api.post("/v1/batches", json=body), 503, "disk_full", "free space")
    finally:
        event.remove(context.db.engine, "connect", no_growth)
        context.db.dispose()


BIG = 2**70


@pytest.mark.parametrize(
    "change",
    [
        {"search": "a\x00b"},
        {"epoch": BIG},
        {"hardware_class": "h" * 65},
        {"metadata": {"a\x00": "b"}},
        {"ideas": [{"text": "x", "parents": ["a\x00b"]}]},
        {"ideas": [{"text": "x", "parents": ["\ud800"]}]},
    ],
)
def test_values_that_no_database_keeps(api: TestClient, change: dict[str, Any]) -> None:
    headers = {"content-type": "application/json"}
    response = api.post("/v1/batches", content=json.dumps(batch() | change), headers=headers)
    assert response.status_code == 422, response.text


@pytest.mark.parametrize("value", ["a\x00", "\ud800", float("nan")])
def test_a_configuration_that_no_database_keeps(api: TestClient, value: Any) -> None:
    headers = {"content-type": "application/json"}
    body = {"environment": "count", "profile": "tiny", "strategy": "x", "epochs": 1}
    body |= {"batch_size": 1, "config": {"a": [value]}}
    response = api.post("/v1/searches", content=json.dumps(body), headers=headers)
    assert response.status_code == 422, response.text


def test_a_search_that_is_not_there(api: TestClient) -> None:
    response = api.post("/v1/batches", json=batch(search="srch_none"))
    refused(response, 422, "unknown_search", "srch_none")


def test_numbers_that_are_too_large(api: TestClient) -> None:
    for path in ("batches/b/events?after=", "experiments/e/logs?offset="):
        refused(api.get(f"/v1/{path}{BIG}"), 400, "invalid_parameter")


def test_a_body_over_the_limit_that_does_not_say_its_length(context: Context) -> None:
    context.settings.max_body_bytes = 2_000
    body = json.dumps(batch("x" * 3_000)).encode()
    # `artifacts` in the path lifts the limit only for uploads of workers.
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        for method, path in (("POST", "/v1/batches"), ("PUT", "/v1/searches/artifacts/epochs/0")):
            headers = {"content-type": "application/json"}
            response = api.request(method, path, content=iter([body]), headers=headers)
            refused(response, 413, "body_too_large", "split")
