"""A real worker that is killed at every step, or whose clock lies."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.support.faults.arena import REAL, Arena

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("point", ["worker-claimed", "worker-started", "worker-finishing"])
def test_08_a_worker_killed_between_two_steps(arena: Arena, point: str) -> None:
    """Claim, start, report, finish: what it held is measured again under another lease."""
    worker = arena.real_worker()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with arena.killed_at(worker, point):
        batch = arena.submit(3, REAL)
    arena.finish(batch)
    attempts = arena.attempts(batch)
    assert [a for a in attempts if a.state == "lost"], "nothing was held when it was killed"
    assert sorted(a.measurement_id for a in attempts if a.state == "succeeded") == sorted(
        {a.measurement_id for a in attempts}
    )
    assert len({(a.id, a.lease_token) for a in attempts}) == len(attempts)
    arena.sound(
        scratch=[arena.stack.folder / f"scratch-{REAL}"],
        processes=lambda: _training(before),
    )


def _training(before: set[int]) -> list[str]:
    """Processes of codebases that outlived their worker."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        is_codebase = any(Path(word).name == "search.py" for word in words)
        if is_codebase and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(f"{process.pid}: {' '.join(words)}")
    return found


def test_26_the_clock_of_a_host_jumps_by_hours(arena: Arena) -> None:
    """Budgets and leases do not know the time of day."""
    worker = arena.real_worker()
    with arena.killed_at(worker, "wall-clock", dies=False) as mark:
        batch = arena.submit(4, REAL)
        arena.finish(batch)
        assert abs(float(mark.read_text())) > 7000
    assert [a.state for a in arena.attempts(batch)] == ["succeeded"] * 4
