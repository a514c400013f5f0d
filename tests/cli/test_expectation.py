"""How long the demo takes, as it says beforehand and on its way."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from assay.cli.demonstration import Demonstration
from assay.cli.expectation import (
    IDLE,
    MEASUREMENT_ROUNDS,
    Expectation,
    Speed,
    format_about,
    measure_speed,
    rounds_of,
    slots,
)
from assay.cli.output import Output
from assay.client import Client
from tests.cli.conftest import Cli

GIB = 1 << 30
#: Two processes, each with half a core that does 200 rounds per second.
BUSY = Speed(2, 100.0, 200.0)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_expectation_is_the_work_by_the_speed() -> None:
    expectation = Expectation(22, BUSY, rounds=1000.0, clock=Clock())
    assert expectation.seconds == 22 * 1000 / 100 / 2
    assert str(expectation) == (
        "expected: about 2 min (22 measurements, about 110 CPU-seconds on 2 cores, 50% of each "
        "free now)"
    )
    idle = Expectation(1, Speed(1, 200.0, 200.0), rounds=1000.0, clock=Clock())
    assert str(idle) == "expected: about 10 s (1 measurement, about 5 CPU-seconds on 1 core)"


def simulate(took: float, *, total: int = 22, later: float | None = None) -> list[float]:
    """Expected by true seconds left, at every second of a run on two slots.

    A measurement takes `took` times what the probe said, and from the middle on `later` times.
    """
    clock = Clock()
    expectation = Expectation(total, BUSY, rounds=1000.0, clock=clock)
    ends: list[float] = []
    free = [clock.now, clock.now]
    for number in range(total):
        slot = free.index(min(free))
        factor = later if later is not None and number >= total / 2 else took
        free[slot] += 10.0 * factor
        ends.append(free[slot])
    ratios = []
    with expectation.part(total) as left:
        while clock.now < max(ends) - 10.0 * (later or took):  # the last wave is over in a moment
            ratios.append(left(sum(end <= clock.now for end in ends)) / (max(ends) - clock.now))
            clock.now += 1.0
        assert left(total) == 0.0
    return ratios


@pytest.mark.parametrize("took", [0.6, 1.0, 1.8])
def test_under_a_steady_load_what_is_left_is_right_within_a_factor_of_two(took: float) -> None:
    ratios = simulate(took)
    assert min(ratios) >= 0.5
    assert max(ratios) <= 2.0


@pytest.mark.parametrize(("before", "after"), [(1.0, 3.0), (3.0, 1.0)])
def test_it_follows_a_load_that_changes(before: float, after: float) -> None:
    ratios = simulate(before, total=60, later=after)
    assert abs(ratios[0] - 1.0) > 0.3  # nobody could know
    assert 0.5 <= ratios[-1] <= 2.0


def test_what_is_not_made_is_not_waited_for() -> None:
    expectation = Expectation(8, BUSY, rounds=1000.0, clock=Clock())
    with expectation.part(4) as left:
        left(2)  # two ideas came to codebases that are measured
    with expectation.part(4) as left:
        assert left(4) == 0.0


def test_a_measurement_that_is_late_is_not_forgotten() -> None:
    clock = Clock()
    expectation = Expectation(4, BUSY, rounds=1000.0, clock=clock)
    clock.now += 10_000
    with expectation.part(4) as left:
        assert left(0) == expectation.seconds / 2


def test_what_is_measured_takes_seconds() -> None:
    expectation = Expectation(0, IDLE, rounds=1000.0, clock=Clock())
    assert str(expectation) == "expected: seconds, as everything is measured already"
    assert expectation.left == 0.0
    assert expectation.too_slow(1.0) is None
    assert expectation.outcome() == "Expected: seconds; taken: 0 s."


def test_a_machine_that_is_too_busy_is_told_before() -> None:
    expectation = Expectation(2, BUSY, rounds=1000.0, clock=Clock())
    assert expectation.too_slow(10.0) is None
    assert "takes about 10 s, and its training is ended after 9 s" in (
        expectation.too_slow(9.0) or ""
    )


def test_the_speed_is_that_of_this_machine() -> None:
    speed = measure_speed(2, seconds=0.1)
    assert speed.processes == 2
    assert 0 < speed.per_second <= speed.per_cpu_second * 1.5
    assert 0 < speed.share <= 1


@pytest.mark.parametrize(
    ("cpus", "gib", "expected"), [(1, 64.0, 1), (1, 2.0, 1), (64, 1.0, 1), (64, 8.0, 2)]
)
def test_slots_are_bounded_by_cores_and_memory(cpus: int, gib: float, expected: int) -> None:
    found = slots(cpus, int(gib * GIB), need_cpus=1, need_memory_gb=4.0, cores=4)
    assert found == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3, "10 s"), (44, "40 s"), (100, "2 min"), (290, "5 min"), (4000, "1 h 07 min")],
)
def test_lengths_pretend_no_precision(seconds: float, text: str) -> None:
    assert format_about(seconds) == text


def test_processors_with_bfloat16_have_less_to_do() -> None:
    plain, fast = (rounds_of("nanogpt", "tiny", name) for name in ("cpu-avx2", "cpu-bf16"))
    assert plain is not None
    assert fast is not None
    assert fast < plain
    assert rounds_of("toy", "tiny", "cpu-avx2") is None


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASUREMENT_ROUNDS, ("fake", "tiny"), 1000.0)


@pytest.mark.usefixtures("known")
def test_the_demo_says_what_it_expects_and_knows_what_is_measured(
    cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def speed(processes: int) -> Speed:
        asked.append(processes)
        return BUSY

    with Client(cli.url) as client:
        show = Demonstration(client, Output(), "fake", "tiny", measure_speed=speed)
        assert show.run() == []
        assert "expected: about 3 min (31 measurements" in capsys.readouterr().err
        again = Demonstration(client, Output(), "fake", "tiny", measure_speed=speed)
        assert again.run() == []
    assert "expected: seconds" in capsys.readouterr().err
    assert asked == [1]  # its worker has two cores, and memory for one
