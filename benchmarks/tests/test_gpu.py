"""The GPU benchmark's whole path with toy sizes on a CPU, so that it works first time on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.measuring import ROOT


@pytest.mark.slow
def test_dry_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry-run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["dry_run"] is True
    training, rollouts = summary["training"], summary["rollouts"]
    assert training["last_loss"] < training["first_loss"] - 1
    assert training["tokens_per_second"] > 0
    assert rollouts["tokens_per_second"] > 0
    assert rollouts["ratio"] == pytest.approx(
        rollouts["tokens_per_second"] / rollouts["generate"], rel=0.02
    )


@pytest.mark.slow
def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=ROOT,
        env={"CUDA_VISIBLE_DEVICES": "", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "--dry-run" in done.stderr
