"""Tokens of workers: looked up, remembered for a moment, and worth nothing once replaced."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from assay.storage import workers
from services.implementer import tokens
from services.implementer.context import Context
from tests.implementer.conftest import WORKER_TOKEN

URL = "/internal/v1/codebases/" + "0" * 64


def _status(api: TestClient, token: str) -> int:
    return api.get(URL, headers={"Authorization": f"Bearer {token}"}).status_code


def test_a_token_is_looked_up_once_in_a_while(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    by_token = workers.by_token
    monkeypatch.setattr(workers, "by_token", lambda s, t: asked.append(t) or by_token(s, t))
    clock = [100.0]
    monkeypatch.setattr(tokens.time, "monotonic", lambda: clock[0])
    found = context.tokens.look_up(WORKER_TOKEN)
    assert found is not None
    clock[0] += tokens.KEEP_SECONDS - 0.01
    assert context.tokens.remembered(WORKER_TOKEN) == found
    clock[0] += 0.02
    assert context.tokens.remembered(WORKER_TOKEN) is None
    assert asked == [WORKER_TOKEN]


def test_a_wrong_token_is_not_remembered(api: TestClient, context: Context) -> None:
    assert _status(api, "asw_of-nobody") == 401
    workers.admit(context.db, "late", "asw_of-nobody")
    assert _status(api, "asw_of-nobody") == 404


def test_a_replaced_token_is_refused_at_once(api: TestClient) -> None:
    assert _status(api, WORKER_TOKEN) == 404  # let in: there is no such codebase
    admitted = api.post("/v1/workers", json={"name": "w"})
    assert admitted.status_code == 201
    assert _status(api, WORKER_TOKEN) == 401
    assert _status(api, admitted.json()["token"]) == 404


def test_a_token_that_is_replaced_while_it_is_looked_up_is_not_remembered(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_token = workers.by_token

    def slow(session: Session, token: str) -> str | None:
        found = by_token(session, token)
        context.tokens.forget()  # it was replaced just now
        return found

    monkeypatch.setattr(workers, "by_token", slow)
    assert context.tokens.look_up(WORKER_TOKEN) is not None
    assert context.tokens.remembered(WORKER_TOKEN) is None
