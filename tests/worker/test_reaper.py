"""The look for left-over containers goes on whatever happens, and never holds up the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from assay.sandbox import SandboxError, SandboxSettings
from services.worker import reaper


def test_it_looks_again_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = threading.Semaphore(0)

    def sweep(settings: SandboxSettings) -> int:
        assert settings.name == "docker"
        looks.release()
        raise SandboxError("no engine") if time.monotonic() % 2 < 1 else ValueError("odd")

    monkeypatch.setattr(reaper, "sweep_containers", sweep)
    with reaper.reaping(SandboxSettings("docker", scratch=tmp_path), 0.01):
        assert looks.acquire(timeout=5)
        assert looks.acquire(timeout=5)


def test_an_engine_that_does_not_answer_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck, looking = threading.Event(), threading.Event()
    monkeypatch.setattr(reaper, "_END_SECONDS", 0.1)
    monkeypatch.setattr(reaper, "sweep_containers", lambda _: looking.set() or int(stuck.wait(20)))
    with reaper.reaping(SandboxSettings("docker", scratch=tmp_path), 0.01):
        assert looking.wait(5)
        since = time.monotonic()
    assert time.monotonic() - since < 5
    stuck.set()


def test_other_backends_leave_nothing_to_look_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(reaper, "sweep_containers", lambda _: pytest.fail("looked"))
    with reaper.reaping(SandboxSettings("bubblewrap", scratch=tmp_path), 0.001):
        time.sleep(0.05)
