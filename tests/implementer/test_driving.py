"""Searches that the service drives: as their owner, once, and through every kind of end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import func, select, update
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from assay.llm import IdeationRequest, Ideator, ModelError, ProposedIdea
from assay.llm.ideation import CallRecord
from assay.search import SearchConfig
from assay.storage import batches, schema
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.dependencies import ACTING, Acting
from services.implementer.driving import SearchDrivers
from tests.support.waiting import wait_until

ANN, BOB = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ann", "bob"))
Json = dict[str, Any]


class Scripted:
    """An ideator that does what a test tells it; ideas are numbered."""

    name = "offline:scripted"
    prompt_version = "1"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self.asked = threading.Event()
        self.dropped = threading.Event()
        self.calls = 0

    async def propose(
        self, request: IdeationRequest, *, record: CallRecord | None = None
    ) -> list[ProposedIdea]:
        self.calls += 1
        self.asked.set()
        if self.error is not None:
            raise self.error
        try:
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.dropped.set()
        return [ProposedIdea(f"Idea {self.calls}.{n}", "seed") for n in range(request.count)]

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture
def owned(context: Context) -> Context:
    """A service with two owners that looks often."""
    context.settings.api_keys = {n: SecretStr(f"key-of-{n}") for n in ("ann", "bob")}
    context.settings.rescan_seconds = 0.05
    return context


@pytest.fixture
def api(owned: Context) -> Iterator[TestClient]:
    with TestClient(create_app(owned), raise_server_exceptions=False) as client:
        client.headers.update(ANN)
        yield client


@pytest.fixture
def model() -> Scripted:
    return Scripted()


@pytest.fixture
def running(owned: Context, model: Scripted) -> Iterator[SearchDrivers]:
    def opened(*_: object) -> Ideator:
        return model

    made = SearchDrivers(owned, open_ideator=opened)
    made.start()
    yield made
    made.stop()


def post(api: TestClient, **changes: Any) -> httpx2.Response:
    body = {
        "environment": "count", "profile": "tiny", "strategy": "best-of-n", "epochs": 2,
        "batch_size": 2, "driver": "service", "config": SearchConfig.make("best-of-n").record(),
    }  # fmt: skip
    return api.post("/v1/searches", json=body | changes)


def start(api: TestClient, **changes: Any) -> str:
    made = post(api, **changes)
    assert made.status_code == 201, made.text
    search: str = made.json()["id"]
    return search


def read(api: TestClient, search: str) -> Json:
    body: Json = api.get(f"/v1/searches/{search}").json()
    return body


def end_batches(context: Context) -> None:
    """Finish what waits for a worker: nothing is measured here."""
    with context.write() as session:
        table = schema.Batch
        for batch in session.scalars(select(table.id).where(table.finished_at.is_(None))).all():
            batches.cancel(context.db, session, batch)


def finished(api: TestClient, context: Context, search: str) -> Callable[[], bool]:
    def look() -> bool:
        end_batches(context)
        return bool(read(api, search)["state"] == "finished")

    return look


def paused(api: TestClient, search: str) -> Callable[[], bool]:
    return lambda: [p["resumed_at"] for p in read(api, search)["pauses"]][-1:] == [None]


def test_a_search_is_driven_to_its_end_as_its_owner(
    api: TestClient, owned: Context, running: SearchDrivers
) -> None:
    search = start(api)
    running.look()
    wait_until(finished(api, owned, search))
    with owned.db.read() as session:
        rows = session.execute(select(schema.Batch.owner, schema.Batch.epoch)).all()
        assert sorted(tuple(row) for row in rows) == [("ann", 0), ("ann", 1)]
        assert session.scalars(select(func.count()).select_from(schema.Idea)).one() == 4
    told = [e["type"] for e in api.get(f"/v1/searches/{search}/events").json()["data"]]
    assert told == ["search.epoch_stored", "search.epoch_submitted"] * 2 + ["search.finished"]
    assert api.get(f"/v1/searches/{search}", headers=BOB).status_code == 404


def test_a_failing_model_pauses_with_its_message(
    api: TestClient, owned: Context, running: SearchDrivers, model: Scripted
) -> None:
    model.error = ModelError("the key has expired")
    search = start(api)
    wait_until(paused(api, search))
    (pause,) = read(api, search)["pauses"]
    assert (pause["reason"], pause["code"], pause["epoch"]) == ("error", "model_failed", 0)
    assert "the key has expired" in pause["message"]
    assert f"assay search resume {search} --detach" in pause["message"]
    assert model.calls == 1
    model.error = None
    api.post(f"/v1/searches/{search}/resume", json={"driver": "service"})
    wait_until(finished(api, owned, search))


def test_a_fault_of_ours_is_tried_again_and_then_pauses(
    api: TestClient, running: SearchDrivers, model: Scripted
) -> None:
    model.error = RuntimeError("a bug")
    search = start(api)
    wait_until(paused(api, search))
    (pause,) = read(api, search)["pauses"]
    assert (pause["code"], model.calls) == ("error", 5)


def test_cancelling_ends_the_call_of_the_model(
    api: TestClient, owned: Context, running: SearchDrivers, model: Scripted
) -> None:
    model.hangs = True
    search = start(api)
    assert model.asked.wait(60)
    api.post(f"/v1/searches/{search}/cancel")
    running.look_again()
    assert model.dropped.wait(60)
    body = read(api, search)
    assert (body["state"], body["pauses"]) == ("cancelled", [])


def test_what_another_process_took_over_is_dropped(
    api: TestClient, owned: Context, running: SearchDrivers, model: Scripted
) -> None:
    owned.settings.idea_lease_seconds = 0.6
    model.hangs = True
    search = start(api)
    assert model.asked.wait(60)
    with owned.write() as session:
        session.execute(update(schema.Search).values(holder="another"))
    running.look_again()
    assert model.dropped.wait(60)
    assert read(api, search)["pauses"] == []


def test_a_stopped_service_leaves_it_to_the_next(
    api: TestClient, owned: Context, running: SearchDrivers, model: Scripted
) -> None:
    model.hangs = True
    search = start(api)
    assert model.asked.wait(60)
    running.stop()
    with owned.db.read() as session:
        assert session.get_one(schema.Search, search).holder is None
    next_ = SearchDrivers(owned, open_ideator=lambda *_: Scripted())
    next_.start()
    try:
        wait_until(finished(api, owned, search))
    finally:
        next_.stop()


def test_a_person_pauses_what_the_service_drives_and_resumes_it(
    api: TestClient, owned: Context, running: SearchDrivers
) -> None:
    search = start(api, epochs=3)
    assert api.post(f"/v1/searches/{search}/pause").status_code == 200

    def is_left_alone() -> bool:
        with owned.db.read() as session:
            return session.get_one(schema.Search, search).holder is None

    wait_until(is_left_alone)
    assert read(api, search)["state"] == "running"
    (pause,) = read(api, search)["pauses"]
    assert (pause["reason"], pause["resumed_at"]) == ("person", None)
    resumed = api.post(f"/v1/searches/{search}/resume", json={"driver": "service"})
    assert resumed.status_code == 200
    wait_until(finished(api, owned, search))


def test_a_search_of_the_service_that_is_extended_runs_again(
    api: TestClient, owned: Context, running: SearchDrivers
) -> None:
    search = start(api)
    wait_until(finished(api, owned, search))
    more = read(api, search)["epochs"] + 1
    assert api.post(f"/v1/searches/{search}/extend", json={"epochs": more}).status_code == 200
    wait_until(finished(api, owned, search))
    assert read(api, search)["epochs_finished"] == more


def test_more_searches_than_threads_take_turns(
    api: TestClient, owned: Context, running: SearchDrivers
) -> None:
    owned.settings.concurrent_searches = 1
    made = [start(api) for _ in range(3)]
    for search in made:
        wait_until(finished(api, owned, search))


def test_clients_are_refused_while_the_service_drives(api: TestClient, owned: Context) -> None:
    """Nothing drives it here yet, and still the loop of a client may not write to it."""
    search = start(api)
    path = f"/v1/searches/{search}"
    reason = {"code": "crashed", "failed": 1, "total": 1, "message": "Look."}
    call = {
        "epoch": 0, "place": "0", "operator": "seed", "asked": 1, "number": 1,
        "request_hash": "h", "prompt_version": "1", "input_tokens": 1, "output_tokens": 1,
        "loop": "l",
    }  # fmt: skip
    for answer in (
        api.put(f"{path}/calls/call_1", json=call),
        api.put(f"{path}/epochs/0", json={"ideas": [{"text": "Mine."}]}),
        api.post(f"{path}/epochs/0/batch"),
        api.post(f"{path}/epochs/0/pause", json=reason),
        api.post(f"{path}/finish"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "driven_by_service")
    taken = api.post(f"{path}/resume")
    assert (taken.status_code, taken.json()["driver"]) == (200, "client"), "nobody held it"
    assert api.put(f"{path}/epochs/0", json={"ideas": [{"text": "Mine."}]}).status_code == 201


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"ideator": "openai:gpt-5"}, "missing_key", "OPENAI_API_KEY"),
        ({"ideator": "nobody:x"}, "unknown_model", "nobody"),
        ({"ideator": "openai:x@http://evil"}, "model_url_not_allowed", "evil"),
        ({"strategy": "guess"}, "invalid", "guess"),
        ({"config": {"strategy": {"tempo": 1}}}, "invalid", "tempo"),
        ({"config": {"surprise": 1}}, "invalid", "surprise"),
    ],
)
def test_what_the_service_could_not_drive_is_not_recorded(
    api: TestClient, changes: Json, code: str, says: str
) -> None:
    refused = post(api, **changes)
    assert refused.status_code == 422, refused.text
    assert says in refused.text
    assert code in {refused.json()["code"], *(e["code"] for e in refused.json()["errors"])}
    assert api.get("/v1/searches").json()["data"] == []
    if code == "missing_key":
        assert "where the service runs" in refused.text
        mine = start(api, **changes, driver="client")
        handed = api.post(f"/v1/searches/{mine}/resume", json={"driver": "service"})
        assert (handed.status_code, read(api, mine)["driver"]) == (422, "client")


def test_the_limit_of_an_owner(api: TestClient, owned: Context) -> None:
    owned.settings.detached_searches = 1
    start(api)
    refused = post(api)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_detached")
    assert len(api.get("/v1/searches").json()["data"]) == 1


def test_who_acts_for_a_search_reaches_no_other(api: TestClient, owned: Context) -> None:
    """Nor another owner's data, workers, or what workers may do."""
    mine, other = start(api), start(api)
    with TestClient(create_app(owned), headers=BOB) as bob:
        foreign = start(bob)
    app = create_app(owned)

    async def acting(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, ACTING: Acting("ann", mine, "local")}, receive, send)

    with TestClient(acting, raise_server_exceptions=False) as client:
        assert client.get(f"/v1/searches/{mine}").status_code == 200
        assert client.get(f"/v1/searches/{foreign}").status_code == 404
        assert client.post(f"/v1/searches/{other}/finish").status_code == 403
        assert client.post("/v1/workers", json={"name": "mine"}).status_code == 403
        assert client.post("/internal/v1/workers", json={}).status_code == 401
        assert client.post(f"/v1/searches/{mine}/finish").status_code == 409, "not held yet"


@pytest.mark.parametrize("name", [ACTING, "assay-acting", "x-assay-acting"])
def test_nobody_acts_by_what_a_request_says(owned: Context, name: str) -> None:
    with TestClient(create_app(owned), raise_server_exceptions=False) as stranger:
        said = {name: "ann"}
        assert stranger.get("/v1/searches", headers=said).status_code == 401
        assert stranger.post("/v1/searches", json={}, headers=said).status_code == 401
