"""Calls of a search's ideator over HTTP: recorded before they are made, capped, kept, told."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from starlette.testclient import TestClient

from assay.contracts.search import MAX_ANSWER, MAX_EPOCH_BYTES
from tests.implementer.test_epochs import new_search

CALL = {
    "epoch": 0, "place": "0.0.0", "operator": "seed", "asked": 8, "number": 1,
    "request_hash": "a" * 64, "prompt_version": "v1", "input_tokens": 1000,
    "output_tokens": 1000, "is_replay": False, "loop": "loop_1",
}  # fmt: skip
ANSWER = {
    "ideas": 6, "unread": 2, "stop": "end", "text": "[Experiment] …",
    "thinking": "In private.", "thinking_length": 2000,
}  # fmt: skip
END = {
    "state": "returned", "loop": "loop_1", "input_tokens": 200_000, "cached_input_tokens": 0,
    "cache_write_tokens": 0, "output_tokens": 0, "seconds": 1.5, "answer": ANSWER,
}  # fmt: skip
#: 5 dollars per million tokens of input, 25 of output: a call as above costs 1, and is expected
#: to cost 0.03.
MODEL = "anthropic:claude-opus-4-5"


def begin(api: TestClient, search: str, name: str, **changes: Any) -> Any:
    return api.put(f"/v1/searches/{search}/calls/{name}", json=CALL | changes)


def end(api: TestClient, search: str, name: str, **changes: Any) -> Any:
    answer = {**ANSWER, **changes.pop("answer")} if changes.get("answer") else ANSWER
    body = END | {"answer": answer} | changes
    return api.put(f"/v1/searches/{search}/calls/{name}/end", json=body)


def make(api: TestClient, search: str, name: str, **changes: Any) -> None:
    assert begin(api, search, name, **changes).status_code == 201
    assert end(api, search, name).status_code == 200


def listed(api: TestClient, search: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/searches/{search}/calls", params=query).json()[
        "data"
    ]
    return found


def spent(api: TestClient, search: str) -> dict[str, Any]:
    used: dict[str, Any] = api.get(f"/v1/searches/{search}").json()["ideator_usage"]
    return used


def test_a_call_is_recorded_before_it_is_made_and_its_answer_kept_once(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL)
    assert [begin(api, search, "call_1").status_code for _ in range(2)] == [201, 200]
    (open_,) = listed(api, search)
    assert (open_["state"], open_["reserved_usd"], open_["text"]) == ("calling", "0.03", None)
    used = spent(api, search)
    assert (used["calls"], used["under_way"], used["cost_usd"]) == (1, 1, "0")
    for _ in range(2):
        assert end(api, search, "call_1").status_code == 200
    (call,) = listed(api, search)
    assert {name: call[name] for name in ANSWER} == ANSWER
    assert (call["state"], call["cost_usd"], call["seconds"]) == ("returned", "1", 1.5)
    body = api.get(f"/v1/searches/{search}").json()
    assert (body["answers"], body["answers_unread"]) == (1, 1)
    assert (spent(api, search)["calls"], spent(api, search)["cost_usd"]) == (1, "1")
    (event,) = api.get(f"/v1/searches/{search}/events").json()["data"]
    assert event["type"] == "search.answer_unread"
    assert event["data"] == {"call": "call_1", "epoch": 0, "asked": 8, "ideas": 6, "unread": 2}


def test_calls_are_found_by_epoch_and_by_what_came_of_them(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL)
    make(api, search, "call_1")
    assert begin(api, search, "call_2", epoch=1).status_code == 201
    assert end(api, search, "call_2", answer={"unread": 0}).status_code == 200
    assert begin(api, search, "call_3", epoch=1).status_code == 201
    failed = {"state": "failed", "loop": "loop_1", "code": "rate_limited", "message": "slow down"}
    ended = api.put(f"/v1/searches/{search}/calls/call_3/end", json=failed).json()
    assert (ended["code"], ended["message"]) == ("rate_limited", "slow down")

    def ids(**query: Any) -> list[str]:
        return [call["id"] for call in listed(api, search, **query)]

    assert ids() == ["call_1", "call_2", "call_3"]
    assert ids(epoch=1) == ["call_2", "call_3"]
    assert ids(answered=True) == ["call_1", "call_2"]
    assert ids(unread=True) == ["call_1"]


def test_an_id_stands_for_one_call_of_one_search(api: TestClient) -> None:
    search, other = new_search(api), new_search(api)
    make(api, search, "call_1")
    for refused in (
        begin(api, search, "call_1", request_hash="b" * 64),
        begin(api, other, "call_1"),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "call_exists")
    assert end(api, other, "call_1").status_code == 404
    assert begin(api, "srch_none", "call_2").status_code == 404
    assert end(api, search, "call_2").status_code == 404
    assert listed(api, other) == []


def test_a_call_that_nobody_ended_is_charged_when_another_loop_asks(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL)
    begin(api, search, "call_1")
    begin(api, search, "call_2", place="0.0.1")
    assert begin(api, search, "call_3", loop="loop_2").status_code == 201
    states = {call["id"]: (call["state"], call["cost_usd"]) for call in listed(api, search)}
    assert states == {
        "call_1": ("interrupted", "0.03"),
        "call_2": ("interrupted", "0.03"),
        "call_3": ("calling", None),
    }
    assert spent(api, search)["estimated_usd"] == "0.06"
    # It was under way after all.
    assert end(api, search, "call_1").status_code == 200
    assert spent(api, search)["cost_usd"] == "1.03"


def test_calls_of_a_loop_that_is_gone_do_not_hold_a_cap_for_ever(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL, caps={"max_cost_usd": "0.05"})
    for number in range(2):
        assert begin(api, search, f"call_{number}", place=f"0.0.{number}").status_code == 201
    assert begin(api, search, "call_3", place="0.0.3").json()["code"] == "calls_under_way"
    assert begin(api, search, "call_4", loop="loop_2").json()["code"] == "spend_cap"


def test_only_the_loop_that_made_a_call_ends_it(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL)
    begin(api, search, "call_1")
    refused = end(api, search, "call_1", loop="loop_2", input_tokens=0)
    assert (refused.status_code, refused.json()["code"]) == (409, "call_of_another_loop")
    assert "loop_1" not in api.get(f"/v1/searches/{search}/calls").text
    assert end(api, search, "call_1").json()["cost_usd"] == "1"


def test_absurd_numbers_of_tokens_are_refused(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL)
    assert begin(api, search, "call_1", input_tokens=2**40).status_code == 422
    begin(api, search, "call_1")
    assert end(api, search, "call_1", output_tokens=2**40).status_code == 422


def test_a_search_that_has_ended_begins_no_call_and_keeps_the_answers_that_come(
    api: TestClient,
) -> None:
    search = new_search(api, ideator=MODEL)
    begin(api, search, "call_1")
    api.post(f"/v1/searches/{search}/cancel")
    assert listed(api, search)[0]["state"] == "interrupted"
    refused = begin(api, search, "call_2")
    assert (refused.status_code, refused.json()["code"]) == (409, "search_ended")
    assert end(api, search, "call_1").json()["text"] == ANSWER["text"]


@pytest.mark.parametrize("name", ["max_cost_usd", "max_ideator_cost_usd"])
def test_no_call_begins_once_a_cap_is_reached(api: TestClient, name: str) -> None:
    search = new_search(api, ideator=MODEL, caps={name: "1.02"})
    make(api, search, "call_1")
    assert begin(api, search, "call_2", place="0.0.1").status_code == 201
    # What is under way may use the rest up, or leave some of it.
    waits = begin(api, search, "call_3", place="0.0.2")
    assert (waits.status_code, waits.json()["code"]) == (409, "calls_under_way")
    assert end(api, search, "call_2").status_code == 200
    refused = begin(api, search, "call_3", place="0.0.2")
    assert (refused.status_code, refused.json()["code"]) == (409, "spend_cap")
    assert "has used 2 of 1.02 USD" in refused.json()["detail"]
    assert begin(api, search, "call_4", is_replay=True).status_code == 201
    assert Decimal(spent(api, search)["cost_usd"]) == 2


def test_the_cap_of_the_executor_is_not_the_ideators(api: TestClient) -> None:
    search = new_search(api, ideator=MODEL, caps={"max_executor_cost_usd": "0.5"})
    make(api, search, "call_1")
    assert begin(api, search, "call_2").status_code == 201


@pytest.mark.parametrize("name", ["max_cost_usd", "max_ideator_cost_usd"])
def test_a_cap_on_an_ideator_without_a_price_is_refused(api: TestClient, name: str) -> None:
    unpriced = {"ideator": "openai:nobody-knows", "caps": {name: "5"}}
    request = {"environment": "count", "profile": "tiny", "strategy": "s", "epochs": 1,
               "batch_size": 1}  # fmt: skip
    refused = api.post("/v1/searches", json=request | unpriced)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == f"/caps/{name}"
    assert api.get("/v1/searches").json()["data"] == []


def test_calls_come_in_pages_of_bounded_size(api: TestClient) -> None:
    search = new_search(api)
    largest = MAX_EPOCH_BYTES // MAX_ANSWER
    names = [f"call_{number:02d}" for number in range(largest + 2)]
    for number, name in enumerate(names):
        assert begin(api, search, name, place=str(number)).status_code == 201
        assert end(api, search, name, answer={"text": "x" * MAX_ANSWER}).status_code == 200
    first = api.get(f"/v1/searches/{search}/calls").json()
    assert largest - 1 <= len(first["data"]) <= largest
    rest = listed(api, search, cursor=first["next_cursor"])
    assert [call["id"] for call in [*first["data"], *rest]] == names


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "a\x00"}, {"text": "x" * (MAX_ANSWER + 1)}, {"unread": -1}, {"stop": "perhaps"},
    ],
)  # fmt: skip
def test_a_wrong_answer_is_refused(api: TestClient, changes: dict[str, Any]) -> None:
    search = new_search(api)
    assert begin(api, search, "call_1", operator="guess").status_code == 422
    assert begin(api, search, "call_1").status_code == 201
    assert end(api, search, "call_1", answer=changes).status_code == 422
    assert listed(api, search, answered=True) == []
