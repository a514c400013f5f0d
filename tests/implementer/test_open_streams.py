"""Open streams are bounded, of each client and together, and counted down however they end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient
from starlette.types import Message

from assay.client import Client
from assay.domain.errors import TooMany
from services.implementer.binding import bind, url_of
from services.implementer.context import Context
from services.implementer.http import http_server
from services.implementer.open_streams import EventStream, OpenStreams
from services.implementer.settings import ImplementerSettings
from tests.implementer.conftest import batch
from tests.support.waiting import wait_until

ACCEPT = {"Accept": "text/event-stream"}
KEYS = {"a": SecretStr("key-a"), "b": SecretStr("key-b")}


@pytest.fixture
def context(context: Context) -> Context:
    """A context that lets a client open two streams, and all together three."""
    context.settings = ImplementerSettings(streams_per_client=2, streams=3)
    context.streams = OpenStreams(2, 3)
    return context


@pytest.fixture
def url(context: Context) -> Iterator[str]:
    """The address of the API behind its real HTTP server."""
    bound = bind("127.0.0.1", 0, "")
    server = http_server(context, here_only=True)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    yield url_of("127.0.0.1", bound)
    server.should_exit = True
    thread.join()


def submitted(url: str, key: str = "none") -> str:
    """The path of a batch that goes on for as long as nobody implements it."""
    headers = {"Authorization": f"Bearer {key}"}
    made = httpx2.post(f"{url}/v1/batches", json=batch(), headers=headers)
    return f"/v1/batches/{made.json()['id']}"


def logs_of(url: str, path: str) -> str:
    made = httpx2.get(f"{url}/v1/experiments?batch={path.rpartition('/')[2]}").json()
    return f"/v1/experiments/{made['data'][0]['id']}/logs"


def test_one_stream_too_many_is_refused_and_the_next_is_let_in(url: str, context: Context) -> None:
    path = submitted(url)
    events, logs = f"{url}{path}/events", f"{url}{logs_of(url, path)}"
    with httpx2.Client() as http:
        with http.stream("GET", events, headers=ACCEPT), http.stream("GET", logs, headers=ACCEPT):
            for address in (events, logs):
                answer = http.get(address, headers=ACCEPT)
                assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
                assert answer.headers["retry-after"] == "5"
                assert "you have 2 streams" in answer.json()["detail"]
                assert http.get(address).status_code == 200  # a page is no stream
            assert context.streams.total == 2
        wait_until(lambda: context.streams.total == 0, "no stream is open")
        with http.stream("GET", events, headers=ACCEPT) as answer:
            assert answer.status_code == 200


def test_clients_are_told_apart_by_their_keys_and_share_one_limit(
    url: str, context: Context
) -> None:
    context.settings = ImplementerSettings(api_keys=KEYS)
    own = {k: f"{url}{submitted(url, f'key-{k}')}/events" for k in KEYS}

    with httpx2.Client() as http, ExitStack() as stack:

        def opened(key: str) -> httpx2.Response:
            headers = ACCEPT | {"Authorization": f"Bearer key-{key}"}
            return stack.enter_context(http.stream("GET", own[key], headers=headers))

        assert [opened(key).status_code for key in "aaab"] == [200, 200, 429, 200]
        refused = opened("b")
        refused.read()
        assert refused.status_code == 429
        assert "all clients together have 3" in refused.json()["detail"]


def test_a_client_that_breaks_off_gives_its_place_back(url: str, context: Context) -> None:
    """Before the head was sent, after it, and in the middle of a stream, without a goodbye."""
    path = submitted(url)
    host, _, port = url.removeprefix("http://").partition(":")
    for wanted in (0, 1, 12, 400):
        with socket.create_connection((host, int(port)), 60) as raw:
            raw.sendall(
                f"GET {path}/events HTTP/1.1\r\nHost: {host}\r\n"
                "Accept: text/event-stream\r\n\r\n".encode()
            )
            got = 0
            while got < wanted and (data := raw.recv(wanted - got)):
                got += len(data)
                if b"\r\n\r\n" in data:
                    break
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    answer = httpx2.get(f"{url}/healthz")
    assert answer.status_code == 200
    wait_until(lambda: context.streams.total == 0, "no stream is open")


def test_our_client_polls_where_it_may_open_no_more_streams(url: str) -> None:
    path = submitted(url)
    held = f"{url}{path}/events"
    with httpx2.Client() as http, Client(url) as client:
        with http.stream("GET", held, headers=ACCEPT), http.stream("GET", held, headers=ACCEPT):
            client.batches.cancel(path.rpartition("/")[2])
            events = client.batches.events(path.rpartition("/")[2], timeout=60)
            assert [event.type for event in events] == ["experiment.changed", "batch.finished"]


def run(stream: EventStream, *, fails: bool) -> None:
    """Answer with a stream to a client that goes away, by an error or a message, at once."""

    async def receive() -> Message:
        await asyncio.sleep(0 if not fails else 60)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if fails:
            raise OSError("the connection is gone")

    scope: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.3"}}
    asyncio.run(stream(scope, receive, send))


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_whose_lines_were_never_asked_for_is_counted_down(fails: bool) -> None:
    async def lines() -> AsyncGenerator[str, None]:
        await asyncio.sleep(60)
        yield "never"

    streams = OpenStreams(1, 1)
    try:
        run(EventStream(lines(), streams, "c"), fails=fails)
    except (OSError, ExceptionGroup):
        assert fails
    assert streams.total == 0


def test_many_threads_never_open_more_than_they_may() -> None:
    streams, most, lock = OpenStreams(5, 8), 0, threading.Lock()

    def work(client: str) -> None:
        nonlocal most
        for _ in range(300):
            try:
                with streams.one(client):
                    with lock:
                        most = max(most, streams.total)
            except TooMany:
                pass

    threads = [threading.Thread(target=work, args=(str(i % 3),)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 8
    assert streams.total == 0


def test_a_stream_that_ends_by_itself_is_counted_down(api: TestClient, context: Context) -> None:
    made = api.post("/v1/batches", json=batch()).json()
    api.post(f"/v1/batches/{made['id']}/cancel")
    for _ in range(5):
        assert api.get(f"/v1/batches/{made['id']}/events", headers=ACCEPT).status_code == 200
    assert context.streams.total == 0
