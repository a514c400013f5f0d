"""kill -9 of the whole service at three seeded moments; `make chaos` does twenty."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import IDEAS, kill_and_recover, undisturbed_seconds
from tests.support.needs import require_bubblewrap

pytestmark = [pytest.mark.bubblewrap, pytest.mark.slow]


@pytest.fixture(scope="module")
def typical_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the batch takes undisturbed."""
    require_bubblewrap()
    return undisturbed_seconds(tmp_path_factory.mktemp("undisturbed") / "data", "bubblewrap")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_killed_service_loses_and_doubles_nothing(
    tmp_path: Path, typical_s: float, seed: int
) -> None:
    moment = kill_and_recover(tmp_path, seed, typical_s, "bubblewrap")
    assert moment.experiments == IDEAS
    assert moment.results == IDEAS + 1  # the baseline is one more
