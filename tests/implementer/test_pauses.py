"""Pauses of a search over HTTP: stored once per epoch, and told as events."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.implementer.test_epochs import new_search, put

REASON = {"code": "crashed", "failed": 3, "total": 4, "message": "Look at the log."}


@pytest.fixture
def search(api: TestClient) -> str:
    """A search whose only epoch so far is finished: its idea was cancelled."""
    made = new_search(api)
    put(api, made, 0)
    batch = api.post(f"/v1/searches/{made}/epochs/0/batch").json()["id"]
    api.post(f"/v1/batches/{batch}/cancel")
    return made


def pause(api: TestClient, search: str, number: int = 0, **changes: Any) -> Any:
    return api.post(f"/v1/searches/{search}/epochs/{number}/pause", json=REASON | changes)


def events(api: TestClient, search: str, **query: Any) -> list[tuple[str, Any]]:
    page = api.get(f"/v1/searches/{search}/events", params=query).json()
    told = [(event["type"], event["data"].get("epoch")) for event in page["data"]]
    return [(kind, epoch) for kind, epoch in told if not kind.startswith("search.epoch_")]


def test_a_pause_is_stored_once_and_told(api: TestClient, search: str) -> None:
    for message in ("Look at the log.", "Something else."):
        answer = pause(api, search, message=message)
        assert answer.status_code == 200, answer.text
    body = api.get(f"/v1/searches/{search}").json()
    (found,) = body["pauses"]
    assert body["state"] == "running"
    assert {name: found[name] for name in REASON} == REASON
    assert (found["epoch"], found["resumed_at"]) == (0, None)
    assert api.get("/v1/searches").json()["data"][0]["pauses"] == [found]
    for _ in range(2):
        resumed = api.post(f"/v1/searches/{search}/resume").json()["pauses"]
    assert resumed[0]["resumed_at"] is not None
    assert pause(api, search).json()["pauses"] == resumed, "not for the same epoch again"
    assert events(api, search) == [("search.paused", 0), ("search.resumed", 0)]


def test_events_stream_until_the_search_ends(api: TestClient, search: str) -> None:
    pause(api, search)
    api.post(f"/v1/searches/{search}/finish")
    api.post(f"/v1/searches/{search}/cancel")
    path, headers = f"/v1/searches/{search}/events", {"Accept": "text/event-stream"}
    streamed = api.get(path, headers=headers).text
    assert [line for line in streamed.splitlines() if line.startswith("event:")] == [
        "event: search.epoch_stored", "event: search.epoch_submitted",
        "event: search.paused", "event: search.finished",
    ]  # fmt: skip
    last = api.get(path).json()["data"][-1]["id"]
    assert events(api, search, after=last - 1) == [("search.finished", None)]
    assert api.get(path, headers=headers | {"Last-Event-ID": str(last)}).status_code == 204


def test_a_search_that_was_cancelled_in_a_pause_does_not_go_on(
    api: TestClient, search: str
) -> None:
    pause(api, search)
    api.post(f"/v1/searches/{search}/cancel")
    assert api.post(f"/v1/searches/{search}/resume").json()["pauses"][0]["resumed_at"] is None
    assert [kind for kind, _ in events(api, search)] == ["search.paused", "search.cancelled"]


def test_what_cannot_be_paused(api: TestClient, search: str) -> None:
    put(api, search, 1)
    for number in (1, 2):
        answer = pause(api, search, number)
        assert (answer.status_code, answer.json()["code"]) == (409, "epoch_not_finished")
    assert pause(api, search, failed=0).status_code == 422
    api.post(f"/v1/searches/{search}/cancel")
    assert pause(api, search).json()["code"] == "search_ended"
    assert api.post("/v1/searches/srch_none/resume").status_code == 404
    assert api.get("/v1/searches/srch_none/events").status_code == 404


def test_a_person_pauses_and_resuming_ends_every_pause(api: TestClient, search: str) -> None:
    for _ in range(2):
        (found,) = api.post(f"/v1/searches/{search}/pause").json()["pauses"]
    assert (found["reason"], found["epoch"], found["resumed_at"]) == ("person", None, None)
    assert len(pause(api, search).json()["pauses"]) == 2, "the loop was about to pause, too"
    resumed = api.post(f"/v1/searches/{search}/resume").json()["pauses"]
    assert all(each["resumed_at"] for each in resumed)
    api.post(f"/v1/searches/{search}/cancel")
    assert api.post(f"/v1/searches/{search}/pause").json()["code"] == "search_ended"


def test_a_finished_search_is_extended_and_runs_again(api: TestClient, search: str) -> None:
    path = f"/v1/searches/{search}"
    epochs = api.get(path).json()["epochs"]
    assert api.post(f"{path}/finish", json={"epochs": epochs + 1}).json()["state"] == "running"
    assert api.post(f"{path}/finish", json={"epochs": epochs}).json()["state"] == "finished"
    for _ in range(2):
        body = api.post(f"{path}/extend", json={"epochs": epochs + 2}).json()
        assert (body["state"], body["epochs"], body["finished_at"]) == (
            "running", epochs + 2, None,
        )  # fmt: skip
    for wrong in ({"epochs": epochs}, {"max_cost_usd": 3}, {}):
        assert api.post(f"{path}/extend", json=wrong).status_code == 422
    api.post(f"{path}/cancel")
    assert api.post(f"{path}/extend", json={"epochs": 99}).json()["code"] == "search_ended"
    streamed = api.get(f"{path}/events", headers={"Accept": "text/event-stream"}).text
    assert [line for line in streamed.splitlines() if line.startswith("event:")] == [
        "event: search.epoch_stored", "event: search.epoch_submitted", "event: search.finished",
        "event: search.extended", "event: search.cancelled",
    ]  # fmt: skip
