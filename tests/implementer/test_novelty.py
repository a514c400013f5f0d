"""Ideas in the words of earlier ones are flagged or skipped before anything is spent."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from assay.domain.similarity import Effort, read
from assay.storage import schema
from services.implementer import earlier
from services.implementer.app import create_app
from services.implementer.context import Context
from tests.implementer.conftest import batch

FOURS = "Count in steps of four instead of one, up to the same bound as before."
AGAIN = "Count in steps of four instead of one, up to the same bound as before!"
OTHER = "Draw the numbers at random, and keep the largest that was seen."


def submit(api: TestClient, *texts: str, query: str = "", **options: Any) -> dict[str, Any]:
    body = batch(*texts, options={"baseline_seeds": 0, **options})
    made = api.post(f"/v1/batches{query}", json=body)
    assert made.status_code in (200, 202), made.text
    found: dict[str, Any] = made.json()
    return found


def experiments(api: TestClient, batch_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/experiments?batch={batch_id}").json()["data"]
    return found


def test_a_warning_names_what_it_is_like(api: TestClient) -> None:
    first = experiments(api, submit(api, FOURS, OTHER)["id"])
    second = experiments(api, submit(api, AGAIN)["id"])
    assert [one["idea"]["similar"] for one in first] == [[], []]
    (alike,) = second[0]["idea"]["similar"]
    assert alike == {"experiment": first[0]["id"], "similarity": 1.0}
    assert second[0]["state"] == "submitted"


def test_a_skipped_idea_is_not_implemented_and_says_why(api: TestClient) -> None:
    made = experiments(api, submit(api, FOURS, AGAIN, OTHER, novelty="skip")["id"])
    assert [one["state"] for one in made] == ["submitted", "cancelled", "submitted"]
    failure = made[1]["failure"]
    assert (failure["stage"], failure["code"]) == ("implement", "near_duplicate")
    assert made[0]["id"] in failure["message"]
    assert api.get(f"/v1/implementations/{made[1]['implementation']}").json()["samples"] == []


def test_a_batch_of_nothing_new_is_finished_at_once(api: TestClient) -> None:
    submit(api, FOURS)
    body = submit(api, AGAIN, novelty="skip")
    assert body["finished_at"] is not None
    assert body["counts"]["cancelled"] == 1


def test_allow_looks_at_nothing(api: TestClient) -> None:
    made = experiments(api, submit(api, FOURS, AGAIN, novelty="allow")["id"])
    assert [one["idea"]["similar"] for one in made] == [[], []]


def test_the_threshold_is_the_submitters(api: TestClient) -> None:
    near = FOURS.replace("four", "nine").replace("bound", "limit")
    made = experiments(api, submit(api, FOURS, near, novelty_threshold=0.5)["id"])
    assert 0.5 <= made[1]["idea"]["similar"][0]["similarity"] < 0.8
    made = experiments(api, submit(api, near)["id"])
    assert made[0]["idea"]["similar"][0]["similarity"] == 1.0, "the one before, not the first"


def test_what_failed_or_was_cancelled_may_be_tried_again(
    api: TestClient, context: Context
) -> None:
    submit(api, FOURS)
    with context.db.write() as session:
        session.execute(update(schema.Experiment).values(state="failed"))
    (again,) = experiments(api, submit(api, AGAIN, novelty="skip")["id"])
    assert again["state"] == "submitted"


def test_what_was_remembered_and_failed_may_be_tried_again(
    api: TestClient, context: Context
) -> None:
    first = experiments(api, submit(api, FOURS)["id"])[0]["id"]
    (like,) = experiments(api, submit(api, AGAIN)["id"])
    assert like["idea"]["similar"][0]["experiment"] == first
    with context.db.write() as session:
        session.execute(update(schema.Experiment).values(state="cancelled"))
    (again,) = experiments(api, submit(api, AGAIN, novelty="skip")["id"])
    assert (again["state"], again["idea"]["similar"]) == ("submitted", [])


def test_earlier_ideas_are_read_once(
    api: TestClient, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner with thousands of them waited a quarter of a second for each batch."""
    submit(api, FOURS, OTHER)
    seen: list[str] = []

    def noting(texts: list[str], effort: Effort) -> dict[str, list[str] | None]:
        seen.extend(texts)
        return read(texts, effort)

    monkeypatch.setattr(earlier, "read", noting)
    submit(api, "Count downwards.")
    submit(api, "Count in pairs.")
    assert seen == [FOURS, OTHER, "Count downwards."]


def test_another_process_sees_what_this_one_took(api: TestClient, context: Context) -> None:
    submit(api, FOURS)
    other = Context(
        context.db, context.store, context.catalog, context.settings, variables=context.variables
    )
    with TestClient(create_app(other)) as elsewhere:
        made = experiments(elsewhere, submit(elsewhere, OTHER)["id"])
        assert made[0]["idea"]["similar"] == []
        (first,) = experiments(api, submit(api, "Count downwards.")["id"])
        (like,) = experiments(elsewhere, submit(elsewhere, "Count downwards!")["id"])
    assert like["idea"]["similar"][0]["experiment"] == first["id"]


def test_the_latest_ideas_are_compared_with(
    api: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier, "MOST_EARLIER", 2)
    monkeypatch.setattr(earlier, "MOST_ADDED", 3)
    submit(api, FOURS)
    submit(api, OTHER, "Count downwards.")
    assert similar(api, AGAIN), "there is room for some more"
    assert similar(api, AGAIN), "it was sent once more"
    submit(api, "Count in pairs.", "Count in words.")
    assert not similar(api, AGAIN)
    assert not similar(api, OTHER)


def test_a_batch_that_is_stored_while_others_are_read_is_read_once(
    api: TestClient, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted twice, and one copy of an idea stayed when that was cancelled."""
    submit(api, OTHER)
    latest = earlier.latest
    late: list[str] = []

    def meanwhile(session: Session, *of: Any) -> list[earlier.Idea]:
        if not late:
            late.append("")
            late[0] = submit(api, FOURS, novelty="allow")["id"]
        with context.db.read() as later:
            return latest(later, *of)

    monkeypatch.setattr(earlier, "latest", meanwhile)
    submit(api, "Count downwards.")
    assert len(similar(api, AGAIN)) == 1
    api.post(f"/v1/batches/{late[0]}/cancel")
    assert similar(api, AGAIN) == []


def test_an_owner_with_too_much_to_keep_takes_no_room_from_others(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    ideas = earlier.EarlierIdeas()
    sizes = {"a": 10, "b": 200, "c": 60}
    monkeypatch.setattr(earlier, "MOST_BYTES", 100)
    monkeypatch.setattr(earlier.Earlier, "look", lambda *_: None)
    monkeypatch.setattr(earlier.Earlier, "bytes", lambda self: sizes[self.owner])
    with context.db.read() as session:
        kept = {owner: ideas.of(session, owner, "count") for owner in "abc"}
        assert ideas.of(session, "a", "count") is kept["a"]
        assert ideas.of(session, "b", "count") is not kept["b"]
        sizes["a"] = 50
        ideas.of(session, "a", "count")
        assert ideas.of(session, "c", "count") is not kept["c"], "the one that asked least lately"


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_NEW"])
def test_without_memory_ideas_are_read_anew(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(earlier, limit, 0)
    submit(api, FOURS)
    submit(api, OTHER)
    assert similar(api, AGAIN)


def similar(api: TestClient, text: str) -> list[dict[str, Any]]:
    """What an idea is like, that is not submitted."""
    found: list[dict[str, Any]] = submit(api, text, query="?dry_run=true")["similar"]
    return found


def test_a_dry_run_says_it_before_anything_is_stored(api: TestClient) -> None:
    (first,) = experiments(api, submit(api, FOURS)["id"])
    said = submit(api, OTHER, AGAIN, OTHER, query="?dry_run=true")
    assert said["similar"] == [
        {"position": 1, "experiment": first["id"], "like_position": None, "similarity": 1.0},
        {"position": 2, "experiment": None, "like_position": 0, "similarity": 1.0},
    ]
    assert said["gpu_hours"] == 0
    assert (said["ideas"], said["measurements"]) == (3, 3)
    said = submit(api, OTHER, AGAIN, OTHER, query="?dry_run=true", novelty="skip")
    assert (said["ideas"], said["measurements"]) == (3, 1), "what is skipped is not measured"
    said = submit(api, AGAIN, query="?dry_run=true", novelty="skip")
    assert (said["measurements"], said["cost_usd"]) == (0, {"low": "0", "high": "0"})


def test_an_epoch_of_a_search_is_looked_at_too(api: TestClient) -> None:
    search = api.post(
        "/v1/searches",
        json={
            "environment": "count",
            "profile": "tiny",
            "strategy": "random",
            "seed": 0,
            "epochs": 2,
            "batch_size": 1,
            "caps": {"max_gpu_hours": 3},
        },
    ).json()
    assert search["caps"]["max_gpu_hours"] == 3
    for number in range(2):
        path = f"/v1/searches/{search['id']}/epochs/{number}"
        api.put(path, json={"ideas": [{"text": FOURS}]})
        made = api.post(f"{path}/batch", json={"baseline_seeds": 0, "novelty": "skip"}).json()
    (again,) = experiments(api, made["id"])
    assert again["state"] == "cancelled"
