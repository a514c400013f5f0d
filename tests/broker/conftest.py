"""A Redis server of the tests' own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.needs import missing
from tests.support.stack import Redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    """A running Redis with a password, and users as servers set them."""
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    server = Redis(tmp_path, os.environ)
    server.start()
    yield server
    server.kill()
