"""Answers of a search's ideator over HTTP: kept, counted and told."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from assay.contracts.search import MAX_ANSWER, MAX_EPOCH_BYTES
from tests.implementer.test_epochs import new_search

ANSWER = {
    "epoch": 0, "operator": "seed", "asked": 8, "ideas": 6, "unread": 2, "stop": "end",
    "text": "[Experiment] …", "thinking": "In private.",
}  # fmt: skip


def put(api: TestClient, search: str, name: str, **changes: Any) -> Any:
    return api.put(f"/v1/searches/{search}/answers/{name}", json=ANSWER | changes)


def kept(api: TestClient, search: str, **query: Any) -> list[str]:
    page = api.get(f"/v1/searches/{search}/answers", params=query).json()
    return [answer["id"] for answer in page["data"]]


def test_an_answer_is_kept_once_counted_and_told(api: TestClient) -> None:
    search = new_search(api)
    assert [put(api, search, "call_1").status_code for _ in range(2)] == [201, 200]
    assert put(api, search, "call_2", unread=0, thinking=None).status_code == 201
    body = api.get(f"/v1/searches/{search}").json()
    assert (body["answers"], body["answers_unread"]) == (2, 1)
    (event,) = api.get(f"/v1/searches/{search}/events").json()["data"]
    assert event["type"] == "search.answer_unread"
    assert event["data"] == {"answer": "call_1", "epoch": 0, "asked": 8, "ideas": 6, "unread": 2}
    first, second = api.get(f"/v1/searches/{search}/answers").json()["data"]
    assert {name: first[name] for name in ANSWER} == ANSWER
    assert second["thinking"] is None
    assert kept(api, search, unread=True) == ["call_1"]


def test_an_id_stands_for_one_answer(api: TestClient) -> None:
    search, other = new_search(api), new_search(api)
    assert put(api, search, "call_1").status_code == 201
    again = put(api, search, "call_1", text="another")
    assert (again.status_code, again.json()["code"]) == (409, "answer_exists")
    assert put(api, other, "call_1", text="another").status_code == 201
    assert put(api, "srch_none", "call_1").status_code == 404


def test_an_answer_is_kept_though_the_search_has_ended(api: TestClient) -> None:
    search = new_search(api)
    api.post(f"/v1/searches/{search}/cancel")
    assert put(api, search, "call_1").status_code == 201


def test_answers_come_in_pages_of_bounded_size(api: TestClient) -> None:
    search = new_search(api)
    largest = MAX_EPOCH_BYTES // MAX_ANSWER
    for number in range(largest + 2):
        assert put(api, search, f"call_{number:02d}", text="x" * MAX_ANSWER).status_code == 201
    first = api.get(f"/v1/searches/{search}/answers").json()
    assert largest - 1 <= len(first["data"]) <= largest
    rest = kept(api, search, cursor=first["next_cursor"])
    assert [answer["id"] for answer in first["data"]] + rest == [
        f"call_{number:02d}" for number in range(largest + 2)
    ]


@pytest.mark.parametrize(
    "changes",
    [{"text": "a\x00"}, {"text": "x" * (MAX_ANSWER + 1)}, {"unread": -1}, {"operator": "guess"}],
)
def test_a_wrong_answer_is_refused(api: TestClient, changes: dict[str, Any]) -> None:
    search = new_search(api)
    assert put(api, search, "call_1", **changes).status_code == 422
    assert kept(api, search) == []
