"""One server-mode stack for all tests of this folder that a process of pytest runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.arena import Arena
from tests.support.needs import missing
from tests.support.postgres import PostgresServer, temporary_postgres
from tests.support.warm_start import Spawn, WarmStart

HERE = Path(__file__).parent
#: What of this folder the default tier runs: without servers, in seconds.
DEFAULT_TIER = ("test_kill.py", "test_devices.py")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every other test of this folder as slow."""
    for item in items:
        if item.path.parent == HERE and item.path.name not in DEFAULT_TIER:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def warm_start() -> Iterator[Spawn]:
    """A way to start services in a fraction of a second."""
    with WarmStart() as warm:
        yield warm.spawn


@pytest.fixture(scope="package")
def cluster() -> Iterator[PostgresServer]:
    """A Postgres cluster that may be killed."""
    if not PostgresServer.available():
        missing("the programs of a Postgres server (initdb, postgres) are not installed")
    with temporary_postgres() as server:
        yield server


class Arenas:
    """The arena in use; one that a test has left broken is replaced."""

    def __init__(self, folder: Path, cluster: PostgresServer, spawn: Spawn) -> None:
        self._folder = folder
        self._cluster = cluster
        self._spawn = spawn
        self._current: Arena | None = None
        self._made = 0

    def current(self) -> Arena:
        """Return an arena in which everything works."""
        if self._current is None:
            self._made += 1
            folder = self._folder / str(self._made)
            self._current = Arena(folder, self._cluster, spawn=self._spawn).__enter__()
        self._current.heal()
        return self._current

    def end(self) -> None:
        """Look at everything once more, and stop the arena in use."""
        try:
            if self._current is not None:
                self._current.sound(again=True)
        finally:
            self.discard()

    def discard(self) -> None:
        """Stop the arena in use."""
        arena, self._current = self._current, None
        if arena is not None:
            arena.__exit__()


@pytest.fixture(scope="package")
def arenas(
    cluster: PostgresServer, warm_start: Spawn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arenas]:
    """Server mode, started once."""
    if shutil.which("redis-server") is None:
        missing("redis-server is not installed")
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("AWS_ACCESS_KEY_ID", "test")
        variables.setenv("AWS_SECRET_ACCESS_KEY", "test")
        arenas = Arenas(tmp_path_factory.mktemp("arenas"), cluster, warm_start)
        yield arenas
        arenas.end()


@pytest.fixture
def arena(arenas: Arenas) -> Iterator[Arena]:
    """Server mode in which everything works before the test, and the invariants hold after it."""
    arena = arenas.current()
    yield arena
    try:
        arena.heal()
        arena.sound()
    except BaseException:
        arenas.discard()
        raise
