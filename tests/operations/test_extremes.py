"""No value in a request breaks the service or makes an answer huge, whichever field it is in."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from itertools import count, product
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy import select
from starlette.testclient import TestClient

from assay.contracts import annotation, bases, batch, conditions, search, webhook, worker
from assay.contracts.base import Request
from assay.contracts.environment import Manifest
from assay.contracts.worker import WorkerRegistration
from assay.domain.conditions import host_facts
from assay.domain.metrics import Sample
from assay.domain.placement import Placement
from assay.environments.catalog import Catalog
from assay.storage import attempts, schema, workers
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.routers import environments
from services.implementer.settings import ImplementerSettings

Json = Any
Place = tuple[Any, ...]
TOKEN = "asw_test"
AS_WORKER = {"Authorization": f"Bearer {TOKEN}"}
SHA256 = "a" * 64
#: The longest idea has 64 KiB, twice that in JSON; settings of a search have as much.
MOST_BYTES_PER_ITEM = 256 << 10

NESTED: Json = 1
for _ in range(200):
    NESTED = [NESTED]
EXTREMES: dict[str, Json] = {
    "null": None,
    "true": True,
    "zero": 0,
    "minus one": -1,
    "beyond 32 bits": 2**31,
    "the last of 64 bits": 2**63 - 1,
    "beyond 64 bits": 2**64,
    "beyond a float": 10**400,
    "beyond a negative float": -(10**400),
    "huge": 1e308,
    "hugely negative": -1e308,
    "tiny": 5e-324,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "not a number as text": "NaN",
    "infinite as text": "-Infinity",
    "a gigabyte when written out": "1e999999999",
    "a gigabyte of zeros": "1e-999999999",
    "empty text": "",
    "blank text": " ",
    "NUL": "a\x00b",
    "lone surrogate": "\ud800",
    "long text": "x" * 100_000,
    "path": "../../etc/passwd",
    "empty list": [],
    "long list": [0] * 20_000,
    "list of texts": ["x"] * 2_000,
    "nested": NESTED,
    "empty object": {},
    "wide object": {str(n): 0 for n in range(20_000)},
    "nested object": {"a": NESTED},
    "NUL in a name": {"\x00": 1},
    "lone surrogate in a name": {"\ud800": 1},
    "long name": {"x" * 100_000: 1},
    "value that is not a number": {"a": float("nan")},
}
IDEA = {
    "text": "Count in twos.",
    "client_key": "k",
    "operator": "seed",
    "parents": ["exp_1"],
    "base": "baseline",
    "thinking": "t",
    "confirms": None,
    "codebase": None,
}
SPENDING = {"max_cost_usd": "5", "max_gpu_hours": 1.0}
OPTIONS = {
    **SPENDING,
    "samples": 1,
    "revisions": 1,
    "sampling": "staged",
    "preflight": "compile",
    "repairs": 1,
    "seeds": [0],
    "baseline_seeds": 1,
    "temperature": 0.5,
    "max_tokens": 9_000,
    "effort": "high",
    "novelty": "allow",
    "novelty_threshold": 0.5,
    "priority": 0,
    "allow_unisolated": False,
    "again": False,
}
CALL = {
    "epoch": 0,
    "place": "0.0.0",
    "operator": "seed",
    "asked": 1,
    "number": 1,
    "request_hash": "a",
    "prompt_version": "v",
    "input_tokens": 1,
    "output_tokens": 1,
    "is_replay": False,
    "loop": "l",
}
LOG = {"stream": "train", "offset": 0, "data": "eA=="}
POINT = {"seq": 0, "step": 1.0, "values": {"loss": 1.0}}
SYSTEM = {"seq": 0, "seconds": 1.0, "values": {"cpu": 1.0}}
DEVICE = {"uuid": "GPU-1", "name": "a", "memory_bytes": 1}
HELD = {"attempt": "att_1", "lease_token": 1}
FILE = {
    "name": "a.zip",
    "bytes": 1,
    "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    "data": "eA==",
}


@dataclass
class Service:
    """The API over one database, with a worker that holds an attempt."""

    api: TestClient
    context: Context
    worker: str

    def __post_init__(self) -> None:
        self._seeds = count(1)
        self.search = self._stored("/v1/searches", search_body())["id"]
        self._stored(f"/v1/searches/{self.search}/epochs/0", {"ideas": [IDEA]}, "PUT")
        idea = batch_body(self) | {"options": OPTIONS | {"baseline_seeds": 0}}
        made = self._stored("/v1/batches", idea)["id"]
        (self.experiment,) = (
            str(each["id"])
            for each in self.api.get("/v1/experiments", params={"batch": made}).json()["data"]
        )
        self.attempt, self.token = self.assign()
        self.call = "call_0"

    def _stored(self, path: str, body: Json, method: str = "POST") -> Json:
        response = self.api.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json()

    def begin_call(self) -> None:
        """Begin another call of the search's ideator."""
        self.call = f"call_{next(self._seeds)}"
        self._stored(f"/v1/searches/{self.search}/calls/{self.call}", CALL, "PUT")

    def assign(self) -> tuple[str, int]:
        """Give the worker an attempt, which it claims."""
        body = {"profile": "tiny", "seeds": [next(self._seeds)]}
        self._stored("/v1/environments/count/baseline", body)
        with self.context.db.write() as session:
            queued = session.scalars(
                select(schema.Measurement.id).where(schema.Measurement.state == "queued")
            ).first()
            assert queued is not None
            placed = Placement(queued, self.worker)
            given = attempts.assign(self.context.db, session, placed, timedelta(hours=1))
            assert given is not None
            found = given.id, given.lease_token
        claimed = self.api.post(
            f"/internal/v1/attempts/{found[0]}/claim",
            json={"lease_token": found[1]},
            headers=AS_WORKER,
        )
        assert claimed.status_code == 204, claimed.text
        return found


def asked(_service: Service) -> Json:
    """A decision that asks for ideas."""
    ask = {"operator": "seed", "count": 1, "seed": 0, "parents": ["exp_0"]}
    seen = {"reward": 0.5, "mean": 2.0, "spread": 0.1, "seeds": 20}
    return {"asks": [ask], "remeasure": None, "seen": ["exp_0"], "pending": [0], "baseline": seen}


def search_body() -> Json:
    return {
        "environment": "count",
        "profile": "tiny",
        "driver": "client",
        "strategy": "random",
        "seed": 0,
        "epochs": 2,
        "batch_size": 1,
        "ideator": "offline:ideator",
        "executor": "offline:literal",
        "hardware_class": "cpu",
        "conditions": CONDITIONS,
        "base": "baseline",
        "config": {"a": 1},
        "caps": SPENDING | {"max_ideator_cost_usd": "2", "max_executor_cost_usd": "2"},
        "metadata": {"a": "b"},
    }


@dataclass(frozen=True)
class Endpoint:
    """An endpoint that takes a body, with a body that has every field."""

    method: str
    path: str
    model: type[BaseModel]
    body: Callable[[Service], Json]

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"


def report(service: Service) -> Json:
    """What a worker reports of its attempt at any time."""
    return {
        "lease_token": service.token,
        "logs": [LOG],
        "points": [POINT],
        "system": [SYSTEM],
    }


def finish(service: Service) -> Json:
    return report(service) | {
        "state": "succeeded",
        "failure": None,
        "infrastructure": False,
        "unclear": False,
        "metrics": {"score": 1.0, "confirmed_score": 1.0},
        "rescore": {"metrics": {"score": 1.0, "confirmed_score": 1.0}, "seconds": 1.0},
        "provenance": {"a": 1},
        "artifacts": [FILE],
        "started": True,
        "seconds": 1.0,
    }


def failed(service: Service) -> Json:
    failure = {"stage": "train", "code": "crashed", "message": "m", "retryable": False}
    return finish(service) | {"state": "failed", "failure": failure, "rescore": None}


#: Those of the only worker, which tells nothing but its hardware class.
CONDITIONS = host_facts("cpu", {}).wide


def batch_body(_: Service) -> Json:
    return {
        "environment": "count",
        "profile": "tiny",
        "ideas": [IDEA],
        "executor": "offline:literal",
        "ideator": "offline:ideator",
        "hardware_class": "cpu",
        "conditions": CONDITIONS,
        "base": "baseline",
        "options": OPTIONS,
        "search": None,
        "epoch": 0,
        "metadata": {"a": "b"},
    }


def registration(_: Service) -> Json:
    return {
        "name": "w",
        "incarnation": "one",
        "cpus": 2,
        "gpus": 0,
        "memory_bytes": 1 << 33,
        "hardware_class": "cpu",
        "sandbox": "subprocess",
        "isolated": True,
        "guarantees": {"a": True},
        "info": {"a": 1},
        "devices": [DEVICE],
        "version": "1",
        "adopted": [HELD],
    }


def sync(service: Service) -> Json:
    return {
        "incarnation": "one",
        "number": 0,
        "held": [{"attempt": service.attempt, "lease_token": service.token}],
        "draining": False,
        "usable_gpus": 0,
        "troubles": [{"uuid": "GPU-1", "state": "lost", "detail": "off the bus"}],
        "usable_cpus": 1,
        "wait_seconds": 0,
    }


_ATTEMPT = "/internal/v1/attempts/{attempt}"
ENDPOINTS = [
    Endpoint("POST", "/v1/batches", batch.BatchRequest, batch_body),
    Endpoint("POST", "/v1/searches", search.SearchRequest, lambda _: search_body()),
    Endpoint(
        "PUT",
        "/v1/searches/{search_id}/epochs/{number}",
        search.EpochRequest,
        lambda _: {"ideas": [IDEA]},
    ),
    Endpoint(
        "PUT", "/v1/searches/{search_id}/epochs/{number}/decision", search.DecisionRequest, asked
    ),
    Endpoint(
        "PUT",
        "/v1/searches/{search_id}/calls/{call_id}",
        search.IdeatorCallRequest,
        lambda _: CALL,
    ),
    Endpoint(
        "PUT",
        "/v1/searches/{search_id}/calls/{call_id}/end",
        search.IdeatorCallEndRequest,
        lambda _: {
            "state": "returned",
            "loop": "l",
            "code": "c",
            "message": "m",
            "input_tokens": 1,
            "cached_input_tokens": 1,
            "cache_write_tokens": 1,
            "output_tokens": 1,
            "is_estimate": False,
            "seconds": 1.0,
            "request_id": "r",
            "answer": {
                "ideas": 1,
                "unread": 0,
                "stop": "end",
                "text": "t",
                "thinking": "t",
                "thinking_length": 1,
            },
        },
    ),
    Endpoint(
        "POST",
        "/v1/searches/{search_id}/extend",
        search.ExtendRequest,
        lambda _: (
            SPENDING | {"epochs": 3, "max_ideator_cost_usd": "2", "max_executor_cost_usd": "2"}
        ),
    ),
    Endpoint(
        "POST",
        "/v1/searches/{search_id}/finish",
        search.FinishRequest,
        lambda _: {"epochs": 2},
    ),
    Endpoint(
        "POST",
        "/v1/searches/{search_id}/epochs/{number}/batch",
        batch.BatchOptions,
        lambda _: OPTIONS,
    ),
    Endpoint(
        "POST",
        "/v1/searches/{search_id}/epochs/{number}/pause",
        search.PauseRequest,
        lambda _: {"code": "crashed", "failed": 1, "total": 1, "message": "m"},
    ),
    Endpoint(
        "POST",
        "/v1/searches/{search_id}/resume",
        search.ResumeRequest,
        lambda _: {"driver": "client"},
    ),
    Endpoint(
        "POST",
        "/v1/environments/{name}/baseline",
        environments.BaselineRequest,
        lambda _: {
            "profile": "tiny",
            "seeds": [0],
            "hardware_class": "cpu",
            "conditions": CONDITIONS,
            "again": False,
        },
    ),
    Endpoint(
        "POST",
        "/v1/environments/{name}/codebases",
        environments.CodebaseRequest,
        lambda _: {"files": {"train.py": "a = 1", "sealed.py": "# no diff may touch this\n"}},
    ),
    Endpoint(
        "POST",
        "/v1/environments/{name}/fit",
        environments.FitRequest,
        lambda _: {"profile": "tiny", "hardware_class": "cpu", "conditions": CONDITIONS},
    ),
    Endpoint(
        "POST",
        "/v1/environments/{name}/conditions",
        conditions.EquivalenceRequest,
        lambda _: {
            "profile": "tiny",
            "conditions": CONDITIONS,
            "equals": CONDITIONS,
            "despite_difference": False,
        },
    ),
    Endpoint(
        "POST",
        "/v1/environments/{name}/conditions/separate",
        conditions.SeparationRequest,
        lambda _: {"profile": "tiny", "conditions": CONDITIONS},
    ),
    Endpoint(
        "PATCH",
        "/v1/experiments/{experiment_id}",
        annotation.AnnotationRequest,
        lambda _: {"tags": ["t"], "note": "n"},
    ),
    Endpoint(
        "PATCH",
        "/v1/searches/{search_id}",
        annotation.AnnotationRequest,
        lambda _: {"tags": ["t"], "note": "n"},
    ),
    Endpoint(
        "POST",
        "/v1/experiments/{experiment_id}/confirm",
        batch.ConfirmRequest,
        lambda s: {"seeds": 1, "beside": [s.experiment], "search": None, "base": "baseline"},
    ),
    Endpoint(
        "POST",
        "/v1/experiments/{experiment_id}/promote",
        bases.PromoteRequest,
        lambda _: {"name": "best"},
    ),
    Endpoint(
        "POST",
        "/v1/webhooks",
        webhook.WebhookRequest,
        lambda _: {
            "url": "https://example.org/",
            "events": ["search.finished"],
            "description": "d",
        },
    ),
    Endpoint("POST", "/v1/workers", worker.AdmitRequest, lambda _: {"name": "another"}),
    Endpoint(
        "POST",
        "/v1/workers/{worker}/cordon",
        worker.CordonRequest,
        lambda _: {"reason": "r", "seconds": 1.0},
    ),
    Endpoint("POST", "/internal/v1/workers", worker.WorkerRegistration, registration),
    Endpoint("POST", "/internal/v1/workers/{worker}/sync", worker.SyncRequest, sync),
    Endpoint(
        "POST",
        f"{_ATTEMPT}/claim",
        worker.ClaimRequest,
        lambda service: {"lease_token": service.token, "devices": ["GPU-1"]},
    ),
    Endpoint(
        "POST",
        f"{_ATTEMPT}/progress",
        worker.ProgressRequest,
        lambda service: report(service) | {"state": "running"},
    ),
    Endpoint(
        "POST",
        f"{_ATTEMPT}/artifacts/{{name}}/upload",
        worker.UploadRequest,
        lambda service: {"lease_token": service.token, "bytes": 1, "sha256": SHA256},
    ),
    Endpoint("POST", f"{_ATTEMPT}/finish", worker.FinishRequest, finish),
    Endpoint("POST", f"{_ATTEMPT}/finish", worker.FinishRequest, failed),
]


@pytest.fixture
def service(db: Database, store: LocalStore, catalog: Catalog) -> Iterator[Service]:
    context = Context(db, store, catalog, ImplementerSettings(), variables={})
    worker_id = workers.admit(db, "w", TOKEN)
    with db.write() as session:
        registered = WorkerRegistration.model_validate(
            {
                "name": "w",
                "incarnation": "one",
                "cpus": 2,
                "memory_bytes": 1 << 33,
                "hardware_class": "cpu",
                "sandbox": "subprocess",
                "isolated": True,
            }
        )
        workers.register(db, session, worker_id, registered)
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        yield Service(api, context, worker_id)


def places(value: Json, above: Place = ()) -> Iterator[Place]:
    """The place of every value in a body, the body itself first."""
    yield above
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in items:
        yield from places(below, (*above, key))


def at(body: Json, place: Place) -> Json:
    """The value in a place of a body."""
    for key in place:
        body = body[key]
    return body


def replaced(body: Json, changed: list[Place], value: Json) -> Json:
    """A body with another value in these places."""
    body = deepcopy(body)
    for place in changed:
        if not place:
            return value
        at(body, place[:-1])[place[-1]] = value
    return body


def send(service: Service, endpoint: Endpoint, body: Json) -> Any:
    path = endpoint.path.format(
        search_id=service.search,
        experiment_id=service.experiment,
        number=0,
        call_id=service.call,
        name="count" if "environments" in endpoint.path else "a.zip",
        attempt=service.attempt,
        worker=service.worker if endpoint.path.startswith("/internal") else "w",
    )
    headers = {"content-type": "application/json"}
    if endpoint.path.startswith("/internal"):
        headers |= AS_WORKER
    return service.api.request(
        endpoint.method, path, content=json.dumps(body).encode(), headers=headers
    )


def test_every_endpoint_with_a_body_is_tried(service: Service) -> None:
    described = service.api.app.openapi()  # type: ignore[attr-defined]
    public = {
        f"{method.upper()} {path}"
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
        if "requestBody" in operation
    }
    assert public == {e.name for e in ENDPOINTS if e.path.startswith("/v1/")}


def missing_fields(described: Json, body: Json) -> list[str]:
    """Fields of the top level and of models below it that a body does not have."""
    definitions = described.get("$defs", {})

    def look(schema_: Json, value: Json, where: str) -> Iterator[str]:
        if "$ref" in schema_:
            schema_ = definitions[schema_["$ref"].rpartition("/")[2]]
        for option in schema_.get("anyOf", ()):
            yield from look(option, value, where)
        if isinstance(value, list) and value and "items" in schema_:
            yield from look(schema_["items"], value[0], f"{where}/0")
        if isinstance(value, dict):
            for name, below in schema_.get("properties", {}).items():
                if name not in value:
                    yield f"{where}/{name}"
                else:
                    yield from look(below, value[name], f"{where}/{name}")

    return list(look(described, body, ""))


each_endpoint = pytest.mark.parametrize(
    "endpoint", ENDPOINTS, ids=lambda e: f"{e.name} {e.body.__name__}"
)


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
@each_endpoint
def test_no_accepted_value_breaks_the_service_or_makes_a_list_huge(
    service: Service, endpoint: Endpoint
) -> None:
    body = endpoint.body(service)
    assert missing_fields(endpoint.model.model_json_schema(), body) == []
    for name, value in EXTREMES.items():
        accepted = [
            place
            for place in places(body)
            if not is_refused(endpoint, replaced(body, [place], value))
        ]
        within = [place for place in accepted if isinstance(at(body, place), dict | list)]
        single = [place for place in accepted if place not in within]
        for changed in [single, *([place] for place in within), [()]]:
            answered(service, endpoint, changed, name)
    assert_lists_are_small(service)


@pytest.mark.postgres
@pytest.mark.parametrize("db", ["postgres"], indirect=True)
@each_endpoint
def test_no_value_breaks_the_service_or_makes_a_list_huge(
    service: Service, endpoint: Endpoint
) -> None:
    unchanged = answered(service, endpoint, [], "zero")
    # Of a fit, a pause, an equivalence, a confirmation, a promotion, a separation and a decision.
    not_yet = {
        "no_baseline", "epoch_not_finished", "no_evidence", "not_confirmable", "unconfirmed",
        "not_declared", "epoch_exists",
    }  # fmt: skip
    assert unchanged.is_success or unchanged.json()["code"] in not_yet
    tried = list(places(endpoint.body(service)))
    if endpoint.body is failed:  # the rest of it is tried with a success
        tried = [place for place in tried if "failure" in place]
    for place, name in product(tried, EXTREMES):
        answered(service, endpoint, [place], name)
    assert_lists_are_small(service)


def answered(service: Service, endpoint: Endpoint, changed: list[Place], name: str) -> Any:
    """The answer to a body with an extreme in these places, which is soon and small."""
    if "/finish" in endpoint.path and is_over(service):
        service.attempt, service.token = service.assign()
    if endpoint.path.endswith("/end"):
        service.begin_call()
    body = replaced(endpoint.body(service), changed, EXTREMES[name])
    began = time.process_time()
    response = send(service, endpoint, body)
    what = f"{name} at {changed}"
    assert response.status_code < 500, f"{what}: {response.text[:500]}"
    assert len(response.content) < MOST_BYTES_PER_ITEM, what
    assert time.process_time() - began < 10, what
    return response


UNKNOWN = {f"unknown {n}": [n, {}, None, "a"][n % 4] for n in range(5_000)}
#: Values of which each part is wrong. A body may have a million (`MAX_MARKS`), and an error takes
#: microseconds to make and to list.
MANY_WRONG: list[Json] = [
    UNKNOWN,
    [UNKNOWN] * 3,
    [{}] * 5_000,
    [{"unknown": 0}] * 500,
    [[0.5] * 60] * 60,
]


@each_endpoint
def test_a_wrong_body_is_refused_after_a_few_errors(endpoint: Endpoint) -> None:
    body = endpoint.body(SimpleNamespace(attempt="att_1", token=1, experiment="exp_1"))  # type: ignore[arg-type]
    for place in places(body):
        found = at(body, place)
        tried = [*MANY_WRONG, *widened(found)]
        counts = [errors_in(endpoint, replaced(body, [place], wrong)) for wrong in tried]
        assert max(counts) <= 10, f"{place}: {counts}"


def widened(value: Json) -> Iterator[Json]:
    """An object with unknown fields beside its own, or a list of many wrong items."""
    if isinstance(value, dict):
        yield value | UNKNOWN
    if isinstance(value, list) and isinstance(value[0], dict):
        yield [value[0] | {"unknown": 0}] * 50
        yield [dict.fromkeys(value[0])] * 50
    elif isinstance(value, list):
        yield [0.5] * 50


def errors_in(endpoint: Endpoint, body: Json) -> int:
    try:
        endpoint.model.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    return 0


def test_an_answer_names_unknown_fields_beside_what_else_is_wrong(service: Service) -> None:
    body = batch_body(service) | UNKNOWN | {"epoch": -1}
    answered_ = service.api.post("/v1/batches", json=body).json()
    assert {e["pointer"] for e in answered_["errors"]} == {
        "/epoch",
        *(f"/unknown {n}" for n in range(3)),
    }
    body = batch_body(service) | {"metadata": {str(n): 0 for n in range(17)}}
    errors = service.api.post("/v1/batches", json=body).json()["errors"]
    assert [(e["pointer"], e["code"]) for e in errors] == [("/metadata", "too_long")]


def is_over(service: Service) -> bool:
    """Whether the worker's attempt has ended."""
    with service.context.db.read() as session:
        return session.get_one(schema.Attempt, service.attempt).finished_at is not None


def is_refused(endpoint: Endpoint, body: Json) -> bool:
    """Whether a body is refused before anything looks at what it says."""
    try:
        endpoint.model.model_validate(body)
    except ValidationError:
        return True
    return False


def assert_lists_are_small(service: Service) -> None:
    lists = [
        "batches", "searches", "experiments", "measurements", "workers", "environments",
        "webhooks",
    ]  # fmt: skip
    for path in [*(f"/v1/{name}" for name in lists), "/v1/reports/execution"]:
        size = "" if path.endswith(("workers", "environments", "execution")) else "?limit=200"
        response = service.api.get(path + size)
        assert response.status_code == 200, f"{path}: {response.text[:500]}"
        for item in response.json()["data"]:
            assert len(json.dumps(item)) < MOST_BYTES_PER_ITEM, path


#: What reads a request before its fields are looked at.
UNREADABLE = {
    "nested": b"[" * 100_000,
    "long integer": b'{"a": ' + b"9" * 5_000 + b"}",
    "no text": b'{"a": "\xff\xfe"}',
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_body_that_cannot_be_read_is_malformed(service: Service, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = service.api.post("/v1/batches", content=content, headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "malformed_json")


PARAMETERS = [
    "0",
    "-1",
    str(2**64),
    "9" * 400,
    "9" * 5_000,
    "1e999999999",
    "NaN",
    "Infinity",
    "",
    "%20",
    "a%00b",
    "%ff",
    "%ed%a0%80",
    "x" * 10_000,
    "..%2F..%2Fetc",
    "0001-01-01",
    "9999-12-31",
    "999999-12-31",
]


def test_no_parameter_breaks_the_service(service: Service) -> None:
    seen: set[str] = set()
    for parameter in parameters(service):
        if (kind := json.dumps(parameter.described, sort_keys=True)) not in seen:
            seen.add(kind)
            assert_harmless(service, parameter)


@pytest.mark.slow
def test_no_parameter_of_any_endpoint_breaks_the_service(service: Service) -> None:
    for parameter in parameters(service):
        assert_harmless(service, parameter)


@dataclass(frozen=True)
class Parameter:
    """A parameter of an endpoint, in its path, its query or its headers."""

    method: str
    path: str
    name: str
    within: str
    described: Json


def parameters(service: Service) -> Iterator[Parameter]:
    described = service.api.app.openapi()  # type: ignore[attr-defined]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            for given in operation.get("parameters", ()):
                yield Parameter(method, path, given["name"], given["in"], given["schema"])


def assert_harmless(service: Service, parameter: Parameter) -> None:
    known = {"batch_id": "b", "search_id": service.search, "number": "0", "name": "count"}
    for extreme in PARAMETERS:
        url, headers = parameter.path, {"accept": "application/json"}
        if parameter.within == "path":
            url = url.replace(f"{{{parameter.name}}}", extreme)
        elif parameter.within == "query":
            url += f"?{parameter.name}={extreme}"
        else:
            headers[parameter.name] = extreme
        for other in re.findall(r"{(\w+)}", url):
            url = url.replace(f"{{{other}}}", known.get(other, "x"))
        response = service.api.request(parameter.method, url, headers=headers)
        what = f"{parameter.method} {url[:200]} {extreme[:20]}"
        assert response.status_code < 500, f"{what}: {response.text[:500]}"
        assert len(response.content) < MOST_BYTES_PER_ITEM, what


@pytest.mark.parametrize("key", [10**400, "a\x00", "x" * 1_000, [1], None, -1, "\ud800"])
def test_a_forged_cursor_is_refused(service: Service, key: Json) -> None:
    given = [service.api.post("/v1/searches", json=search_body()) for _ in range(2)]
    assert all(response.status_code == 201 for response in given)
    cursor = service.api.get("/v1/searches?limit=1").json()["next_cursor"]
    _, bound_to = json.loads(base64.urlsafe_b64decode(cursor))
    forged = base64.urlsafe_b64encode(json.dumps([key, bound_to]).encode()).decode()
    response = service.api.get("/v1/searches", params={"cursor": forged})
    assert response.status_code == 400, response.text
    assert response.json()["code"] == "invalid_parameter"


def test_a_name_that_no_answer_can_hold_is_refused(service: Service) -> None:
    headers = {"content-type": "application/json"}
    for name in ("\ud800", "x" * 100_000):
        content = json.dumps({name: 1})
        response = service.api.post("/v1/batches", content=content, headers=headers)
        assert response.status_code == 422
        assert len(response.content) < 10_000


def test_a_cap_that_an_earlier_version_stored_makes_no_list_huge(service: Service) -> None:
    made = service.api.post("/v1/batches", json=batch_body(service))
    assert made.status_code == 202
    stored = {"max_cost_usd": "1e999999999", "max_gpu_hours": 1e300}
    with service.context.db.write() as session:
        row = session.get_one(schema.Batch, made.json()["id"])
        row.options = row.options | stored
        session.get_one(schema.Search, service.search).caps = dict(stored)
    shown = service.api.get("/v1/batches").json()["data"][0]
    assert {float(cap["limit"]) for cap in shown["caps"]} == {1e9}
    assert_lists_are_small(service)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("0E-9", "0"),
        ("1E-7", "0.0000001"),
        ("4.1234567899", "4.123456789"),
        (12.5, "12.5"),
        (5, "5"),
        ("1000000000", "1000000000"),
    ],
)
def test_what_is_left_of_a_cap_is_accepted(service: Service, sent: Json, stored: str) -> None:
    body = batch_body(service)
    response = service.api.post(
        "/v1/batches", json=body | {"options": OPTIONS | {"max_cost_usd": sent}}
    )
    assert response.status_code == 202, response.text
    assert Decimal(response.json()["options"]["max_cost_usd"]) == Decimal(stored)


@pytest.mark.parametrize(
    ("values", "mean"), [([1.7e308, 1.7e308], 1.7e308), ([1.7e308, -1.7e308], 0.0)]
)
def test_metrics_whose_sum_is_beyond_a_float_have_a_mean(values: list[float], mean: float) -> None:
    sample = Sample.of(values)
    assert sample is not None
    assert sample.mean == pytest.approx(mean)
    assert sample.spread is not None


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


@pytest.mark.parametrize(
    "model", sorted({*models(Request), *models(Manifest)}, key=lambda m: m.__name__)
)
def test_every_field_of_what_comes_in_is_bounded(model: type[BaseModel]) -> None:
    described = model.model_json_schema()
    found = {model.__name__: described, **described.get("$defs", {})}
    assert [f"{name}{at_}" for name, d in found.items() for at_ in unbounded(d)] == []


_NUMBER = [{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}]
#: By the type of a value, what its schema must say: one of each set.
BOUNDS: dict[str | None, list[set[str]]] = {
    "integer": _NUMBER,
    "number": _NUMBER,
    "string": [{"maxLength"}],
    "array": [{"maxItems"}],
    "object": [{"maxProperties", "properties"}],
}


def unbounded(described: Json, where: str = "") -> Iterator[str]:
    """Places of a schema that say neither how long nor how large a value may be."""
    for option in described.get("anyOf", ()):
        yield from unbounded(option, where)
    kind = described.get("type")
    if {"enum", "const", "anyOf", "$ref"} & described.keys() or kind in ("boolean", "null"):
        return
    if not all(either & described.keys() for either in BOUNDS.get(kind, [set()])):
        yield where
    if kind == "array":
        yield from unbounded(described.get("items", {}), f"{where}/items")
    if kind == "object":
        for name, below in described.get("properties", {}).items():
            yield from unbounded(below, f"{where}/{name}")
        if "maxProperties" in described:
            yield from unbounded_names(described, where)


def unbounded_names(described: Json, where: str) -> Iterator[str]:
    """The same of an object whose names the schema does not list."""
    values = described.get("additionalProperties", {})
    if values is True:  # settings: their size as a whole is bounded
        if "KiB" not in described.get("description", ""):
            yield f"{where}/values"
        return
    if "maxLength" not in described.get("propertyNames", {}):
        yield f"{where}/names"
    yield from unbounded(values, f"{where}/values")


def test_a_field_without_bounds_is_found() -> None:
    class Careless(BaseModel):
        number: int
        amount: float
        text: str
        texts: list[Annotated[str, Field(max_length=3)]]
        names: dict[str, bool]
        anything: Any
        settings: dict[str, Any]

    fields = ("number", "amount", "text", "texts", "names", "anything", "settings")
    assert list(unbounded(Careless.model_json_schema())) == [f"/{name}" for name in fields]
