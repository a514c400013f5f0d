"""Sandboxes started and killed leave nothing behind (`make bench-sandbox` does a thousand)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from assay.sandbox import SandboxSettings, open_sandbox
from tests.sandbox.docker_engine import HOST as ENGINE
from tests.support import leftovers as bench


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("subprocess", 10),
        pytest.param("bubblewrap", 20, marks=pytest.mark.bubblewrap),
        pytest.param("docker", 4, marks=pytest.mark.docker),
    ],
)
def test_nothing_is_left_of_many_sandboxes(name: str, count: int, tmp_path: Path) -> None:
    settings = SandboxSettings(
        name, scratch=tmp_path, docker_host=ENGINE, scope=bench.SCOPE, grace_seconds=0.1
    )
    sandbox = open_sandbox(settings)
    mark = f"{time.time_ns()}"
    before = bench.traces(tmp_path, mark, ENGINE)
    for number in range(count):
        bench.torment(sandbox, tmp_path, number, mark)
    left = bench.traces(tmp_path, mark, ENGINE).minus(before)
    assert set(left.values()) == {0}, left
