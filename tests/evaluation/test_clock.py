"""The clock of an evaluation stands still while the host keeps it waiting."""

from __future__ import annotations

import time

import pytest

from assay.evaluation.clock import Clock


class Program:
    """A program that is kept waiting, as a test says."""

    def __init__(self, share: float) -> None:
        self._share, self._since = share, time.monotonic()

    def starved(self) -> float:
        return self._share * (time.monotonic() - self._since)


def passed(clock: Clock, seconds: float) -> float:
    """How far the clock moves while so many seconds pass, looked at often."""
    began, start = time.monotonic(), clock.now()
    last = start
    while time.monotonic() - began < seconds:
        time.sleep(0.01)
        assert clock.now() >= last, "it runs backwards"
        last = clock.now()
    return (clock.now() - start) / (time.monotonic() - began)


def test_what_two_programs_wait_for_at_once_counts_once() -> None:
    clock = Clock(patience=100)
    with clock.watching(Program(0.8).starved), clock.watching(Program(0.8).starved):
        assert passed(clock, 0.5) == pytest.approx(0.2, abs=0.1)
    assert passed(clock, 0.3) > 0.5, "nothing waits any more, but perhaps this test itself"


def test_patience_ends() -> None:
    clock = Clock(patience=0.1)
    with clock.watching(Program(1.0).starved):
        assert passed(clock, 0.5) == pytest.approx(0.8, abs=0.15)
    assert clock.starved() > 0.1
