"""Time for which a host keeps a program waiting is not the program's; time asleep is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from assay.sandbox import Exit, Limits, SandboxSettings, SandboxSpec
from assay.sandbox.bubblewrap import BubblewrapSandbox
from assay.sandbox.cgroups import ControlGroups
from assay.sandbox.starvation import LOOK_SECONDS, Starvation, threads_of, waits_of
from tests.support.busy_host import busy_host
from tests.support.needs import missing

pytestmark = pytest.mark.bubblewrap

SPIN = """
import time
while time.process_time() < {seconds}:
    pass
"""


class Machine:
    """Threads, their waits and the clock, as a test moves them on."""

    def __init__(self, processors: float | None = 1.0) -> None:
        self.now = 100.0
        self.used = 0.0
        self.waits: dict[int, float] = {}
        self.pressed = 0.0
        self.starvation = Starvation(
            lambda: dict(self.waits),
            lambda: self.used,
            processors,
            pressure=lambda: self.pressed,
            clock=lambda: self.now,
        )

    def move(self, seconds: float, *, used: float, waited: dict[int, float]) -> float:
        self.now += seconds
        self.used += used
        for tid, wait in waited.items():
            self.waits[tid] = self.waits.get(tid, 0.0) + wait
        return self.starvation.seconds(now=True)


def test_waiting_for_a_processor_is_lost_and_sleeping_is_not() -> None:
    machine = Machine()
    assert machine.move(10, used=2, waited={1: 8}) == pytest.approx(8)
    assert machine.move(10, used=1, waited={1: 0}) == pytest.approx(8)
    assert machine.move(10, used=1, waited={1: 3}) == pytest.approx(11)


def test_threads_that_wait_within_their_own_share_lose_nothing() -> None:
    machine = Machine(processors=1.0)
    assert machine.move(10, used=10, waited={1: 7, 2: 7, 3: 7}) == 0


def test_the_same_second_is_not_lost_twice() -> None:
    machine = Machine(processors=2.0)
    assert machine.move(10, used=4, waited={1: 8, 2: 8}) == pytest.approx(8)


def test_a_thread_id_that_is_given_anew_starts_at_nothing() -> None:
    machine = Machine()
    machine.move(10, used=1, waited={1: 9})
    machine.waits = {1: 2.0}
    assert machine.move(10, used=1, waited={}) == pytest.approx(9 + 2)


def test_a_wait_that_is_booked_when_it_ends_counts_for_all_of_its_time() -> None:
    machine = Machine()
    for _ in range(6):
        assert machine.move(0.5, used=0, waited={1: 0}) == 0
    assert machine.move(0.5, used=0.1, waited={1: 3.2}) == pytest.approx(3.1)


def test_a_wait_explains_no_more_than_was_missing() -> None:
    machine = Machine()
    machine.move(10, used=9, waited={1: 0})
    assert machine.move(0.5, used=0, waited={1: 8}) == pytest.approx(0.5 + 1)
    assert machine.move(0.5, used=0, waited={1: 8}) == pytest.approx(1.5 + 0.5), "explained once"


@pytest.mark.parametrize(("processors", "lost"), [(1.0, 8), (2.0, 0)])
def test_pressure_tells_of_threads_that_ended_since(processors: float, lost: float) -> None:
    machine = Machine(processors)
    machine.pressed = 8
    assert machine.move(10, used=1, waited={}) == pytest.approx(lost)


def test_a_thread_that_binds_itself_is_not_counted() -> None:
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        missing("one processor: nothing to be bound to")
    assert waits_of(threads_of(os.getpid())).keys() >= {threading.get_native_id()}
    try:
        os.sched_setaffinity(0, processors[:1])
        found: dict[int, float] = {}
        code = "import sys; sys.stdin.read()"
        command = [sys.executable, "-I", "-S", "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as bound:
            os.sched_setaffinity(0, processors)
            found = waits_of(threads_of(bound.pid))
            bound.kill()
    finally:
        os.sched_setaffinity(0, processors)
    assert found == {}


def test_what_nobody_counts_is_not_lost() -> None:
    assert Machine().move(100, used=0, waited={}) == 0


def test_it_looks_now_and_then() -> None:
    machine = Machine()
    machine.now += LOOK_SECONDS / 2
    machine.waits = {1: LOOK_SECONDS / 2}
    assert machine.starvation.seconds() == 0
    machine.now += LOOK_SECONDS
    assert machine.starvation.seconds() == pytest.approx(LOOK_SECONDS / 2)


def run(folder: Path, groups: ControlGroups, code: str, limits: Limits) -> Exit:
    sandbox = BubblewrapSandbox(SandboxSettings("bubblewrap", scratch=folder), groups)
    argv = (sandbox.python, "-I", "-S", "-c", code)
    return sandbox.start(SandboxSpec("starved", argv, {}, (), "/", limits)).wait()


LIMITS = Limits(wall_seconds=2.5, memory_bytes=1 << 28, cpus=1.0, starved_seconds=60.0)


def test_a_program_that_is_kept_waiting_ends_well(tmp_path: Path) -> None:
    with busy_host(processors=0.2) as groups:
        end = run(tmp_path, groups, SPIN.format(seconds=0.8), LIMITS)
    assert (end.reason, end.code) == ("exited", 0)
    assert end.wall_seconds > LIMITS.wall_seconds
    assert end.wall_seconds - end.starved_seconds < LIMITS.wall_seconds


def test_a_program_that_sleeps_gets_no_more_time_on_a_busy_host(tmp_path: Path) -> None:
    with busy_host(processors=0.2) as groups:
        end = run(tmp_path, groups, "import time; time.sleep(30)", LIMITS)
    assert end.reason == "wall"
    assert end.wall_seconds - end.starved_seconds >= LIMITS.wall_seconds
    assert end.starved_seconds < 5


def test_a_host_gets_no_more_patience_than_allowed(tmp_path: Path) -> None:
    with busy_host(processors=0.1) as groups:
        limits = replace(LIMITS, wall_seconds=1.0, starved_seconds=1.5)
        end = run(tmp_path, groups, SPIN.format(seconds=60), limits)
    assert end.reason == "wall"
    assert end.wall_seconds - end.starved_seconds < limits.wall_seconds


CHURN = """
import subprocess
for _ in range(40):
    count = "n=0; while [ $n -lt 6000 ]; do n=$((n+1)); done"
    subprocess.run(["/bin/sh", "-c", count], check=True)
"""


def test_short_lived_processes_that_are_kept_waiting_are_not_late(tmp_path: Path) -> None:
    with busy_host(processors=0.2) as groups:
        if not groups.hierarchies.v2:
            missing("control groups of version 2 tell the pressure")
        end = run(tmp_path, groups, CHURN, replace(LIMITS, wall_seconds=3.5))
    assert (end.reason, end.code) == ("exited", 0)
    assert end.wall_seconds - end.starved_seconds < 3.5


GRAB = "held = bytearray({size}); print(len(held), flush=True)"


def test_memory_that_others_took_is_not_the_programs_limit(tmp_path: Path) -> None:
    limits = replace(LIMITS, wall_seconds=20, memory_bytes=1 << 30)
    with busy_host(memory_bytes=64 << 20) as groups:
        end = run(tmp_path, groups, GRAB.format(size=256 << 20), limits)
    assert end.reason == "host_memory"
    with busy_host(memory_bytes=1 << 30) as groups:
        limits = replace(limits, memory_bytes=64 << 20)
        end = run(tmp_path, groups, GRAB.format(size=256 << 20), limits)
    assert end.reason == "memory"


#: Charges of several pages at once: one that does not fit leaves the group just below its limit.
SOCKETS = """
import socket
held = []
while True:
    one, two = socket.socketpair()
    one.setblocking(False)
    try:
        while True:
            one.send(b"x" * 16_000)
    except BlockingIOError:
        held.append((one, two))
    held.append(bytearray(1 << 20))
"""


def test_memory_that_is_taken_in_pieces_is_the_programs(tmp_path: Path) -> None:
    limits = replace(LIMITS, wall_seconds=20, memory_bytes=64 << 20, open_files=4096)
    for _ in range(4):
        assert run(tmp_path, ControlGroups(), SOCKETS, limits).reason == "memory"
