"""Counters of the kernel are moved when a program that was shown held-out data ends."""

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from assay.sandbox import Limits, SandboxSettings, SandboxSpec, bubblewrap, counters, open_sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counters of Linux")


def pipe_inode() -> int:
    reader, writer = os.pipe()
    found = os.fstat(reader).st_ino
    os.close(reader)
    os.close(writer)
    return found


def memory_inode() -> int:
    descriptor = os.memfd_create("x")
    found = os.fstat(descriptor).st_ino
    os.close(descriptor)
    return found


def on_each_processor(read: Callable[[], int]) -> dict[int, int]:
    allowed = os.sched_getaffinity(0)
    found = {}
    try:
        for processor in allowed:
            os.sched_setaffinity(0, {processor})
            found[processor] = read()
    finally:
        os.sched_setaffinity(0, allowed)
    return found


@pytest.mark.parametrize("read", [pipe_inode, memory_inode])
def test_every_processor_takes_steps(
    read: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = []

    def steps(_: random.SystemRandom, bound: int) -> int:
        bounds.append(bound)
        return 900

    monkeypatch.setattr(random.SystemRandom, "randrange", steps)
    allowed = os.sched_getaffinity(0)
    before = on_each_processor(read)
    counters.advance_counters(shared_memory=True)
    after = on_each_processor(read)
    assert set(bounds) == {1024}
    assert len(bounds) == 2 * len(allowed)
    assert all(after[each] >= before[each] + 900 for each in allowed), (before, after)
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.bubblewrap
@pytest.mark.parametrize("held_out", [False, True])
def test_after_a_program_with_held_out_data(
    held_out: bool,
    settings: Callable[[str], SandboxSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[Any] = []

    def advance(*, shared_memory: bool) -> None:
        ended.append((shared_memory, os.path.exists(f"/proc/{handle.pid}/exe")))

    monkeypatch.setattr(bubblewrap, "advance_counters", advance)
    sandbox = open_sandbox(settings("bubblewrap"))
    spec = SandboxSpec(
        name="predict",
        argv=("/bin/true",),
        env={},
        mounts=(),
        cwd="/",
        limits=Limits(20, 1 << 28, 16),
        sees_held_out=held_out,
    )
    handle = sandbox.start(spec)
    assert handle.wait().code == 0
    assert ended == ([(False, False)] if held_out else [])
