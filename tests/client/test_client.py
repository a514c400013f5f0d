"""The client against a real local HTTP server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from assay import client as api
from assay.client import Client
from assay.client.events import Follower
from assay.client.http import Http
from assay.contracts.batch import BatchRequest, EventBody, IdeaRequest
from assay.domain.errors import AssayError
from tests.support.fake_answers import serve
from tests.support.fake_service import FakeService, Fault


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with serve(service) as url, Client(url, sleep=lambda _: None) as client:
        yield client


def request(count: int = 5) -> BatchRequest:
    ideas = [IdeaRequest(text=f"idea {i}") for i in range(count)]
    return BatchRequest(environment="fake", profile="tiny", ideas=ideas)


def test_a_batch_is_created_and_its_experiments_are_listed_across_pages(
    client: Client,
) -> None:
    batch = client.batches.create(request(8))
    assert batch.counts.total == 8
    positions = [e.position for e in client.experiments.list(batch=batch.id)]
    assert positions == list(range(8))


def test_tags_and_a_note_are_replaced_where_they_are_given(client: Client) -> None:
    id_ = next(client.experiments.list(batch=client.batches.create(request(1)).id)).id
    assert client.experiments.annotate(id_, tags=["b", "a"], note="n").tags == ["b", "a"]
    body = client.experiments.annotate(id_, tags=[])
    assert (body.tags, body.note) == ([], "n")
    assert client.experiments.annotate(id_, note="").note == ""


def test_every_read_returns_its_model(client: Client) -> None:
    batch = client.batches.create(request(1))
    experiment = next(client.experiments.list(batch=batch.id))
    assert client.experiments.get(experiment.id).metric == experiment.metric
    assert client.experiments.result(experiment.id).metric_name == "loss"
    assert client.experiments.diff(experiment.id).startswith("--- a/train.py")
    curves = client.experiments.curves(experiment.id)
    assert curves[0].values == {"train/loss": 3.0}
    assert str(curves[1].values["train/loss"]) == "nan"
    assert client.environments.codebase("fake").files["train.py"].startswith("rate")
    assert client.environments.baseline("fake", "tiny").mean == pytest.approx(2.5)
    assert [w.name for w in client.workers.list()] == ["here"]
    assert client.version() == "9.9"


def test_a_log_is_read_piece_by_piece_in_bytes(client: Client) -> None:
    batch = client.batches.create(request(1))
    experiment = next(client.experiments.list(batch=batch.id)).id
    first = client.experiments.logs(experiment)
    assert first.next_offset == 8
    rest = client.experiments.logs(experiment, offset=9)
    assert rest.text == "\nstep 2\n"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, api.BadRequest),
        (401, api.Unauthorized),
        (403, api.Unauthorized),
        (404, api.NotFound),
        (409, api.Conflict),
        (418, api.APIStatusError),
        (422, api.Invalid),
    ],
)
def test_errors_are_of_their_kind_and_are_not_repeated(
    client: Client, service: FakeService, status: int, kind: type[api.APIStatusError]
) -> None:
    service.faults.append(Fault("GET", "/v1/version", status, code="special"))
    with pytest.raises(api.APIStatusError) as caught:
        client.version()
    error = caught.value
    assert type(error) is kind
    assert isinstance(error, AssayError)
    assert (error.status, error.code, error.request_id) == (status, "special", "req_1")
    assert error.problem.code == "special"
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_passing_trouble_is_retried(client: Client, service: FakeService, status: int) -> None:
    service.faults += [Fault("GET", "/v1/version", status)] * 2
    assert client.version() == "9.9"
    assert len(service.requests) == 3


@pytest.mark.parametrize(("status", "kind"), [(429, api.RateLimited), (500, api.ServerFault)])
def test_retries_end_after_two(
    client: Client, service: FakeService, status: int, kind: type[Exception]
) -> None:
    service.faults += [Fault("GET", "/v1/version", status)] * 3
    with pytest.raises(kind):
        client.version()
    assert len(service.requests) == 3


def test_a_conflict_in_flight_is_retried_and_any_other_is_not(
    client: Client, service: FakeService
) -> None:
    service.faults.append(Fault("POST", "/v1/batches", 409, code="in_flight"))
    assert client.batches.create(request()).id.startswith("bat_")
    service.faults.append(Fault("POST", "/v1/batches", 409, code="conflict"))
    with pytest.raises(api.Conflict):
        client.batches.create(request())


def test_an_idempotency_key_is_made_once_per_call(client: Client, service: FakeService) -> None:
    """The answer of the first try is lost: the repetition must not make a second batch."""
    service.faults.append(Fault("POST", "/v1/batches", 502, after=True))
    client.batches.create(request())
    client.batches.create(request())
    keys = [key for method, _, key in service.requests if method == "POST"]
    assert keys[0] == keys[1]
    assert keys[2] not in (None, keys[0])
    assert len(service.batches) == 2


def test_an_idempotency_key_can_be_given(client: Client, service: FakeService) -> None:
    first = client.batches.create(request(), idempotency_key="mine")
    assert client.batches.create(request(), idempotency_key="mine").id == first.id
    assert len(service.batches) == 1


def test_retry_after_is_obeyed_within_reason(service: FakeService) -> None:
    slept: list[float] = []
    service.faults += [
        Fault("GET", "/v1/version", 429, headers={"Retry-After": "7"}),
        Fault("GET", "/v1/version", 429, headers={"Retry-After": "9999"}),
    ]
    http = Http(
        "http://test", None, 5, httpx2.Client(transport=httpx2.MockTransport(service)), 2,
        slept.append,
    )  # fmt: skip
    http.request("GET", "/v1/version")
    assert slept == [7.0, 120.0]


def test_back_off_doubles(service: FakeService) -> None:
    slept: list[float] = []
    service.faults += [Fault("GET", "/v1/version", 503)] * 2
    http = Http(
        "http://test", None, 5, httpx2.Client(transport=httpx2.MockTransport(service)), 2,
        slept.append,
    )  # fmt: skip
    http.request("GET", "/v1/version")
    assert 0.37 <= slept[0] <= 0.5
    assert 0.75 <= slept[1] <= 1.0


def test_nobody_there_is_a_connection_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        port = taken.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}", retries=0) as client:
            with pytest.raises(api.APIConnectionError, match="assay serve") as caught:
                client.version()
    assert caught.value.code == "connect_error"


def test_silence_is_a_timeout() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with Client(f"http://127.0.0.1:{port}", retries=0, timeout=0.1) as client:
            with pytest.raises(api.APITimeoutError):
                client.version()


def test_a_lost_connection_is_retried() -> None:
    calls = 0

    def flaky(request: httpx2.Request) -> httpx2.Response:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise httpx2.ReadError("reset", request=request)
        return httpx2.Response(200, json={"version": "1"})

    with httpx2.Client(transport=httpx2.MockTransport(flaky)) as http_client:
        client = Client("http://test", http_client=http_client, sleep=lambda _: None)
        assert client.version() == "1"


def test_an_answer_of_a_proxy_becomes_a_problem() -> None:
    def proxy(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(403, text="<html>blocked</html>", headers={"x-request-id": "r9"})

    with httpx2.Client(transport=httpx2.MockTransport(proxy)) as http_client:
        with pytest.raises(api.Unauthorized, match="blocked") as caught:
            Client("http://test", http_client=http_client).version()
    assert (caught.value.code, caught.value.request_id) == ("http_403", "r9")


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(request: httpx2.Request) -> httpx2.Response:
        seen.append((str(request.url), request.headers.get("authorization")))
        return httpx2.Response(200, json={"version": "1"})

    monkeypatch.setenv("ASSAY_API_URL", "http://there:1/")
    monkeypatch.setenv("ASSAY_API_KEY", "k")
    with httpx2.Client(transport=httpx2.MockTransport(record)) as http_client:
        Client(http_client=http_client).version()
        Client("http://flag", "other", http_client=http_client).version()
    assert seen == [
        ("http://there:1/v1/version", "Bearer k"),
        ("http://flag/v1/version", "Bearer other"),
    ]


# -- waiting ------------------------------------------------------------------------------------


def test_waiting_reports_every_event_once(client: Client, service: FakeService) -> None:
    batch = client.batches.create(request(3))
    events: list[EventBody] = []
    done = client.batches.wait(batch.id, on_event=events.append)
    assert done.finished_at is not None
    assert [e.id for e in events] == list(range(1, 3 * 4 + 2))
    assert events[-1].type == "batch.finished"
    assert events[0].data["note"] == "a\u2028b"


def test_a_broken_stream_is_resumed_where_it_broke(client: Client, service: FakeService) -> None:
    batch = client.batches.create(request(3))
    service.cut_streams = [5, 0, 2]
    events: list[EventBody] = []
    client.batches.wait(batch.id, on_event=events.append)
    assert [e.id for e in events] == list(range(1, 14))
    assert service.last_event_ids == [None, "5", "5", "7"]


def test_events_that_come_again_are_not_told_again(client: Client, service: FakeService) -> None:
    batch = client.batches.create(request(3))
    service.forgetful = True
    service.cut_streams = [5]
    assert [e.id for e in client.batches.events(batch.id)] == list(range(1, 14))


def test_a_stream_that_brings_nothing_is_given_up(client: Client, service: FakeService) -> None:
    service.unfinished = True
    batch = client.batches.create(request(1))
    service.cut_streams = [0] * 20
    with pytest.raises(api.APIConnectionError):
        list(client.batches.events(batch.id))
    assert len(service.cut_streams) == 20 - 7


@pytest.mark.parametrize("refusal", [(406, "no_streams"), (429, "too_many_streams")])
def test_polling_takes_over_where_streams_are_refused(
    client: Client, service: FakeService, refusal: tuple[int, str]
) -> None:
    service.streams, service.no_streams = False, refusal
    batch = client.batches.create(request(3))
    events: list[EventBody] = []
    client.batches.wait(batch.id, on_event=events.append)
    assert [e.id for e in events] == list(range(1, 14))
    assert service.last_event_ids == []


def test_waiting_ends_at_its_timeout_and_cancels_nothing(service: FakeService) -> None:
    service.unfinished = True
    with serve(service) as url, Client(url) as client:
        batch = client.batches.create(request(1))
        with pytest.raises(api.WaitTimeout):
            client.batches.wait(batch.id, timeout=0.1)
        assert client.batches.get(batch.id).state == "running"
    assert not any(path.endswith("cancel") for _, path, _ in service.requests)


def test_the_last_event_may_be_missed_if_the_batch_is_finished(
    client: Client, service: FakeService
) -> None:
    batch = client.batches.create(request(1))
    service.cut_streams = [3] + [0] * 10
    assert client.batches.wait(batch.id, on_event=lambda _: None).finished_at is not None


def test_no_content_ends_a_stream() -> None:
    def empty(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(204)

    with httpx2.Client(transport=httpx2.MockTransport(empty)) as http_client:
        http = Http("http://test", None, 5, http_client)
        assert list(Follower(http, "/v1/batches/b/events", after=9)) == []
