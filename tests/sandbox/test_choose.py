"""Choosing a backend, probing it, and what its reasons say."""

import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import (
    QUICK_GUARANTEES,
    Guarantee,
    Handle,
    Limits,
    Sandbox,
    SandboxSettings,
    SandboxUnavailable,
    choose_sandbox,
    open_sandbox,
    seccomp,
)
from assay.sandbox.bubblewrap import BubblewrapSandbox


@pytest.mark.bubblewrap
def test_bubblewrap_holds_every_guarantee(tmp_path: Path) -> None:
    settings, reason = choose_sandbox("auto", tmp_path)
    assert settings.name == "bubblewrap"
    assert "no network" in reason
    since = time.monotonic()
    held = open_sandbox(settings).probe()
    assert time.monotonic() - since < 30.0
    expected = set(Guarantee)
    if not seccomp.supported():
        expected.remove(Guarantee.SYSCALL_FILTER)
    assert {guarantee for guarantee, value in held.items() if value} == expected
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bubblewrap
def test_quick_probe(tmp_path: Path) -> None:
    held = open_sandbox(SandboxSettings("bubblewrap", scratch=tmp_path)).probe(quick=True)
    assert held == dict.fromkeys(QUICK_GUARANTEES, True)


@pytest.mark.bubblewrap
def test_settings_travel_and_backends_fit_the_protocols(bubblewrap: Any, tmp_path: Path) -> None:
    settings = SandboxSettings("bubblewrap", grace_seconds=3.0, scratch=tmp_path)
    sandbox = open_sandbox(pickle.loads(pickle.dumps(settings)))
    assert isinstance(sandbox, Sandbox)
    assert sandbox.isolated is True
    started = bubblewrap.start("pass")
    assert isinstance(started.handle, Handle)
    started.wait()


def test_subprocess_by_name(tmp_path: Path) -> None:
    settings, reason = choose_sandbox("subprocess", tmp_path)
    assert settings.name == "subprocess"
    assert "nothing is isolated" in reason
    assert isinstance(open_sandbox(settings), Sandbox)


def test_without_bubblewrap(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    found = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, **rest: None if name == "bwrap" else found(name, **rest)
    )
    monkeypatch.setattr("platform.system", lambda: "Linux")
    settings, reason = choose_sandbox("auto", tmp_path)
    assert settings.name == "subprocess"
    assert "apt-get install bubblewrap" in reason
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        choose_sandbox("bubblewrap", tmp_path)


def test_on_another_system(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    settings, reason = choose_sandbox("auto", tmp_path)
    assert settings.name == "subprocess"
    assert "needs Linux" in reason


@pytest.mark.bubblewrap
def test_a_probe_that_fails_is_a_reason(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")

    def leaky(self: object, quick: bool = False) -> dict[Guarantee, bool]:
        return dict.fromkeys(QUICK_GUARANTEES, True) | {Guarantee.NO_NETWORK: False}

    monkeypatch.setattr(BubblewrapSandbox, "probe", leaky)
    assert choose_sandbox("auto", tmp_path)[0].name == "subprocess"
    with pytest.raises(SandboxUnavailable, match="no_network"):
        choose_sandbox("bubblewrap", tmp_path)


def test_unknown_names_and_limits(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chroot"):
        open_sandbox(SandboxSettings("chroot", scratch=tmp_path))
    with pytest.raises(ValueError, match="positive"):
        Limits(wall_seconds=0, memory_bytes=1)
