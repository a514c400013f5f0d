"""Requests that a page of another site makes a browser send change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from services.implementer.app import create_app
from services.implementer.context import Context
from tests.implementer.conftest import WORKER_TOKEN, batch, given_attempt

EVIL = "https://evil.example"
HERE = "http://testserver"
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "something-new"},
        {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "http://testserver:8001"},
        {"Origin": "http://[evil"},
    ],
)
def test_a_page_of_another_site_cannot_change_anything(
    api: TestClient, headers: dict[str, str]
) -> None:
    answers = [
        api.post("/v1/workers/w/remove", headers=headers),
        api.post("/v1/batches", json=batch(), headers=headers),
        api.put("/internal/v1/attempts/a/artifacts/b?lease_token=1", headers=headers),
    ]
    assert [(a.status_code, a.json()["code"]) for a in answers] == [(403, "cross_site")] * 3
    assert answers[0].headers["content-type"] == "application/problem+json"
    assert answers[0].headers["x-request-id"] == answers[0].json()["request_id"]
    assert api.get("/v1/workers/w").json()["state"] == "active"
    assert api.get("/v1/batches").json()["data"] == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": HERE},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy.example"},
        {"Origin": HERE},
        {"Origin": "http://TestServer"},
    ],
)
def test_programs_and_pages_of_this_address_are_let_in(
    api: TestClient, headers: dict[str, str]
) -> None:
    assert api.post("/v1/batches", json=batch(), headers=headers).status_code == 202
    assert api.post("/v1/workers/w/cordon", json={}, headers=headers).status_code == 200
    assert api.post("/v1/workers/w/uncordon", headers=headers).status_code == 200


def test_a_page_of_another_site_may_follow_a_link(api: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": EVIL}
    assert api.get("/v1/batches", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        {"data": {"name": "x"}},
        {"content": b"", "headers": {"Content-Type": FORM}},
        {"content": b'{"name": "x"}', "headers": {"Content-Type": "text/plain"}},
        {"content": b'{"name": "x"}', "headers": {"Content-Type": "application/jsonx"}},
        {"content": b'{"name": "x"}'},
        {"content": iter([b'{"name": "x"}'])},
        {"files": {"name": b"x"}},
    ],
)
def test_a_body_that_is_not_json_is_refused(api: TestClient, request_: dict[str, Any]) -> None:
    """What a form can send where the browser is too old to say where from."""
    for path in ("/v1/workers", "/v1/workers/w/remove"):
        answer = api.post(path, **request_)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
        assert "Content-Type: application/json" in answer.json()["detail"]
    assert api.get("/v1/workers/w").json()["state"] == "active"


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"]
)
def test_json_is_known_however_it_is_written(api: TestClient, kind: str) -> None:
    answer = api.post("/v1/workers", content=b'{"name": "x"}', headers={"Content-Type": kind})
    assert answer.status_code == 201


def test_workers_send_files_and_logs_as_they_are(api: TestClient, context: Context) -> None:
    attempt = given_attempt(api, context)
    token = {"Authorization": f"Bearer {WORKER_TOKEN}"}
    api.post(
        f"/internal/v1/attempts/{attempt.id}/claim",
        json={"lease_token": attempt.lease_token},
        headers=token,
    )
    for name in ("artifacts/model.bin", "logs/train"):
        answer = api.put(
            f"/internal/v1/attempts/{attempt.id}/{name}",
            params={"lease_token": attempt.lease_token}
            | ({"offset": 0} if "logs" in name else {}),
            content=b"\x00\x01",
            headers=token | {"Content-Type": "application/octet-stream"},
        )
        assert answer.status_code in (200, 204), answer.text


@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:8000", "127.0.0.1.nip.io", ""]
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(context: Context, host: str) -> None:
    with TestClient(create_app(context, here_only=True)) as api:
        headers = {"Host": host, "Sec-Fetch-Site": "same-origin"}
        for answer in (
            api.get("/v1/batches", headers=headers),
            api.post("/v1/batches", json=batch(), headers=headers),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "unknown_host")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:8000", "127.0.0.2", "[::1]:8000", "[::1]"]
)
def test_this_machine_is_let_in_by_its_addresses(context: Context, host: str) -> None:
    with TestClient(create_app(context, here_only=True)) as api:
        assert api.get("/healthz", headers={"Host": host}).status_code == 200


def test_a_server_that_others_reach_answers_to_any_name(api: TestClient) -> None:
    assert api.get("/healthz", headers={"Host": "assay.example"}).status_code == 200
