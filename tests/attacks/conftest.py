"""The isolating backends, each attacked in the same way, and the one that isolates nothing."""

import atexit
import functools
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.sandbox import Mount, Sandbox, SandboxError, SandboxSettings, open_sandbox
from services.worker.folders import remove_tree
from tests.attacks.arena import Arena
from tests.support.needs import missing

BACKENDS = ("bubblewrap", pytest.param("docker", marks=pytest.mark.docker))
ENGINE = os.environ.get("ASSAY_TEST_DOCKER", "unix:///tmp/assay-docker/docker.sock")
_passed: Counter[str] = Counter()


def settings_of(name: str, scratch: Path) -> SandboxSettings:
    """Settings of a backend; the scope keeps other people's containers out of reach."""
    return SandboxSettings(
        name,
        grace_seconds=0.5,
        scratch=scratch,
        docker_host=ENGINE if name == "docker" else None,
        scope=f"attacks-{os.getpid()}",
    )


@functools.cache
def _open(name: str) -> Sandbox | str:
    """A backend that runs a program here, or why it does not."""
    scratch = Path(tempfile.mkdtemp(prefix="assay-attacks-"))
    atexit.register(remove_tree, scratch)
    try:
        sandbox = open_sandbox(settings_of(name, scratch))
        ended = Arena(sandbox, scratch).run("control('runs', lambda: True)")
    except (SandboxError, ValueError) as error:
        return str(error)
    return sandbox if ended.controls else f"{ended.exit}: {ended.err}"


def _arena(name: str, folder: Path) -> Arena:
    sandbox = _open(name)
    if isinstance(sandbox, str):
        missing(f"the backend {name} does not work here: {sandbox}")
        raise AssertionError  # `missing` has skipped or failed
    logs = folder / "logs"
    logs.mkdir()
    return Arena(sandbox, logs)


@pytest.fixture(params=BACKENDS)
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    """Every isolating backend in turn."""
    return _arena(request.param, tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Arena:
    """The backend without isolation: what it does not stop must stay true, too."""
    return _arena("subprocess", tmp_path)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Mount]:
    """A writable folder, seen as /job."""
    path = tmp_path / "workspace"
    path.mkdir()
    (path / "given.txt").write_text("given")
    yield Mount(path, "/job", writable=True)
    remove_tree(path)  # nested too deeply for pytest


@pytest.fixture
def inputs(tmp_path: Path) -> Mount:
    """A read-only folder, seen as /data."""
    path = tmp_path / "inputs"
    path.mkdir()
    (path / "part.txt").write_text("data")
    (path / "part.txt").chmod(0o644)
    path.chmod(0o755)
    return Mount(path, "/data")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed and "attacks/isolation" in report.nodeid:
        _passed[report.nodeid.split("::")[0].rpartition("test_")[2].removesuffix(".py")] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many attack tests passed in each family."""
    if _passed:
        counts = ", ".join(f"{family} {count}" for family, count in sorted(_passed.items()))
        terminalreporter.write_line(f"isolation attacks repelled or recorded: {counts}")
