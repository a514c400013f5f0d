"""Batches over HTTP: submit, read, list, cancel, repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from assay.storage import calls, schema
from assay.storage.calls import CallStart, Payer
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from tests.implementer.conftest import batch


def submit(api: TestClient, *texts: str, **changes: Any) -> dict[str, Any]:
    response = api.post("/v1/batches", json=batch(*texts, **changes))
    assert response.status_code == 202, response.text
    body: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/batches/{body['id']}"
    return body


def test_a_batch_is_accepted_and_can_be_read(api: TestClient) -> None:
    body = submit(api, "one", "two", metadata={"who": "me"})
    assert body["counts"]["total"] == 2
    assert body["counts"]["submitted"] == 2
    assert set(body["counts"]) >= {"implementing", "queued", "running", "succeeded", "failed"}
    assert body["metadata"] == {"who": "me"}
    assert body["baseline"]["pending"] == 20
    assert api.get(f"/v1/batches/{body['id']}").json() == body


def test_a_new_batch_is_answered_as_it_is_read(api: TestClient) -> None:
    """Nothing is counted of it but its ideas: the rest would be the same."""
    for changes in ({}, {"options": {"novelty": "skip"}}):
        made = submit(api, "Count in twos.", "Count in twos!", **changes)
        assert made == api.get(f"/v1/batches/{made['id']}").json()


def test_etag_answers_304_until_something_changes(api: TestClient) -> None:
    url = f"/v1/batches/{submit(api)['id']}"
    tag = api.get(url).headers["etag"]
    assert api.get(url, headers={"If-None-Match": tag}).status_code == 304
    api.post(f"{url}/cancel")
    assert api.get(url, headers={"If-None-Match": tag}).status_code == 200


def test_cancelling_twice_changes_nothing_the_second_time(api: TestClient) -> None:
    url = f"/v1/batches/{submit(api, 'one', 'two')['id']}"
    first = api.post(f"{url}/cancel")
    second = api.post(f"{url}/cancel")
    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()
    assert first.json()["state"] == "cancelled"
    assert first.json()["counts"]["cancelled"] == 2


def test_a_repeated_request_under_one_key_is_carried_out_once(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = api.post("/v1/batches", json=batch(), headers=headers)
    again = api.post("/v1/batches", json=batch(), headers=headers)
    assert again.status_code == 202
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert len(api.get("/v1/batches").json()["data"]) == 1


def test_an_idempotency_key_cannot_be_used_for_another_body(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    api.post("/v1/batches", json=batch("a"), headers=headers)
    other = api.post("/v1/batches", json=batch("b"), headers=headers)
    assert other.status_code == 422
    assert other.json()["code"] == "idempotency_key_reused"
    assert "new key" in other.json()["detail"]
    assert len(api.get("/v1/batches").json()["data"]) == 1


def test_what_was_accepted_is_answered_again_though_it_would_now_be_refused(
    api: TestClient, environments: Path
) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = api.post("/v1/batches", json=batch(), headers=headers)
    (environments / "count" / "environment.toml").write_text("not a manifest")
    again = api.post("/v1/batches", json=batch(), headers=headers)
    assert (again.status_code, again.json()) == (202, first.json())


def test_a_refused_request_may_be_corrected_under_its_key(api: TestClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    assert api.post("/v1/batches", json=batch(profile="x"), headers=headers).status_code == 422
    assert api.post("/v1/batches", json=batch(), headers=headers).status_code == 202


def test_dry_run_prices_and_stores_nothing(api: TestClient) -> None:
    response = api.post("/v1/batches?dry_run=true", json=batch("a", "b"))
    assert response.status_code == 200
    assert response.json()["cost_usd"] == {"low": "0", "high": "0"}
    assert api.get("/v1/batches").json()["data"] == []


EDIT = """[Experiment] Start at one.
[Code Changes] In `train.py`:
<<<<<<< SEARCH
a = 0
=======
a = 1
>>>>>>> REPLACE
[End]"""
UNREADABLE = EDIT.replace(">>>>>>> REPLACE\n", "")


def test_a_dry_run_warns_of_ideas_that_nobody_can_implement(api: TestClient) -> None:
    """It passed ideas in plain words, which then failed with `no_diff`."""
    asked = batch("Start at one.", EDIT, UNREADABLE)
    said = api.post("/v1/batches?dry_run=true", json=asked).json()["warnings"]
    assert [(each["pointer"], each["code"]) for each in said] == [
        ("/ideas/0/text", "no_diff"),
        ("/ideas/2/text", "no_diff"),
    ]
    for each in said:
        assert "SEARCH/REPLACE" in each["message"]
        assert "choose a model" in each["message"]
    assert "no SEARCH/REPLACE block" in said[0]["message"]
    assert "cannot be read" in said[1]["message"]
    assert api.post("/v1/batches", json=asked).status_code == 202, "it warns, and refuses nothing"


def test_lists_are_paged_by_cursor(api: TestClient) -> None:
    made = [submit(api, f"idea {i}")["id"] for i in range(5)]
    seen: list[str] = []
    url = "/v1/batches?limit=2"
    pages = 0
    while True:
        page = api.get(url).json()
        pages += 1
        seen += [b["id"] for b in page["data"]]
        if page["next_cursor"] is None:
            break
        url = f"/v1/batches?limit=2&cursor={page['next_cursor']}"
    assert seen == made[::-1]
    assert pages == 3
    cursor = api.get("/v1/batches?limit=2").json()["next_cursor"]
    other = api.get(f"/v1/batches?limit=2&state=running&cursor={cursor}")
    assert other.status_code == 400
    assert "other filters" in other.json()["detail"]


def test_experiments_of_a_batch_come_in_the_order_of_their_ideas(api: TestClient) -> None:
    body = submit(api, *(f"idea {i}" for i in range(7)))
    first = api.get(f"/v1/experiments?batch={body['id']}&limit=4").json()
    rest = api.get(f"/v1/experiments?batch={body['id']}&cursor={first['next_cursor']}").json()
    texts = [e["idea"]["text"] for e in first["data"] + rest["data"]]
    assert texts == [f"idea {i}" for i in range(7)]
    assert rest["next_cursor"] is None


def test_events_as_pages_and_as_a_stream_that_resumes(api: TestClient) -> None:
    body = submit(api, "one", "two")
    url = f"/v1/batches/{body['id']}"
    api.post(f"{url}/cancel")
    events = api.get(f"{url}/events").json()["data"]
    assert [e["type"] for e in events] == ["experiment.changed"] * 2 + ["batch.finished"]
    assert {e["search"] for e in events} == {None}
    page = api.get(f"{url}/events?limit=2").json()
    rest = api.get(f"{url}/events?cursor={page['next_cursor']}").json()
    assert [e["id"] for e in page["data"] + rest["data"]] == [e["id"] for e in events]
    assert rest["next_cursor"] is None
    after_first = {"Accept": "text/event-stream", "Last-Event-ID": str(events[0]["id"])}
    with api.stream("GET", f"{url}/events", headers=after_first) as stream:
        lines = [line for line in stream.iter_lines() if line.startswith("id: ")]
    assert lines == [f"id: {events[1]['id']}", f"id: {events[2]['id']}"]
    at_the_end = {"Accept": "text/event-stream", "Last-Event-ID": str(events[2]["id"])}
    assert api.get(f"{url}/events", headers=at_the_end).status_code == 204


def test_another_owner_sees_nothing(context: Context) -> None:
    from pydantic import SecretStr

    from services.implementer.app import create_app

    context.settings.api_keys = {"ann": SecretStr("key-a"), "bob": SecretStr("key-b")}
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        assert api.get("/v1/batches").status_code == 401
        ann = {"Authorization": "Bearer key-a"}
        bob = {"Authorization": "Bearer key-b"}
        body = api.post("/v1/batches", json=batch(), headers=ann).json()
        assert body["owner"] == "ann"
        assert api.get(f"/v1/batches/{body['id']}", headers=ann).status_code == 200
        assert api.get(f"/v1/batches/{body['id']}", headers=bob).status_code == 404
        assert api.get("/v1/batches", headers=bob).json()["data"] == []
        assert api.post(f"/v1/batches/{body['id']}/cancel", headers=bob).status_code == 404


def test_an_address_of_the_callers_choice_is_not_sent_the_servers_key(context: Context) -> None:
    from pydantic import SecretStr

    from services.implementer.app import create_app

    context.settings.api_keys = {"ann": SecretStr("key-a")}
    with TestClient(create_app(context), raise_server_exceptions=False) as api:
        response = api.post(
            "/v1/batches",
            json=batch(executor="openai:x@http://evil.example/v1"),
            headers={"Authorization": "Bearer key-a"},
        )
    assert response.json()["code"] == "model_url_not_allowed"


def test_the_etag_changes_with_the_cost_of_calls(api: TestClient, context: Context) -> None:
    created = api.post("/v1/batches", json=batch()).json()
    before = api.get(f"/v1/batches/{created['id']}").headers["etag"]
    with context.db.write() as session:
        implementation = session.query(schema.Implementation).one()
        start = CallStart("call_1", 0, 0, 1, "offline:literal", "", "1", None)
        calls.before(session, Payer("local", created["id"], None, implementation.id), start)
    after = api.get(f"/v1/batches/{created['id']}", headers={"If-None-Match": before})
    assert after.status_code == 200


def test_a_batch_of_an_environment_that_has_changed_since_can_still_be_read(
    api: TestClient, environments: Path
) -> None:
    body = submit(api)
    train = environments / "count" / "codebase" / "train.py"
    train.write_text(train.read_text() + "# changed\n")
    old, new = (api.get(f"/v1/environments/{n}").json() for n in (body["environment"], "count"))
    assert old["id"] == body["environment"] != new["id"]
    old_files, new_files = (
        api.get(f"/v1/environments/{e['id']}/codebase").json()["files"] for e in (old, new)
    )
    assert "# changed" not in old_files["train.py"]
    assert "# changed" in new_files["train.py"]
    assert submit(api, environment=body["environment"])["environment"] == body["environment"]
    assert api.get("/v1/environments/count@000000000000").status_code == 422


def test_a_store_that_was_just_written_is_not_checked_for_every_request(
    context: Context, tmp_path: Path
) -> None:
    checks = 0

    class Counting(LocalStore):
        def check(self) -> None:
            nonlocal checks
            checks += 1
            super().check()

    context.store = Counting(tmp_path / "counted")
    with TestClient(create_app(context)) as api:
        for number in range(3):
            assert api.post("/v1/batches", json=batch(str(number))).status_code == 202
    assert checks == 1
