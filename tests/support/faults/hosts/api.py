"""The worker API for many hosts at once: one pool of connections, typed answers."""

from __future__ import annotations

import io
import tomllib
import zipfile
from typing import TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel

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

Model = TypeVar("Model", bound=BaseModel)
BASE = "/internal/v1"
_AWAY = frozenset({408, 425, 429, 500, 502, 503, 504})


class Away(Exception):
    """The API did not answer, or says that it cannot now: ask again."""


class Refused(Exception):
    """The API answered no."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(f"{status} {code}: {text}")
        self.status = status
        self.code = code


class FleetApi:
    """Connections that all hosts of a process share; each call names its host's token."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.AsyncClient(
            base_url=url,
            trust_env=urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=256),
            timeout=httpx2.Timeout(30, connect=5),
        )
        self._metrics: dict[str, str] = {}

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def register(self, token: str, body: WorkerRegistration) -> WorkerBody:
        """Announce a host's new incarnation."""
        return _read(WorkerBody, await self._post(token, "/workers", body))

    async def sync(self, token: str, worker: str, body: SyncRequest) -> SyncResponse:
        """Say what is held; learn what to start and what to stop."""
        path, timeout = f"/workers/{worker}/sync", body.wait_seconds + 15
        return _read(SyncResponse, await self._post(token, path, body, timeout))

    async def claim(self, token: str, attempt: str, body: ClaimRequest) -> None:
        """Take an attempt."""
        await self._post(token, f"/attempts/{attempt}/claim", body)

    async def progress(self, token: str, attempt: str, body: ProgressRequest) -> None:
        """Report how far an attempt is."""
        await self._post(token, f"/attempts/{attempt}/progress", body)

    async def finish(self, token: str, attempt: str, body: FinishRequest) -> FinishResponse:
        """Hand over the end of an attempt."""
        answer = await self._post(token, f"/attempts/{attempt}/finish", body)
        return _read(FinishResponse, answer)

    async def upload(
        self, token: str, attempt: str, lease_token: int, entry: ManifestEntry, data: bytes
    ) -> None:
        """Store a file where the API says: in the object store, or at the API."""
        path = f"/attempts/{attempt}/artifacts/{entry.name}"
        asked = UploadRequest(lease_token=lease_token, bytes=entry.bytes, sha256=entry.sha256)
        target = _read(UploadTarget, await self._post(token, f"{path}/upload", asked))
        if target.url is not None:
            await self._call("PUT", target.url, target.headers, data, timeout=30)
            return
        headers = {"Authorization": f"Bearer {token}", "Content-Length": str(len(data))}
        url = f"{BASE}{path}?lease_token={lease_token}"
        await self._call("PUT", url, headers, data, timeout=30)

    async def metric(self, token: str, bundle: str) -> str:
        """The name of an environment's metric, from its bundle."""
        if bundle not in self._metrics:
            headers = {"Authorization": f"Bearer {token}"}
            answer = await self._call("GET", f"{BASE}/bundles/{bundle}", headers, None, timeout=30)
            if answer.is_redirect:
                answer = await self._call("GET", answer.headers["Location"], {}, None, timeout=30)
            with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
                manifest = tomllib.loads(archive.read("environment.toml").decode())
            self._metrics[bundle] = str(manifest["metric"]["name"])
        return self._metrics[bundle]

    async def _post(
        self, token: str, path: str, body: BaseModel, timeout: float = 30
    ) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = body.model_dump_json(exclude_defaults=True).encode()
        return await self._call("POST", BASE + path, headers, data, timeout)

    async def _call(
        self, method: str, url: str, headers: dict[str, str], data: bytes | None, timeout: float
    ) -> httpx2.Response:
        try:
            answer = await self._client.request(
                method, url, headers=headers, content=data, timeout=timeout
            )
        except httpx2.TransportError as error:
            raise Away(f"{method} {url}: {type(error).__name__}: {error}") from error
        if answer.is_success or answer.is_redirect:
            return answer
        if answer.status_code in _AWAY:
            raise Away(f"{method} {url}: {answer.status_code} {answer.text[:200]}")
        raise Refused(answer.status_code, _code(answer), answer.text[:300])


def _code(answer: httpx2.Response) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _read(model: type[Model], answer: httpx2.Response) -> Model:
    return model.model_validate_json(answer.content)
