"""Server mode as separate processes, for tests that kill parts of it."""

from __future__ import annotations

import importlib.util
import shutil

from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from tests.support.databases import POSTGRES
from tests.support.needs import missing


def require_servers() -> str:
    """Postgres, Redis and an S3 server must be there. Returns the address of Postgres."""
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    if importlib.util.find_spec("moto") is None:
        missing("moto is not installed")
    engine = create_engine(POSTGRES)
    try:
        engine.connect().close()
    except OperationalError as error:
        missing(f"no Postgres at {POSTGRES} (set ASSAY_TEST_POSTGRES): {error.orig}")
    finally:
        engine.dispose()
    return POSTGRES
