"""Rollouts and an update of `grpo`: the benchmark's whole path with toy sizes on a CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from tests.support.measuring import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu" / "rollouts.py"

pytestmark = pytest.mark.slow


def start(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *flags],
        env={"PATH": "", "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_dry_run() -> None:
    done = start("--dry-run")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["dry_run"], found["device"]) == (True, "cpu")
    own, update = found["own"], found["update"]
    assert own["rows"] == 16
    assert own["tokens_per_second"] >= own["first_turn"] > 0
    # Every completion has its full length: 8 of 24 tokens behind prompts of 8.
    assert (update["completions"], update["tokens"]) == (8, 8 * (8 + 24))
    assert update["second"]["update_seconds"] > 0
    assert math.isfinite(update["loss"])
    assert update["grad_norm"] > 0
    # After one optimiser step training's arithmetic is still near the sampler's.
    assert 0 < update["largest_gap"] < 0.1
    # What is not measured is named.
    for name in ("transformers", "vllm"):
        assert (name in found["absent"]) != (found.get(name, {}).get("tokens_per_second", 0) > 0)


def test_what_no_time_is_left_for_is_skipped() -> None:
    done = start("--dry-run", "--seconds", "0")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    if "transformers" not in found["absent"]:
        assert found["transformers"] == {"skipped": "0 s were left of 0"}
    assert found["own"]["tokens_per_second"] > 0


def test_without_a_gpu_it_says_so() -> None:
    done = start(CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert "--dry-run" in done.stderr
