"""kill -9 of the embedded service: the two kills that every run of the tests sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults.embedded import EmbeddedService, die_at
from tests.support.warm_start import Spawn


@pytest.mark.parametrize("point", ["scheduler-after-commit", "manifest-before"])
def test_a_service_that_dies_in_the_middle(tmp_path: Path, warm_start: Spawn, point: str) -> None:
    """Work is assigned and not begun; a result is stored and not committed."""
    service = EmbeddedService(tmp_path / "data", spawn=warm_start)
    die_at(service, point, tmp_path / "mark", ideas=2)
    assert service.stop() == 0
