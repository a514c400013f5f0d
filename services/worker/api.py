"""The worker API over HTTP: thin, typed, and patient with a server that is away.

Every call may be repeated: reports carry the lease token and offsets, uploads are by name, and a
second `finish` is answered with the stored state. So connection errors, 429 and 5xx are retried,
with full jitter, for as long as the call's patience lasts.

Where the object store has URLs of its own, files go there and come from there. The worker's token
is not sent along: a URL permits what it names, and to nobody else but its holder.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, ValidationError

from assay.contracts.base import Problem
from assay.contracts.worker import (
    ClaimRequest,
    FinishRequest,
    FinishResponse,
    ManifestEntry,
    ProgressRequest,
    SyncRequest,
    SyncResponse,
    UploadRequest,
    UploadTarget,
    WorkerBody,
    WorkerRegistration,
)
from assay.domain.errors import AssayError, Conflict, Fenced, NotFound, Unavailable
from assay.domain.failure_codes import FailureCode
from services.worker.telemetry import Bulk

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_CHUNK = 1 << 20
_KEEP_IDLE = 55.0
_UNKNOWN = "unknown"
_MISSING = "artifact_missing"
_REFUSALS = 3
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class _Watched:
    """A file to send, in pieces; `check` is asked before each whether to go on."""

    path: Path
    check: Callable[[], None]

    def chunks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                self.check()
                yield chunk


_Body = BaseModel | _Watched | bytes | None


class StaleIncarnation(Conflict):
    """Another worker registered under this name; this one must not go on."""

    code = "stale_incarnation"


class ApiRefused(AssayError):
    """The API does not accept this request, and repeating it will not help."""

    code = FailureCode.API_REFUSED


class _Again(Exception):
    """This try failed; another may not."""

    def __init__(self, why: str, wait: float = 0) -> None:
        super().__init__(why)
        self.wait = wait


class AttemptApi(Protocol):
    """The calls that one attempt makes; see `WorkerApi`."""

    def claim(
        self,
        attempt: str,
        lease_token: int,
        *,
        devices: Sequence[str] = (),
        patience: float,
        give_up: threading.Event | None = None,
    ) -> None:
        """Take the attempt."""

    def progress(
        self,
        attempt: str,
        body: ProgressRequest,
        *,
        patience: float = 0,
        give_up: threading.Event | None = None,
    ) -> None:
        """Report how far it is."""

    def put_log(
        self,
        attempt: str,
        lease_token: int,
        bulk: Bulk,
        *,
        patience: float = 0,
        give_up: threading.Event | None = None,
    ) -> None:
        """Hand over log bytes that are too many for a report."""

    def upload(
        self,
        attempt: str,
        lease_token: int,
        path: Path,
        *,
        patience: float,
        give_up: threading.Event | None = None,
    ) -> ManifestEntry:
        """Store a file as an artifact."""
        ...

    def finish(
        self,
        attempt: str,
        body: FinishRequest,
        *,
        files: Mapping[str, Path] | None = None,
        patience: float,
        give_up: threading.Event | None = None,
    ) -> FinishResponse:
        """Hand over its end."""
        ...

    def codebase(
        self, sha256: str, *, patience: float, give_up: threading.Event | None = None
    ) -> bytes:
        """The zip of a codebase."""
        ...


class WorkerApi:
    """One worker's connection to the implementer API; safe to use from several threads.

    Raises from every call:
        Fenced: the attempt has passed to somebody else.
        Unavailable: the API did not answer, or answered 429 or 5xx, until patience ran out.
        ApiRefused: any other refusal.
    """

    def __init__(
        self, url: str, token: str, *, transport: httpx2.BaseTransport | None = None
    ) -> None:
        def authorise(request: httpx2.Request) -> httpx2.Request:
            request.headers["Authorization"] = f"Bearer {token}"
            return request

        self._client = _client(authorise, url, transport, base_url=url)
        self._store: httpx2.Client | None = None
        self._transport = transport
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def __enter__(self) -> WorkerApi:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls that wait for their next try give up."""
        self._closed.set()
        self._client.close()
        with self._lock:
            if self._store is not None:
                self._store.close()

    def register(self, body: WorkerRegistration, *, patience: float = 0) -> WorkerBody:
        """Announce this incarnation; the API counts everything an older one held as lost."""
        answer = self._send("POST", "/internal/v1/workers", body, patience=patience)
        return _read(WorkerBody, answer)

    def sync(self, worker: str, body: SyncRequest) -> SyncResponse:
        """Renew the leases of everything held and learn what to start and stop. Not retried.

        Raises:
            StaleIncarnation: another worker has this name now.
            NotFound: the API does not know this worker; register again.
        """
        path = f"/internal/v1/workers/{worker}/sync"
        answer = self._send("POST", path, body, timeout=body.wait_seconds + 20)
        return _read(SyncResponse, answer)

    def claim(
        self,
        attempt: str,
        lease_token: int,
        *,
        devices: Sequence[str] = (),
        patience: float,
        give_up: threading.Event | None = None,
    ) -> None:
        """Take an attempt; afterwards it is this worker's or `Fenced` was raised."""
        path = f"/internal/v1/attempts/{attempt}/claim"
        body = ClaimRequest(lease_token=lease_token, devices=list(devices))
        self._send("POST", path, body, patience=patience, give_up=give_up)

    def progress(
        self,
        attempt: str,
        body: ProgressRequest,
        *,
        patience: float = 0,
        give_up: threading.Event | None = None,
    ) -> None:
        """Report how far the attempt is; without patience for callers that report again anyway."""
        path = f"/internal/v1/attempts/{attempt}/progress"
        self._send("POST", path, body, patience=patience, give_up=give_up)

    def put_log(
        self,
        attempt: str,
        lease_token: int,
        bulk: Bulk,
        *,
        patience: float = 0,
        give_up: threading.Event | None = None,
    ) -> None:
        """Hand over log bytes that are too many for a report."""
        self._send(
            "PUT",
            f"/internal/v1/attempts/{attempt}/logs/{bulk.stream}",
            bulk.data,
            params={"lease_token": str(lease_token), "offset": str(bulk.offset)},
            patience=patience,
            give_up=give_up,
        )

    def upload(
        self,
        attempt: str,
        lease_token: int,
        path: Path,
        *,
        patience: float,
        give_up: threading.Event | None = None,
    ) -> ManifestEntry:
        """Store a file under its name as an artifact of the attempt.

        It is read piece by piece, and a try that was broken off starts anew. `patience` bounds
        all tries together, the one that is under way included.
        """
        deadline = time.monotonic() + patience

        def check() -> None:
            if time.monotonic() > deadline:
                raise _Again("there was no time to send it all")
            if self._given_up(0, give_up):
                raise _Again("given up")

        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        where = f"/internal/v1/attempts/{attempt}/artifacts/{path.name}"
        announced = UploadRequest(
            lease_token=lease_token, bytes=path.stat().st_size, sha256=sha256
        )
        params = {"lease_token": str(lease_token)}
        refused = _Refusals(f"upload of {path.name}")

        def once() -> ManifestEntry:
            answer = _accepted(self._once("POST", f"{where}/upload", announced))
            target = _read(UploadTarget, answer)
            if target.url is None:
                body = _Watched(path, check)
                answer = self._once("PUT", where, body, params=params, timeout=120)
                return _read(ManifestEntry, _accepted(answer))
            answer = self._at_store("PUT", target.url, _Watched(path, check), target.headers)
            refused.check(answer, exists=412)
            return ManifestEntry(name=path.name, bytes=announced.bytes, sha256=sha256)

        return self._repeated(f"upload of {path.name}", once, patience, give_up)

    def finish(
        self,
        attempt: str,
        body: FinishRequest,
        *,
        files: Mapping[str, Path] | None = None,
        patience: float,
        give_up: threading.Event | None = None,
    ) -> FinishResponse:
        """Hand over the end of an attempt. `give_up` ends the tries (the attempt is fenced).

        `files`: the artifacts that were uploaded, to be uploaded again if the store lacks one.
        """
        path = f"/internal/v1/attempts/{attempt}/finish"
        refused = 0
        while True:
            try:
                answer = self._send("POST", path, body, patience=patience, give_up=give_up)
            except ApiRefused as error:
                refused += 1
                if error.code != _MISSING or not files or refused == _REFUSALS:
                    raise
                for file in files.values():
                    self.upload(
                        attempt, body.lease_token, file, patience=patience, give_up=give_up
                    )
            else:
                return _read(FinishResponse, answer)

    def codebase(
        self, sha256: str, *, patience: float, give_up: threading.Event | None = None
    ) -> bytes:
        """The zip of a codebase; the caller checks its hash."""
        return self._fetch(f"/internal/v1/codebases/{sha256}", patience, give_up)

    def bundle(self, sha256: str, *, patience: float) -> bytes:
        """The zip of an environment; the caller checks its hash."""
        return self._fetch(f"/internal/v1/bundles/{sha256}", patience, None)

    def _fetch(self, path: str, patience: float, give_up: threading.Event | None) -> bytes:
        refused = _Refusals(f"GET {path}")

        def once() -> bytes:
            answer = self._once("GET", path)
            if answer.status_code != 307:
                return _accepted(answer).content
            answer = self._at_store("GET", answer.headers["Location"])
            if answer.status_code == 404:
                raise NotFound(f"GET {path}: the object store does not have it")
            return refused.check(answer).content

        return self._repeated(f"GET {path}", once, patience, give_up)

    def _send(
        self,
        method: str,
        path: str,
        body: _Body = None,
        *,
        params: dict[str, str] | None = None,
        patience: float = 0,
        timeout: float = 30,
        give_up: threading.Event | None = None,
    ) -> httpx2.Response:
        def once() -> httpx2.Response:
            return _accepted(self._once(method, path, body, params=params, timeout=timeout))

        return self._repeated(f"{method} {path}", once, patience, give_up)

    def _repeated(
        self,
        what: str,
        once: Callable[[], T],
        patience: float,
        give_up: threading.Event | None,
    ) -> T:
        """The outcome of `once`, tried until patience runs out."""
        deadline = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return once()
            except _Again as again:
                wait = max(again.wait, random.uniform(0.5, 1) * pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                if time.monotonic() + wait > deadline or self._given_up(wait, give_up):
                    raise Unavailable(f"{what}: {again}") from again

    def _once(
        self,
        method: str,
        path: str,
        body: _Body = None,
        *,
        params: dict[str, str] | None = None,
        timeout: float = 30,
    ) -> httpx2.Response:
        """One request to the API. Raises _Again for a connection error, 429 and 5xx."""
        content, headers = _content_of(body)
        return _tried(
            lambda: self._client.request(
                method, path, content=content, headers=headers, params=params, timeout=timeout
            )
        )

    def _at_store(
        self, method: str, url: str, body: _Body = None, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """One request to the object store, without the worker's token."""
        with self._lock:
            if self._store is None:
                self._store = _client(lambda request: request, url, self._transport)
            store = self._store
        content, own = _content_of(body)
        return _tried(
            lambda: store.request(
                method, url, content=content, headers={**own, **(headers or {})}, timeout=120
            )
        )

    def _given_up(self, seconds: float, give_up: threading.Event | None) -> bool:
        """Wait before the next try; True when there should be none."""
        if give_up is None:
            return self._closed.wait(seconds)
        return give_up.wait(seconds) or self._closed.is_set()


def _read(model: type[Model], answer: httpx2.Response) -> Model:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError as error:
        where = f"{answer.request.method} {answer.request.url.path}"
        raise ApiRefused(f"{where}: not an answer of the worker API: {error}") from error


def _client(
    auth: Callable[[httpx2.Request], httpx2.Request],
    url: str,
    transport: httpx2.BaseTransport | None,
    *,
    base_url: str = "",
) -> httpx2.Client:
    return httpx2.Client(
        base_url=base_url,
        auth=auth,  # explicit, so that a netrc file cannot replace it
        trust_env=urlsplit(url).hostname not in _LOOPBACK,  # no proxy to ourselves
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_IDLE
        ),
        timeout=httpx2.Timeout(30, connect=10),
        transport=transport,
    )


def _tried(request: Callable[[], httpx2.Response]) -> httpx2.Response:
    try:
        answer = request()
    except httpx2.TransportError as error:
        raise _Again(f"{type(error).__name__}: {error}") from error
    except RuntimeError as error:  # "client has been closed" by close()
        raise Unavailable(str(error)) from error
    if answer.status_code in _RETRIED:
        raise _Again(f"HTTP {answer.status_code}", _asked_to_wait(answer))
    return answer


class _Refusals:
    """What the object store refuses is tried a few times: a URL ends, bytes are damaged."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def check(self, answer: httpx2.Response, *, exists: int | None = None) -> httpx2.Response:
        """The answer, if it is a success or says that the object is there already."""
        if answer.is_success or answer.status_code == exists:
            return answer
        self._count += answer.status_code != 409  # that is a race, and ends
        # Its code alone: the rest of the answer may repeat what was signed.
        code = re.search(r"<Code>(\w{1,64})</Code>", answer.text)
        why = f"the object store answers HTTP {answer.status_code} {code[1] if code else ''}"
        if self._count >= _REFUSALS:
            raise ApiRefused(f"{self._what}: {why}", code=FailureCode.OBJECT_STORE_DENIED)
        raise _Again(why)


def _content_of(body: _Body) -> tuple[bytes | Iterator[bytes] | None, dict[str, str]]:
    if body is None:
        return None, {}
    if isinstance(body, BaseModel):
        return body.model_dump_json().encode(), {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream"}
    if isinstance(body, bytes):
        return body, headers
    headers["Content-Length"] = str(body.path.stat().st_size)
    return body.chunks(), headers


def _asked_to_wait(answer: httpx2.Response) -> float:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), 60.0) if text.isdigit() else 0.0


def _accepted(answer: httpx2.Response) -> httpx2.Response:
    if answer.is_success:
        return answer
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValidationError:  # an answer from something before the API, e.g. a proxy
        problem = Problem(title=answer.text[:200], status=answer.status_code, code=_UNKNOWN)
    text = f"{answer.request.method} {answer.request.url.path}: {problem.title} {problem.detail}"
    if problem.code == Fenced.code:
        raise Fenced(text)
    if problem.code == StaleIncarnation.code:
        raise StaleIncarnation(text)
    if answer.status_code == 404 and problem.code != _UNKNOWN:
        raise NotFound(text, code=problem.code)
    raise ApiRefused(text, code=problem.code)
