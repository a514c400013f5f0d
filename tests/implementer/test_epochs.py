"""Epochs through the API: how much one may hold, and how much one request reads and answers."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from assay.client import Client
from assay.contracts.batch import MAX_THINKING, IdeaRequest
from assay.contracts.search import MAX_EPOCH_BYTES, bytes_of
from services.implementer.context import Context

Json = dict[str, Any]
IDEA = {"text": "Count in twos."}
#: Ideas of this kind fill an epoch to about 15 of the 16 MiB it may hold.
THOUGHT_OUT = {"text": "Count in twos.", "thinking": "y" * MAX_THINKING}
ALMOST_FULL = 30


def new_search(api: TestClient, epochs: int = 100, batch_size: int = 1, **more: Any) -> str:
    body = {"environment": "count", "profile": "tiny", "strategy": "s"}
    made = api.post(
        "/v1/searches", json=body | {"epochs": epochs, "batch_size": batch_size} | more
    )
    assert made.status_code == 201, made.text
    search: str = made.json()["id"]
    return search


def put(api: TestClient, search: str, number: int, *ideas: Json) -> Any:
    path = f"/v1/searches/{search}/epochs/{number}"
    return api.put(path, json={"ideas": list(ideas) or [IDEA]})


def stored(api: TestClient, epochs: int) -> str:
    search = new_search(api)
    for number in range(epochs):
        assert put(api, search, number).status_code == 201
    return search


def page(api: TestClient, search: str, **query: Any) -> Json:
    answer = api.get(f"/v1/searches/{search}/epochs", params=query)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def numbers(body: Json) -> list[int]:
    return [epoch["number"] for epoch in body["data"]]


def test_epochs_come_in_pages_of_twenty(api: TestClient) -> None:
    search = stored(api, 41)
    first = page(api, search)
    assert numbers(first) == list(range(20))
    assert numbers(page(api, search, limit=200)) == list(range(20)), "a larger limit is cut"
    second = page(api, search, cursor=first["next_cursor"])
    assert numbers(second) == list(range(20, 40))
    last = page(api, search, cursor=second["next_cursor"])
    assert numbers(last) == [40]
    assert last["next_cursor"] is None


def test_a_last_page_that_is_full_has_no_cursor(api: TestClient) -> None:
    search = stored(api, 4)
    first = page(api, search, limit=2)
    assert numbers(first) == [0, 1]
    last = page(api, search, limit=2, cursor=first["next_cursor"])
    assert numbers(last) == [2, 3]
    assert last["next_cursor"] is None


def test_a_cursor_belongs_to_one_search(api: TestClient) -> None:
    cursor = page(api, stored(api, 2), limit=1)["next_cursor"]
    path = f"/v1/searches/{stored(api, 2)}/epochs"
    answer = api.get(path, params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_parameter")


def test_a_page_ends_before_its_ideas_exceed_the_size_of_an_epoch(api: TestClient) -> None:
    search = new_search(api, batch_size=ALMOST_FULL)
    for number, ideas in enumerate(([IDEA], [THOUGHT_OUT] * ALMOST_FULL, [THOUGHT_OUT] * 4)):
        assert put(api, search, number, *ideas).status_code == 201
    first = api.get(f"/v1/searches/{search}/epochs")
    assert len(first.content) < MAX_EPOCH_BYTES + 10_000
    assert numbers(first.json()) == [0, 1]
    last = page(api, search, cursor=first.json()["next_cursor"])
    assert numbers(last) == [2]
    assert last["next_cursor"] is None


def test_an_epoch_holds_at_most_so_many_bytes(api: TestClient) -> None:
    search = new_search(api, batch_size=2 * ALMOST_FULL)
    answer = put(api, search, 0, *[THOUGHT_OUT] * (ALMOST_FULL + 2))
    assert (answer.status_code, answer.json()["code"]) == (422, "epoch_too_large")
    assert answer.json()["errors"][0]["pointer"] == "/ideas"
    assert "shorten `thinking`" in answer.json()["detail"]
    assert page(api, search)["data"] == []


def test_the_size_of_ideas_counts_every_field() -> None:
    parents = ["p" * 64] * 64
    idea = IdeaRequest(text="é" * 100, client_key="k" * 50, parents=parents, thinking="t" * 300)
    assert bytes_of([idea, idea]) >= 2 * (200 + 50 + 64 * 64 + 300)


def test_an_epoch_has_at_most_as_many_ideas_as_a_batch_of_the_search(api: TestClient) -> None:
    search = new_search(api, batch_size=2)
    answer = put(api, search, 0, IDEA, IDEA, IDEA)
    assert (answer.status_code, answer.json()["code"]) == (422, "epoch_too_large")
    assert "`batch_size`" in answer.json()["detail"]
    assert put(api, search, 0, IDEA, IDEA).status_code == 201


class EpochReads:
    """The statements that read ideas of epochs."""

    def __init__(self, context: Context) -> None:
        self.statements: list[str] = []
        event.listen(context.db.engine, "before_cursor_execute", self._note)

    def _note(self, _c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "epoch.ideas" in statement:
            self.statements.append(statement)


@pytest.mark.parametrize("number", [29, 30])
def test_storing_an_epoch_reads_no_other(api: TestClient, context: Context, number: int) -> None:
    search = stored(api, 30)
    reads = EpochReads(context)
    assert put(api, search, number).status_code == (200 if number == 29 else 201)
    assert reads.statements
    assert all("epoch.number = " in statement for statement in reads.statements)


def test_a_search_is_shown_without_reading_ideas(api: TestClient, context: Context) -> None:
    search = stored(api, 2)
    assert api.post(f"/v1/searches/{search}/epochs/0/batch").status_code == 202
    reads = EpochReads(context)
    assert api.post(f"/v1/searches/{search}/cancel").json()["epochs_finished"] == 1
    assert api.get(f"/v1/searches/{search}").json()["best"][0]["epoch"] == 0
    (listed,) = api.get("/v1/searches").json()["data"]
    assert listed["epochs_finished"] == 1
    assert reads.statements == []


def test_a_page_of_searches_asks_for_their_epochs_once(api: TestClient, context: Context) -> None:
    for _ in range(5):
        stored(api, 1)
    asked: list[str] = []
    engine = context.db.engine
    event.listen(engine, "before_cursor_execute", lambda _c, _cu, text, *_: asked.append(text))
    assert len(api.get("/v1/searches").json()["data"]) == 5
    assert len([text for text in asked if "epoch.number" in text]) == 1


def test_the_client_follows_the_pages(api: TestClient) -> None:
    search = stored(api, 21)

    def forward(request: httpx2.Request) -> httpx2.Response:
        answer = api.get(request.url.raw_path.decode())
        return httpx2.Response(answer.status_code, json=answer.json())

    http_client = httpx2.Client(transport=httpx2.MockTransport(forward))
    client = Client("http://testserver", http_client=http_client)
    assert [epoch.number for epoch in client.searches.epochs(search)] == list(range(21))
