"""The benchmark of isolation, on a CPU: its programs run, and would see what they look for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.sandbox import Mount, SandboxSettings, open_sandbox
from assay.sandbox import bubblewrap as backend
from benchmarks.gpu import isolation
from services.worker.gpus import Gpus


@pytest.fixture
def programs(tmp_path: Path) -> Any:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    settings = SandboxSettings("bubblewrap", grace_seconds=0.5, scratch=scratch)
    return isolation.Programs(open_sandbox(settings), tmp_path)


@pytest.mark.slow
@pytest.mark.bubblewrap
def test_every_question_is_answered_on_a_cpu() -> None:
    found = isolation.run(1, True)
    assert found["isolated"]
    assert found["absent"]
    assert found["device"] == "cpu"
    assert (found["nodes"]["foreign"], found["nodes"]["made"]) == ([], [])
    memory = found["memory"]
    assert memory["was_written"]
    assert memory["bytes_searched"] > 100 << 20
    assert memory["share_found"] == 0
    assert memory["control_share_found"] == 1
    for kill in found["kills"]:
        # The first, its children, and the wrappers that have it on their command line.
        assert kill["processes_before"] >= 1 + isolation.CHILDREN
        assert kill["processes_left"] == 0
        assert kill["right_result"]


def test_without_a_gpu_only_a_dry_run_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "open_nvml", lambda: None)
    monkeypatch.setattr(isolation, "open_gpus", lambda _: Gpus([], None))
    with pytest.raises(RuntimeError, match="dry run"):
        isolation.run(1, False)


@pytest.mark.bubblewrap
def test_a_node_too_many_is_told(programs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a sandbox that hands out a neighbour's node by mistake."""
    names = ("nvidia1", "nvidiactl", "nvidia0")
    mounts = tuple(Mount(Path("/dev/null"), f"/dev/{name}") for name in names)
    monkeypatch.setattr(backend, "gpu_mounts", lambda gpus: mounts)
    found = isolation.reachable_nodes(programs, {"nvidia1", "nvidiactl", "nvidia-uvm"})
    assert found["foreign"] == ["nvidia0"]
    assert found["missing"] == ["nvidia-uvm"]
    assert found["opened"] == sorted(names)
    assert found["made"] == []
