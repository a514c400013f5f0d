"""A client that waits for a service which is away, on a clock of the test."""

from __future__ import annotations

import httpx2
import pytest

from assay.client import APIConnectionError, Client, ClientError, Patience, ServerFault

HOUR = 3600.0


class Away:
    """A service that is away until a moment of its own clock, which only waiting moves."""

    def __init__(self, until: float, status: int | None = None) -> None:
        self.until = until
        self.status = status
        self.now = 0.0
        self.pauses: list[float] = []
        self.told: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if self.now >= self.until:
            return httpx2.Response(200, json={"version": "1"})
        if self.status is None:
            raise httpx2.ConnectError("refused", request=request)
        return httpx2.Response(self.status, json={})

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def client(self, seconds: float) -> Client:
        def away(error: ClientError) -> None:
            self.told.append("away")

        patience = Patience(
            seconds,
            on_away=away,
            on_back=lambda _: self.told.append("back"),
            clock=lambda: self.now,
        )
        http_client = httpx2.Client(transport=httpx2.MockTransport(self))
        return Client("http://test", http_client=http_client, sleep=self.sleep, patience=patience)


@pytest.mark.parametrize("status", [None, 502, 503, 504])
def test_a_request_outlasts_an_outage_and_says_so_once(status: int | None) -> None:
    service = Away(HOUR - 60, status)
    assert service.client(HOUR).version() == "1"
    assert service.told == ["away", "back"]
    assert max(service.pauses) <= 30.0
    assert service.pauses[2] < service.pauses[5] < service.pauses[8], "pauses grow"


def test_patience_ends() -> None:
    service = Away(3 * HOUR)
    with pytest.raises(APIConnectionError):
        service.client(HOUR).version()
    assert HOUR <= service.now < HOUR + 60
    assert service.told == ["away"]


@pytest.mark.parametrize(("seconds", "status"), [(0.0, None), (0.0, 503), (HOUR, 500)])
def test_without_patience_and_for_other_faults_retries_are_short(
    seconds: float, status: int | None
) -> None:
    service = Away(HOUR, status)
    with pytest.raises((APIConnectionError, ServerFault)):
        service.client(seconds).version()
    assert len(service.pauses) == 2
    assert service.told == []
