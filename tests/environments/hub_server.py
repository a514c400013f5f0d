"""A local server that speaks the Hugging Face hub's protocol, and can misbehave on request.

What `huggingface_hub` sees is what the real hub sends: an API that describes a repository's files,
`HEAD` with commit, etag and size, large (LFS) files behind a redirect to another host with
`X-Linked-Etag` and `X-Linked-Size`, ranges, and errors named by `X-Error-Code`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.local_server import LocalHandler, LocalServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LFS_SUFFIXES = (".bin", ".safetensors", ".parquet")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Repository:
    files: dict[str, bytes]
    gated: bool = False


@dataclass
class Hub:
    """The server's state: what it serves, how it fails, and what it was asked."""

    address: str = ""
    cdn: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    """By `models/owner/name` or `datasets/owner/name`."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """By file name: after how many bytes the next connections for it break."""
    corrupt: set[str] = field(default_factory=set)
    """Files whose content arrives with a byte changed."""
    stalled: dict[str, threading.Event] = field(default_factory=dict)
    """Files that send nothing until the event is set."""
    xet: bool = False
    """Whether large files are offered by the newer protocol, too, as the real hub does."""
    failures: int = 0
    """How many of the next API calls are answered with 503."""
    requests: list[Request] = field(default_factory=list)

    def add(self, name: str, files: dict[str, bytes], **flags: Any) -> None:
        self.repositories[name] = Repository(files, **flags)

    def asked(self, method: str, end: str) -> list[Request]:
        return [r for r in self.requests if r.method == method and r.path.endswith(end)]

    def downloads(self) -> list[str]:
        """Names of the files whose content was asked for, in order."""
        kinds = ("/resolve/", "/cdn/")
        return [
            r.path.rsplit("/", 1)[1]
            for r in self.requests
            if r.method == "GET" and any(kind in r.path for kind in kinds)
        ]


def git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Handler(LocalHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        headers = self.headers
        self.hub.requests.append(
            Request(self.command, path, headers.get("Range"), headers.get("Authorization"))
        )
        if path == "/api/agent-harnesses":  # the library asks on its own account
            self.hub.requests.pop()
            self._error(404)
        elif path.startswith("/api/"):
            self._describe(path.removeprefix("/api/"))
        elif path.startswith("/cdn/"):
            kind, owner, name, file = path.removeprefix("/cdn/").split("/", 3)
            self._content(self.hub.repositories[f"{kind}/{owner}/{name}"].files[file], file, {})
        else:
            self._resolve(path)

    def _describe(self, path: str) -> None:
        name = path.split("/revision/")[0]
        repository = self.hub.repositories.get(name)
        if self.hub.failures:
            self.hub.failures -= 1
            self._error(503)
        elif repository is None:
            self._error(401, "RepoNotFound")
        else:
            body = json.dumps(
                {
                    "id": name.split("/", 1)[1],
                    "sha": COMMIT,
                    "private": False,
                    "gated": "auto" if repository.gated else False,
                    "tags": [],
                    "downloads": 1,
                    "likes": 0,
                    "siblings": [sibling(*item) for item in repository.files.items()],
                }
            ).encode()
            self._send(200, {"Content-Type": "application/json"}, body)

    def _resolve(self, path: str) -> None:
        """/owner/name/resolve/main/file for models, with /datasets in front for data sets."""
        name, _, rest = path.lstrip("/").partition("/resolve/")
        name = name if name.startswith("datasets/") else f"models/{name}"
        file = rest.split("/", 1)[1]
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._error(401, "RepoNotFound")
        elif repository.gated:
            self._error(403, "GatedRepo")
        elif file not in repository.files:
            self._error(404, "EntryNotFound", {"X-Repo-Commit": COMMIT})
        elif file.endswith(LFS_SUFFIXES):
            data = repository.files[file]
            headers = {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{sha256(data)}"',
                "X-Linked-Size": str(len(data)),
                "ETag": '"of-the-redirect"',
                "Location": f"{self.hub.cdn}/cdn/{name}/{file}",
            }
            if self.hub.xet:
                headers |= {"X-Xet-Hash": sha256(b"xet" + data), "X-Xet-Refresh-Route": "/none"}
            self._send(302, headers)
        else:
            data = repository.files[file]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{git_hash(data)}"'}
            self._content(data, file, headers)

    def _content(self, data: bytes, file: str, headers: dict[str, str]) -> None:
        if file in self.hub.stalled and self.command == "GET":
            self.hub.stalled[file].wait(30)
            self.close_connection = True
            return
        if file in self.hub.corrupt:
            data = bytes([data[0] ^ 1]) + data[1:]
        status, total, first = 200, len(data), 0
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").rstrip("-"))
            status = 206
            headers = headers | {"Content-Range": f"bytes {first}-{total - 1}/{total}"}
        cut = None
        if self.command == "GET" and self.hub.cuts.get(file):
            cut = self.hub.cuts[file].pop(0)
        self._send(status, headers | {"Accept-Ranges": "bytes"}, data[first:], cut)

    def _error(self, status: int, code: str = "", headers: dict[str, str] | None = None) -> None:
        named = {"X-Error-Code": code, "X-Error-Message": code} if code else {}
        self._send(status, named | (headers or {}))

    def _send(
        self, status: int, headers: dict[str, str], body: bytes = b"", cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


def sibling(name: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_hash(data)}
    if name.endswith(LFS_SUFFIXES):
        found["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
        found["blobId"] = git_hash(b"a pointer to " + name.encode())
    return found


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub on a free port; its content delivery network has another host name."""
    hub = Hub()
    with LocalServer(type("BoundHandler", (Handler,), {"hub": hub})) as server:
        hub.address, hub.cdn = server.url, f"http://localhost:{server.port}"
        try:
            yield hub
        finally:
            for event in hub.stalled.values():
                event.set()
