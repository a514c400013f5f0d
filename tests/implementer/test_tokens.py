"""Tokens of workers: looked up, remembered for a moment, and worth nothing once replaced."""

from __future__ import annotations

from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from assay.storage import workers
from services.implementer.context import Context
from services.implementer.tokens import KEEP_SECONDS, WorkerTokens
from tests.implementer.conftest import WORKER_TOKEN

URL = "/internal/v1/codebases/" + "0" * 64


def _status(api: TestClient, token: str) -> int:
    return api.get(URL, headers={"Authorization": f"Bearer {token}"}).status_code


def test_a_token_is_looked_up_once_in_a_while(context: Context) -> None:
    asked = []

    def by_token(session: Session, token: str) -> str | None:
        asked.append(token)
        return workers.by_token(session, token)

    now = 100.0
    tokens = WorkerTokens(context.db, by_token=by_token, clock=lambda: now)
    found = tokens.look_up(WORKER_TOKEN)
    assert found is not None
    now += KEEP_SECONDS - 0.01
    assert tokens.remembered(WORKER_TOKEN) == found
    now += 0.02
    assert tokens.remembered(WORKER_TOKEN) is None
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
    context: Context,
) -> None:
    def slow(session: Session, token: str) -> str | None:
        found = workers.by_token(session, token)
        tokens.forget()  # it was replaced just now
        return found

    tokens = WorkerTokens(context.db, by_token=slow)
    assert tokens.look_up(WORKER_TOKEN) is not None
    assert tokens.remembered(WORKER_TOKEN) is None
