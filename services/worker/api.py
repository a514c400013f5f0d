"""The worker API over HTTP: thin, typed, and patient with a server that is away.

Every call may be repeated: reports carry the lease token and offsets, uploads are by name, and a
second `finish` is answered with the stored state. So connection errors, 429 and 5xx are retried,
with full jitter, for as long as the call's patience lasts.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, ValidationError

from assay.contracts.base import Problem
from assay.contracts.worker import (
    FinishRequest,
    FinishResponse,
    LeaseRequest,
    ManifestEntry,
    ProgressRequest,
    SyncRequest,
    SyncResponse,
    WorkerBody,
    WorkerRegistration,
)
from assay.domain.errors import AssayError, Conflict, Fenced, NotFound, Unavailable

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_CHUNK = 1 << 20
_KEEP_IDLE = 55.0
_UNKNOWN = "unknown"
Model = TypeVar("Model", bound=BaseModel)
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})


class StaleIncarnation(Conflict):
    """Another worker registered under this name; this one must not go on."""

    code = "stale_incarnation"


class ApiRefused(AssayError):
    """The API does not accept this request, and repeating it will not help."""

    code = "api_refused"


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

        host = urlsplit(url).hostname or ""
        self._client = httpx2.Client(
            base_url=url,
            auth=authorise,  # explicit, so that a netrc file cannot replace it
            trust_env=host not in ("127.0.0.1", "localhost", "::1"),  # no proxy to ourselves
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_IDLE
            ),
            timeout=httpx2.Timeout(30, connect=10),
            transport=transport,
        )
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
        patience: float,
        give_up: threading.Event | None = None,
    ) -> None:
        """Take an attempt; afterwards it is this worker's or `Fenced` was raised."""
        path = f"/internal/v1/attempts/{attempt}/claim"
        body = LeaseRequest(lease_token=lease_token)
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
        self._send("POST", path, body, patience=patience, timeout=10, give_up=give_up)

    def upload(
        self,
        attempt: str,
        lease_token: int,
        path: Path,
        *,
        patience: float,
        give_up: threading.Event | None = None,
    ) -> ManifestEntry:
        """Store a file under its name as an artifact of the attempt."""
        answer = self._send(
            "PUT",
            f"/internal/v1/attempts/{attempt}/artifacts/{path.name}",
            path,
            params={"lease_token": str(lease_token)},
            patience=patience,
            timeout=120,
            give_up=give_up,
        )
        return _read(ManifestEntry, answer)

    def finish(
        self,
        attempt: str,
        body: FinishRequest,
        *,
        patience: float,
        give_up: threading.Event | None = None,
    ) -> FinishResponse:
        """Hand over the end of an attempt. `give_up` ends the tries (the attempt is fenced)."""
        path = f"/internal/v1/attempts/{attempt}/finish"
        answer = self._send("POST", path, body, patience=patience, give_up=give_up)
        return _read(FinishResponse, answer)

    def codebase(
        self, sha256: str, *, patience: float, give_up: threading.Event | None = None
    ) -> bytes:
        """The zip of a codebase; the caller checks its hash."""
        path = f"/internal/v1/codebases/{sha256}"
        return self._send("GET", path, patience=patience, give_up=give_up).content

    def bundle(self, sha256: str, *, patience: float) -> bytes:
        """The zip of an environment; the caller checks its hash."""
        return self._send("GET", f"/internal/v1/bundles/{sha256}", patience=patience).content

    def _send(
        self,
        method: str,
        path: str,
        body: BaseModel | Path | None = None,
        *,
        params: dict[str, str] | None = None,
        patience: float = 0,
        timeout: float = 30,
        give_up: threading.Event | None = None,
    ) -> httpx2.Response:
        content = _content_of(body)
        deadline = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while True:
            payload, headers = content()
            try:
                answer = self._client.request(
                    method, path, content=payload, headers=headers, params=params, timeout=timeout
                )
            except httpx2.TransportError as error:
                wait, why = 0.0, f"{type(error).__name__}: {error}"
            except RuntimeError as error:  # "client has been closed" by close()
                raise Unavailable(f"{method} {path}: {error}") from error
            else:
                if answer.status_code not in _RETRIED:
                    return _accepted(answer)
                wait, why = _asked_to_wait(answer), f"HTTP {answer.status_code}"
            wait = max(wait, random.uniform(0.5, 1) * pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
            if time.monotonic() + wait > deadline or self._given_up(wait, give_up):
                raise Unavailable(f"{method} {path}: {why}")

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


def _content_of(
    body: BaseModel | Path | None,
) -> Callable[[], tuple[bytes | Iterator[bytes] | None, dict[str, str]]]:
    """How to make the request body, anew for every try."""
    if body is None:
        return lambda: (None, {})
    if isinstance(body, BaseModel):
        data, json = body.model_dump_json().encode(), {"Content-Type": "application/json"}
        return lambda: (data, json)
    path, size = body, body.stat().st_size
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    if size <= _CHUNK:
        small = path.read_bytes()
        return lambda: (small, headers)
    return lambda: (_chunks(path), headers)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


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
