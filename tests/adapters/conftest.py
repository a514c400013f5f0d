"""One service for all adapters: what one of them measured, another one shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assay.client import Client
from tests.support.service import ServiceProcess


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service") / "data")
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client() as client:
        yield client
