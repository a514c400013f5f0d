"""Nothing of a request is read before its sender has shown a key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.tokens import WorkerTokens
from tests.implementer.conftest import WORKER_TOKEN

JSON = {"Content-Type": "application/json"}
ANN = {"Authorization": "Bearer key-of-ann"}
WORKER = {"Authorization": f"Bearer {WORKER_TOKEN}"}
OWNERS = [
    ("POST", "/v1/batches"),
    ("POST", "/v1/searches"),
    ("PUT", "/v1/searches/s/epochs/0"),
    ("PATCH", "/v1/searches/s"),
    ("POST", "/v1/environments/count/baseline"),
    ("POST", "/v1/environments/count/codebases"),
    ("POST", "/v1/workers"),
]
WORKERS = [
    ("POST", "/internal/v1/workers"),
    ("POST", "/internal/v1/attempts/a/progress"),
    ("PUT", "/internal/v1/attempts/a/artifacts/b?lease_token=1"),
]


class Body:
    """A body that counts the pieces read of it."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in (b"[", b"]" * 100):
            self.read += 1
            yield piece


@pytest.fixture
def keyed(context: Context) -> Iterator[TestClient]:
    context.settings.api_keys = {"ann": SecretStr("key-of-ann")}
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize(("method", "path"), OWNERS + WORKERS)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer of-nobody"}])
def test_a_body_of_somebody_without_a_key_is_not_read(
    keyed: TestClient, method: str, path: str, headers: dict[str, str]
) -> None:
    body = Body()
    answer = keyed.request(method, path, content=body, headers={**JSON, **headers})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
    assert body.read == 0


def test_a_body_of_an_owner_is_read(keyed: TestClient) -> None:
    answer = keyed.request("POST", "/v1/batches", content=Body(), headers={**JSON, **ANN})
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


def test_the_key_of_an_owner_is_no_token_of_a_worker(keyed: TestClient) -> None:
    sent = keyed.post("/internal/v1/workers", json={}, headers=ANN)
    assert sent.status_code == 401
    assert keyed.post("/v1/batches", json={}, headers=WORKER).status_code == 401
    assert keyed.post("/internal/v1/workers", json={}, headers=WORKER).status_code == 422


def test_a_token_that_cannot_be_looked_up(context: Context) -> None:
    def broken(session: object, token: str) -> str | None:
        raise OperationalError("select", {}, Exception("gone"))

    context.tokens = WorkerTokens(context.db, by_token=broken)
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        answer = api.post("/internal/v1/workers", json={}, headers=WORKER)
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert answer.headers["retry-after"] == "5"
