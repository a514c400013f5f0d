"""The implementer API as a worker sees it, in memory, over real HTTP."""

import base64
import hashlib
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.local_server import LocalHandler, LocalServer

TOKEN = "test-token-0123456789"


@dataclass
class Record:
    """Everything the API was told about one attempt."""

    lease_token: int
    claims: int = 0
    devices: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    progress: int = 0
    bulks: int = 0
    logs: dict[str, bytes] = field(default_factory=dict)
    points: dict[int, dict[str, Any]] = field(default_factory=dict)
    system: dict[int, dict[str, Any]] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    finishes: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] | None = None


class FakeApi(LocalServer):
    """Assigns what `assign` was given; `intercept` may break a request before it is handled.

    `intercept(method, path)` returns None to go on, a status to answer with, or "drop" to cut the
    connection; `lose_answer(path)` returns True to handle the request and cut the connection then.
    """

    def __init__(self) -> None:
        self.trees: dict[str, bytes] = {}
        self.records: dict[str, Record] = {}
        self.registrations: list[dict[str, Any]] = []
        self.syncs: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.fenced: set[str] = set()
        self.stop: set[str] = set()
        self.known = True
        self.stale = False
        self.intercept: Callable[[str, str], int | str | None] = lambda method, path: None
        self.lose_answer: Callable[[str], bool] = lambda path: False
        self.changed = threading.Condition()
        self._waiting: list[dict[str, Any]] = []
        api = self

        class Handler(_Handler):
            fake = api

        super().__init__(Handler)

    def assign(self, spec: dict[str, Any]) -> Record:
        """Hand an attempt to the worker with its next sync."""
        with self.changed:
            record = self.records[spec["attempt"]] = Record(spec["lease_token"])
            self._waiting.append(spec)
            self.changed.notify_all()
        return record

    def wait(self, condition: Callable[[], object], seconds: float = 15) -> None:
        """Until something about the API's state holds."""
        with self.changed:
            assert self.changed.wait_for(lambda: bool(condition()), seconds), "waited in vain"

    def finished(self, record: Record, seconds: float = 15) -> dict[str, Any]:
        """The end of an attempt, waited for."""
        self.wait(lambda: record.end is not None, seconds)
        assert record.end is not None
        return record.end

    def sync(self, body: dict[str, Any]) -> tuple[int, Any]:
        deadline = time.monotonic() + body["wait_seconds"]
        self.syncs.append(body)
        if self.stale:
            return 409, _problem(409, "stale_incarnation")
        if not self.known or body["incarnation"] != self.registrations[-1]["incarnation"]:
            return 404, _problem(404, "not_found")
        held = {h["attempt"] for h in body["held"]}

        def news() -> bool:
            return bool(self._waiting or held & self.stop or held & self.fenced)

        if not body["draining"]:
            self.changed.wait_for(news, max(0.0, deadline - time.monotonic()))
        assign = [] if body["draining"] else self._waiting
        if assign:
            self._waiting = []
        return 200, {
            "assign": assign,
            "stop": sorted(held & self.stop),
            "fenced": sorted(held & self.fenced),
        }

    def register(self, body: dict[str, Any]) -> tuple[int, Any]:
        self.registrations.append(body)
        self.known = True
        shown = {k: body[k] for k in body if k not in ("incarnation", "info")}
        rest = {"id": "wrk_1", "state": "active", "running": [], "last_seen_at": _NOW}
        return 200, shown | rest

    def take_telemetry(self, record: Record, body: dict[str, Any]) -> None:
        for piece in body["logs"]:
            data = base64.b64decode(piece["data"])
            have = record.logs.get(piece["stream"], b"")
            assert piece["offset"] <= len(have), "a gap in the log"
            record.logs[piece["stream"]] = have[: piece["offset"]] + data
        for point in body["points"]:
            assert record.points.setdefault(point["seq"], point) == point
        record.system |= {point["seq"]: point for point in body["system"]}

    def attempt(self, attempt: str, action: str, body: dict[str, Any]) -> tuple[int, Any]:
        record = self.records[attempt]
        if attempt in self.fenced or body["lease_token"] != record.lease_token:
            return 409, _problem(409, "fenced")
        if action == "claim":
            record.claims += 1
            record.devices = body["devices"]
            return 204, None
        if action == "progress":
            record.progress += 1
            if body["state"]:
                record.states.append(body["state"])
            self.take_telemetry(record, body)
            return 204, None
        record.finishes.append(body)
        if record.end is None:
            self.take_telemetry(record, body)
            for entry in body["artifacts"]:
                if entry["data"] is not None:
                    record.uploads[entry["name"]] = base64.b64decode(entry["data"])
            record.end = body
        return 200, {"state": record.end["state"]}

    def take_log(
        self, attempt: str, stream: str, asked: dict[str, str], data: bytes
    ) -> tuple[int, Any]:
        record = self.records[attempt]
        if attempt in self.fenced or int(asked["lease_token"]) != record.lease_token:
            return 409, _problem(409, "fenced")
        have, offset = record.logs.get(stream, b""), int(asked["offset"])
        assert offset <= len(have), "a gap in the log"
        record.logs[stream] = have[:offset] + data
        record.bulks += 1
        return 204, None

    def upload_target(
        self, attempt: str, name: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        if attempt in self.fenced or body["lease_token"] != self.records[attempt].lease_token:
            return 409, _problem(409, "fenced")
        return 200, {"url": None, "headers": {}}

    def upload(self, attempt: str, name: str, token: int, data: bytes) -> tuple[int, Any]:
        record = self.records[attempt]
        if attempt in self.fenced or token != record.lease_token:
            return 409, _problem(409, "fenced")
        record.uploads[name] = data
        digest = hashlib.sha256(data).hexdigest()
        return 200, {"name": name, "bytes": len(data), "sha256": digest}


_NOW = "2024-01-01T00:00:00Z"


def _problem(status: int, code: str) -> dict[str, Any]:
    return {"title": code, "status": status, "code": code}


class _Handler(LocalHandler):
    fake: FakeApi

    def do_GET(self) -> None:
        self._handle(b"")

    def do_POST(self) -> None:
        self._handle(self._body())

    do_PUT = do_POST

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _handle(self, body: bytes) -> None:
        url = urlsplit(self.path)
        broken = self.fake.intercept(self.command, url.path)
        if broken == "drop":
            self._drop()
            return
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, _problem(401, "unauthorized"))
            return
        if isinstance(broken, int):
            self._answer(broken, _problem(broken, "broken"))
            return
        with self.fake.changed:
            self.fake.requests.append((self.command, url.path))
            status, answer = self._route(url.path, url.query, body)
            self.fake.changed.notify_all()
        if self.fake.lose_answer(url.path):
            self._drop()
            return
        self._answer(status, answer)

    def _route(self, path: str, query: str, body: bytes) -> tuple[int, Any]:
        parts = path.removeprefix("/internal/v1/").split("/")
        if parts[0] in ("codebases", "bundles"):
            data = self.fake.trees.get(parts[1])
            return (200, data) if data is not None else (404, _problem(404, "not_found"))
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        if len(parts) == 4 and parts[2] == "logs":
            return self.fake.take_log(parts[1], parts[3], asked, body)
        if len(parts) == 4:
            return self.fake.upload(parts[1], parts[3], int(asked["lease_token"]), body)
        message = json.loads(body)
        if len(parts) == 5:
            return self.fake.upload_target(parts[1], parts[3], message)
        if parts[0] == "attempts":
            return self.fake.attempt(parts[1], parts[2], message)
        return self.fake.sync(message) if len(parts) == 3 else self.fake.register(message)

    def _answer(self, status: int, body: Any) -> None:
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
