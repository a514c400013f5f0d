"""An S3 server for tests: moto in a process of its own, and a proxy that makes it fail."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import httpx2

from tests.support.local_server import LocalHandler, LocalServer

_ADDRESS = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server that ends with the context."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert process.stderr is not None
    try:
        url = None
        for line in process.stderr:
            if found := _ADDRESS.search(line):
                url = found[1]
                break
        assert url is not None, "the S3 server did not start"
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        yield url
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class FaultyS3(LocalServer):
    """A proxy before an S3 server.

    `intercept(method, path)` returns None to go on, a status to answer with, or "drop" to cut the
    connection. `forget_conditions` makes it a server that does not know `If-None-Match`.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.intercept: Callable[[str, str], int | str | None] = lambda method, path: None
        self.forget_conditions = False
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.lock = threading.Lock()
        self.conditional = threading.Lock()
        self.client = httpx2.Client(timeout=30, trust_env=False)
        proxy = self

        class Handler(_Handler):
            faulty = proxy

        super().__init__(Handler)

    def close(self) -> None:
        super().close()
        self.client.close()


class _Handler(LocalHandler):
    faulty: FaultyS3

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("expect") == "100-continue":
            del headers["expect"]
        body = self.rfile.read(int(headers.get("content-length", "0")))
        with self.faulty.lock:
            self.faulty.requests.append((self.command, self.path, headers))
            broken = self.faulty.intercept(self.command, self.path)
        if broken == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if isinstance(broken, int):
            self._answer(broken, {}, b"")
            return
        if self.faulty.forget_conditions:
            headers.pop("if-none-match", None)
        headers.pop("connection", None)
        # moto looks for the key and stores it in two steps; S3 does both in one.
        turn = self.faulty.conditional if "if-none-match" in headers else nullcontext()
        with turn:
            answer = self.faulty.client.request(
                self.command, self.faulty.target + self.path, headers=headers, content=body
            )
        skipped = {"connection", "transfer-encoding", "content-length", "date", "server"}
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in skipped}
        size = answer.headers.get("content-length") if self.command == "HEAD" else None
        self._answer(answer.status_code, kept, answer.content, size)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def _answer(
        self, status: int, headers: dict[str, str], body: bytes, size: str | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", size or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
