"""Decisions of asynchronous strategies: stored once, before there are ideas."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from tests.implementer.test_epochs import IDEA, Json, new_search, page, put

ASK = {"operator": "seed", "count": 2, "seed": 7}


def decide(api: TestClient, search: str, number: int, **body: Any) -> Any:
    path = f"/v1/searches/{search}/epochs/{number}/decision"
    return api.put(path, json=body or {"asks": [ASK]})


def test_a_decision_is_stored_once_and_then_gets_its_ideas(api: TestClient) -> None:
    search = new_search(api, batch_size=2)
    made = decide(api, search, 0)
    assert made.status_code == 201, made.text
    assert (made.json()["state"], made.json()["ideas"]) == ("decided", [])
    assert made.json()["decision"]["asks"] == [ASK | {"parents": []}]
    assert decide(api, search, 0).status_code == 200
    other = decide(api, search, 0, asks=[ASK | {"count": 1}])
    assert (other.status_code, other.json()["code"]) == (409, "epoch_exists")
    assert put(api, search, 0, IDEA, IDEA).status_code == 201
    assert put(api, search, 0, IDEA, IDEA).status_code == 200
    assert put(api, search, 0, IDEA).json()["code"] == "epoch_exists"
    assert decide(api, search, 0).status_code == 200, "its ideas do not change what was decided"
    (epoch,) = page(api, search)["data"]
    assert (epoch["state"], len(epoch["ideas"])) == ("proposed", 2)
    batch = api.post(f"/v1/searches/{search}/epochs/0/batch")
    assert batch.status_code == 202, batch.text


def test_only_the_next_number_is_decided(api: TestClient) -> None:
    search = new_search(api, epochs=2, batch_size=2)
    assert decide(api, search, 1).json()["code"] == "epoch_out_of_order"
    assert decide(api, search, 0).status_code == 201
    assert decide(api, search, 1).status_code == 201, "several wait for their ideas at once"
    assert decide(api, search, 2).json()["code"] == "epoch_out_of_order"
    assert put(api, search, 1, IDEA).status_code == 201, "ideas come in any order"
    assert put(api, search, 0, IDEA).status_code == 201
    api.post(f"/v1/searches/{search}/cancel")
    assert decide(api, search, 0).status_code == 200


def test_an_epoch_without_ideas_is_not_submitted(api: TestClient) -> None:
    search = new_search(api, batch_size=2)
    decide(api, search, 0)
    refused = api.post(f"/v1/searches/{search}/epochs/0/batch")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert api.get(f"/v1/searches/{search}").json()["epochs_finished"] == 0
    shown = api.get(f"/searches/{search}").text
    assert "2 seed" in shown
    assert "is-decided" in shown


def test_a_decision_is_refused_that_cannot_be_carried_out(api: TestClient) -> None:
    search = new_search(api, batch_size=2)
    again: Json = {"experiments": ["exp_a"], "seeds": 2}
    for body, code in [
        ({"asks": [ASK | {"count": 3}]}, "epoch_too_large"),
        ({"seen": ["exp_a"]}, "invalid"),
        ({"asks": [ASK], "remeasure": again}, "invalid"),
        ({"asks": [ASK | {"operator": "remeasure"}]}, "invalid"),
    ]:
        refused = decide(api, search, 0, **body)
        assert refused.status_code == 422, refused.text
        assert refused.json()["code"] == code or code == "invalid", refused.text


def test_only_what_was_decided_to_be_measured_again_is_named_by_its_codebase(
    api: TestClient,
) -> None:
    search = new_search(api, batch_size=2)
    named = IDEA | {"codebase": "0" * 64}
    refused = put(api, search, 0, named)
    assert (refused.status_code, refused.json()["code"]) == (422, "executor_not_none")
    made = decide(api, search, 0, remeasure={"experiments": ["exp_a"], "seeds": 2})
    assert made.status_code == 201
    again = named | {"operator": "remeasure", "parents": ["exp_a"]}
    for idea in (IDEA, named, again | {"parents": ["exp_b"]}, again):
        refused = put(api, search, 0, idea)
        assert (refused.status_code, refused.json()["code"]) == (422, "executor_not_none")
