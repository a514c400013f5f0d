"""The API over both databases, with rows that a test drives by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from assay.environments.catalog import Catalog
from assay.storage.database import Database
from assay.storage.objects import LocalStore
from services.implementer.app import create_app
from services.implementer.context import Context
from services.implementer.settings import ImplementerSettings
from tests.storage.lifecycle import World


@pytest.fixture
def world(db: Database, store: LocalStore, catalog: Catalog) -> World:
    return World.create(db, store, catalog)


@pytest.fixture
def context(db: Database, store: LocalStore, catalog: Catalog) -> Context:
    return Context(db, store, catalog, ImplementerSettings(), variables={})


@pytest.fixture
def api(context: Context) -> Iterator[TestClient]:
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield client
