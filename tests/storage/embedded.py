"""The embedded service inside a test, over any database: the same parts, composed once more."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from assay.client import Client
from assay.storage import schema
from assay.storage.database import Database
from services.local.service import LocalService
from services.local.settings import LocalSettings
from tests.storage.recorded import HARDWARE_CLASS


class OnDatabase(LocalSettings):
    """Settings of an embedded service with a database elsewhere."""

    database_url: str

    @property
    def url(self) -> str:
        return self.database_url


@contextmanager
def serving(db: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A service over a database and the objects in a folder, and a client of it."""
    monkeypatch.setenv("ASSAY_WORKER_HARDWARE_CLASS", HARDWARE_CLASS)
    monkeypatch.setenv("ASSAY_WORKER_HELD_OUT_KEY", "")
    settings = OnDatabase.model_validate(
        {
            "database_url": db.url,
            "data_dir": folder,
            "port": 0,
            "sandbox": "subprocess",
            "cpus": 2,
        }
    )
    switch = sys.getswitchinterval()
    service = LocalService(settings)
    service.start()
    try:
        with Client(service.api_url) as client:
            yield client
        assert not service.failed.is_set(), service.failure
    finally:
        service.stop()
        sys.setswitchinterval(switch)


def results(session: Session) -> dict[str, tuple[object, ...]]:
    """Every result by its measurement; reads columns that all versions have."""
    table = schema.Result
    rows = session.execute(
        select(
            table.measurement_id, table.attempt_id, table.metric, table.metrics, table.created_at
        )
    )
    return {measurement: tuple(rest) for measurement, *rest in rows}
