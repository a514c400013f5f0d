"""What a test needs of its machine: skipped where it is missing, a failure where CI=true."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from assay.sandbox import SandboxUnavailable, choose_sandbox


def missing(what: str) -> None:
    """Skip the test on a developer's machine; fail it where everything must be installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def require_git() -> None:
    """Require git, for tests that compare with it."""
    if shutil.which("git") is None:
        missing("git is not installed")


def require_bubblewrap() -> None:
    """Require a bubblewrap that can start a sandbox here.

    A sandbox that starts and does not isolate is a failure everywhere: the machine lacks nothing.
    """
    problem = _bubblewrap_problem()
    if problem is not None and "does not hold" in problem:
        pytest.fail(problem)
    if problem is not None:
        missing(f"bubblewrap does not work: {problem}")


@functools.cache
def _bubblewrap_problem() -> str | None:
    with tempfile.TemporaryDirectory() as scratch:
        try:
            choose_sandbox("bubblewrap", Path(scratch))
        except SandboxUnavailable as error:
            return str(error)
    return None
