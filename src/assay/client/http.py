"""Requests with retries: the part of the client that knows HTTP and nothing of Assay."""

from __future__ import annotations

import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import httpx2
from pydantic import BaseModel

from assay.client.errors import (
    APIConnectionError,
    APITimeoutError,
    ClientError,
    parse_problem,
    status_error,
)
from assay.client.outage import LONGEST_PAUSE, Patience

DEFAULT_URL = "http://127.0.0.1:8000"
RETRIES = 2
FIRST_DELAY = 0.5
LONGEST_DELAY = 8.0
LONGEST_RETRY_AFTER = 120.0
#: Problem codes of a 409 that means: the same request is being worked on, ask again.
IN_FLIGHT = frozenset({"in_flight", "idempotency_in_flight"})

Query = Mapping[str, str | int | bool | Sequence[str] | None]


class Http:
    """Sends requests to one service.

    A request is repeated `retries` times at most, after 0.5 s, 1 s, … (less a random part; the
    service's `Retry-After` wins), on connection errors, 408, 409 in flight, 429 and 5xx. If the
    service is away for longer, `patience` says for how long the request is repeated. Every
    POST carries an `Idempotency-Key` made once per call, so that a repetition changes nothing.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: str | None,
        timeout: float,
        http_client: httpx2.Client | None,
        retries: int = RETRIES,
        sleep: Callable[[float], None] = time.sleep,
        patience: Patience | None = None,
    ) -> None:
        url = base_url or os.environ.get("ASSAY_API_URL") or DEFAULT_URL
        self.base_url = url.rstrip("/")
        self._key = api_key or os.environ.get("ASSAY_API_KEY") or None
        self._timeout = timeout
        self._owned = http_client is None
        self._client = http_client or httpx2.Client(follow_redirects=False)
        self._retries = retries
        self.sleep = sleep
        self._patience = patience or Patience()

    @property
    def waits_for_service(self) -> bool:
        """Whether requests outlast an outage."""
        return self._patience.seconds > 0

    def close(self) -> None:
        """Close connections, unless the HTTP client was handed in."""
        if self._owned:
            self._client.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        accept: str = "application/json",
        idempotency_key: str | None = None,
    ) -> httpx2.Response:
        """Send a request, with retries; the response has been read and is a success.

        Raises:
            APIConnectionError: the service could not be reached.
            APIStatusError: the service answered with an error.
        """
        sent = self._headers(accept) | dict(headers or {})
        if method == "POST":
            sent["Idempotency-Key"] = idempotency_key or uuid.uuid4().hex
        content = _encode(body)
        if content is not None:
            sent["Content-Type"] = "application/json"
        request = self._client.build_request(
            method,
            self.base_url + path,
            params=_clean(query),
            content=content,
            headers=sent,
            timeout=httpx2.Timeout(self._timeout, connect=5.0),
        )
        return self._send(request)

    def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, again if that may help."""
        for repetition in count():
            try:
                response = self._client.send(request)
            except httpx2.TransportError as error:
                self._before_repeating(repetition, self.connection_error(error))
                continue
            self._patience.answered(response.status_code)
            if response.is_success or response.status_code == httpx2.codes.NOT_MODIFIED:
                return response
            refused = status_error(response)
            if not _worth_repeating(response):
                raise refused
            self._before_repeating(repetition, refused, response.headers.get("retry-after"))
        raise AssertionError("unreachable: the loop ends by returning or raising")

    def _before_repeating(
        self, repetition: int, error: ClientError, retry_after: str | None = None
    ) -> None:
        """Pause before a request is sent again. Raises `error` if it was repeated long enough."""
        delay = FIRST_DELAY * 2 ** min(repetition, 10)
        if repetition < self._retries:
            self.pause(delay, retry_after)
            return
        left = self._patience.left(error)
        if left <= 0:
            raise error
        self.sleep(min(delay * random.uniform(0.75, 1.0), LONGEST_PAUSE, left))

    @contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str], query: Query | None, idle_seconds: float
    ) -> Iterator[httpx2.Response]:
        """Open a response whose body arrives over time. No retries: the caller resumes.

        Raises:
            APIConnectionError: the connection failed or was idle for `idle_seconds`.
            APIStatusError: the service answered with an error.
        """
        timeout = httpx2.Timeout(self._timeout, connect=5.0, read=idle_seconds)
        request = self._client.build_request(
            "GET",
            self.base_url + path,
            params=_clean(query),
            headers=self._headers("text/event-stream") | dict(headers),
            timeout=timeout,
        )
        try:
            response = self._client.send(request, stream=True)
            self._patience.answered(response.status_code)
            try:
                if not response.is_success:
                    response.read()
                    raise status_error(response)
                yield response
            finally:
                response.close()
        except httpx2.TransportError as error:
            raise self.connection_error(error) from error

    def pause(self, seconds: float, retry_after: str | None = None) -> None:
        """Sleep for a back-off, or for as long as the service asked."""
        asked = _seconds(retry_after)
        if asked is not None:
            self.sleep(min(asked, LONGEST_RETRY_AFTER))
        else:
            self.sleep(min(seconds, LONGEST_DELAY) * random.uniform(0.75, 1.0))

    def connection_error(self, error: httpx2.TransportError) -> APIConnectionError:
        """Our error for one of the HTTP library's."""
        if isinstance(error, httpx2.TimeoutException):
            return APITimeoutError(f"{self.base_url} did not answer in time; try again")
        why = str(error) or type(error).__name__
        return APIConnectionError(
            f"cannot reach the Assay service at {self.base_url} ({why}); "
            "start one with `assay serve`, or set ASSAY_API_URL"
        )

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept, "User-Agent": "assay-client"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers


def _encode(body: BaseModel | Mapping[str, Any] | None) -> bytes | None:
    if body is None:
        return None
    if isinstance(body, BaseModel):
        return body.model_dump_json(exclude_none=True).encode()
    return json.dumps(body).encode()


def _clean(query: Query | None) -> dict[str, str | list[str]]:
    """Query parameters without those that are None; booleans as JSON writes them; a list is a
    parameter that is repeated."""
    return {name: _parameter(value) for name, value in (query or {}).items() if value is not None}


def _parameter(value: str | int | bool | Sequence[str]) -> str | list[str]:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else list(value)


def _worth_repeating(response: httpx2.Response) -> bool:
    status = response.status_code
    if status == httpx2.codes.CONFLICT:
        return parse_problem(response).code in IN_FLIGHT
    return status in (408, 429) or status >= 500


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a `Retry-After` header; dates are not used by the service."""
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
