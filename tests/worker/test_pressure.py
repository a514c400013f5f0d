"""A worker whose host is busy with others takes less work."""

from __future__ import annotations

from contextlib import ExitStack

from services.worker.pressure import WINDOW_SECONDS, Pressure


class Host:
    """Trainings on a host, and its clock, as a test moves them on."""

    def __init__(self, cpus: int) -> None:
        self.now = 0.0
        self.lost: list[float] = []
        self.pressure = Pressure(cpus, clock=lambda: self.now)

    def start(self, running: ExitStack) -> None:
        place = len(self.lost)
        self.lost.append(0.0)
        running.enter_context(self.pressure.watching(lambda: self.lost[place]))

    def passes(self, share: float, seconds: float = WINDOW_SECONDS) -> int:
        self.now += seconds
        self.lost = [lost + share * seconds for lost in self.lost]
        return self.pressure.usable_cpus()


def test_a_worker_offers_half_while_its_trainings_starve_and_more_again_later() -> None:
    host = Host(8)
    with ExitStack() as running:
        for _ in range(2):
            host.start(running)
        assert host.passes(0.1) == 8
        assert [host.passes(0.6) for _ in range(4)] == [4, 2, 1, 1]
        assert host.passes(0.3) == 1, "neither too busy nor idle"
        assert [host.passes(0.1) for _ in range(2)] == [2, 3]
    assert host.passes(0.0) == 4, "nothing runs"


def test_a_moment_decides_nothing() -> None:
    host = Host(4)
    with ExitStack() as running:
        host.start(running)
        assert host.passes(1.0, WINDOW_SECONDS / 2) == 4


def test_what_was_lost_before_is_not_counted_again() -> None:
    host = Host(4)
    with ExitStack() as running:
        host.start(running)
        assert host.passes(0.9) == 2
        assert host.passes(0.0) == 3
