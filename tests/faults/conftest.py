"""One server-mode stack for all tests of this folder that a process of pytest runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.arena import Arena
from tests.support.needs import missing
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="package")
def cluster() -> Iterator[PostgresServer]:
    """A Postgres cluster that may be killed."""
    if not PostgresServer.available():
        missing("the programs of a Postgres server (initdb, postgres) are not installed")
    folder = Path(tempfile.mkdtemp(prefix="assay-postgres-"))
    folder.chmod(0o711)
    try:
        with PostgresServer(folder / "cluster") as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Arenas:
    """The arena in use; one that a test has left broken is replaced."""

    def __init__(self, folder: Path, cluster: PostgresServer) -> None:
        self._folder = folder
        self._cluster = cluster
        self._current: Arena | None = None
        self._made = 0

    def current(self) -> Arena:
        """An arena that is whole."""
        if self._current is None:
            self._made += 1
            self._current = Arena(self._folder / str(self._made), self._cluster).__enter__()
        self._current.heal()
        return self._current

    def discard(self) -> None:
        """End it."""
        arena, self._current = self._current, None
        if arena is not None:
            arena.__exit__()


@pytest.fixture(scope="package")
def arenas(cluster: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    """Server mode, started once."""
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("AWS_ACCESS_KEY_ID", "test")
        variables.setenv("AWS_SECRET_ACCESS_KEY", "test")
        arenas = Arenas(tmp_path_factory.mktemp("arenas"), cluster)
        yield arenas
        arenas.discard()


@pytest.fixture
def arena(arenas: Arenas) -> Iterator[Arena]:
    """Server mode, whole before the test; the invariants hold at its end."""
    arena = arenas.current()
    yield arena
    try:
        arena.heal()
        arena.sound()
    except BaseException:
        arenas.discard()
        raise
