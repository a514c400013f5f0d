"""The look for left-over containers goes on whatever happens, and never holds up the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from assay.sandbox import SandboxError, SandboxSettings
from services.worker.reaper import reaping


def test_it_looks_again_after_a_failure(tmp_path: Path) -> None:
    looks = threading.Semaphore(0)

    def sweep(settings: SandboxSettings) -> int:
        assert settings.name == "docker"
        looks.release()
        raise SandboxError("no engine") if time.monotonic() % 2 < 1 else ValueError("odd")

    with reaping(SandboxSettings("docker", scratch=tmp_path), 0.01, sweep=sweep):
        assert looks.acquire(timeout=60)
        assert looks.acquire(timeout=60)


def test_an_engine_that_does_not_answer_does_not_hold_up_the_end(tmp_path: Path) -> None:
    stuck, looking = threading.Event(), threading.Event()

    def hang(_: SandboxSettings) -> int:
        looking.set()
        return int(stuck.wait(20))

    settings = SandboxSettings("docker", scratch=tmp_path)
    with reaping(settings, 0.01, sweep=hang, end_seconds=0.1):
        assert looking.wait(60)
        since = time.monotonic()
    assert time.monotonic() - since < 15
    stuck.set()


def test_other_backends_leave_nothing_to_look_for(tmp_path: Path) -> None:
    looks: list[SandboxSettings] = []

    def sweep(settings: SandboxSettings) -> int:
        looks.append(settings)
        return 0

    with reaping(SandboxSettings("bubblewrap", scratch=tmp_path), 0.001, sweep=sweep):
        time.sleep(0.05)
    assert looks == []
