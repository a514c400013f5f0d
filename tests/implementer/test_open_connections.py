"""Many connections leave the API able to answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest

from services.implementer.binding import bind, url_of
from services.implementer.context import Context
from services.implementer.http import http_server
from services.implementer.open_connections import RESERVED
from tests.support.waiting import wait_until

MOST = 10
#: A request whose body never arrives.
BUSY = (
    b"POST /v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 10\r\n\r\n"
)


@pytest.fixture
def url(context: Context) -> Iterator[str]:
    """The API as `assay serve` starts it, for few connections."""
    context.settings.connections = MOST
    listening = bind("127.0.0.1", 0, "")
    server = http_server(context, here_only=True)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    wait_until(lambda: server.started)
    yield url_of("127.0.0.1", listening)
    server.should_exit = True
    thread.join()


@pytest.fixture
def connections() -> Iterator[ExitStack]:
    """What is connected until the end of the test."""
    with ExitStack() as stack:
        yield stack


def connect(url: str, connections: ExitStack, data: bytes = b"") -> socket.socket:
    address = httpx2.URL(url)
    opened = connections.enter_context(socket.create_connection((address.host, address.port)))
    opened.sendall(data)
    return opened


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("data", [b"", b"GET /healthz HTTP/1.1\r\nX: "], ids=["silent", "slow"])
def test_idle_connections_make_way(url: str, connections: ExitStack, data: bytes) -> None:
    idle = [connect(url, connections, data) for _ in range(5 * MOST)]
    assert httpx2.get(f"{url}/healthz").status_code == 200
    assert all(is_closed(each) for each in idle[: 4 * MOST])


def test_a_connection_between_two_requests_makes_way(url: str, connections: ExitStack) -> None:
    with httpx2.Client(base_url=url) as client:
        assert client.get("/healthz").status_code == 200
        newer = [connect(url, connections) for _ in range(3 * MOST)]
        # The client's is older, so it was closed before. Without waiting, a request may still be
        # sent on it.
        assert is_closed(newer[0])
        assert client.get("/healthz").status_code == 200, "it connects anew"


def test_with_requests_on_all_connections_the_answer_is_503(
    url: str, connections: ExitStack
) -> None:
    busy = [connect(url, connections, BUSY) for _ in range(MOST)]
    wait_until(lambda: status_of(url) == 503)
    for each in busy:
        each.close()
    wait_until(lambda: status_of(url) == 200)


def status_of(url: str) -> int:
    return httpx2.get(f"{url}/healthz").status_code


ALLOW = """
import resource, sys
from services.implementer.open_connections import allow_connections
soft, hard, most = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(allow_connections(most), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "fit", "raised"),
    [
        (256, 4_000, 1_000, 1_000 + RESERVED),
        (3_000, 4_000, 1_000, 3_000),
        (256, RESERVED + 100, 100, RESERVED + 100),
        (256, 256, 1, 256),
    ],
)
def test_the_limit_of_open_files_is_raised(soft: int, hard: int, fit: int, raised: int) -> None:
    arguments = [sys.executable, "-c", ALLOW, str(soft), str(hard), "1000"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(fit), str(raised), str(hard)]
