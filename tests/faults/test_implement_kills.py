"""kill -9 of the implement worker again and again: no answer is paid for twice."""

from __future__ import annotations

import pytest

from tests.support.faults.arena import Arena
from tests.support.faults.implement_kills import check_drill, drill

pytestmark = pytest.mark.postgres


def test_02_twelve_kills(arena: Arena) -> None:
    """`python -m benchmarks.chaos implement` kills it fifty times."""
    outcome = check_drill(arena, drill(arena, kills=12, staged=24, paper=8, seed=1))
    assert outcome.kills_that_hit_calls >= 6, outcome
