"""The GPU benchmark's whole path with toy sizes on a CPU, so that it works first time on a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.environments.catalog import Environment
from benchmarks.gpu import __main__ as main
from benchmarks.gpu import order, report, runs, service, training
from tests.support.measuring import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where parts leave their figures."""
    monkeypatch.setenv("ASSAY_BENCH_GPU_FOLDER", "")  # and taken away again
    report.open_folder(tmp_path / "figures")
    return tmp_path / "figures"


@pytest.mark.slow
def test_the_part_about_training(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--part", "training", "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == json.loads(out.read_text())
    assert (summary["dry_run"], summary["name"]) == (True, "gpu")
    assert summary["torch"]
    found = json.loads((tmp_path / "found" / "training.json").read_text())
    assert found == summary["parts"]["training"]
    ours, plain = found["nanogpt"], found["plain"]
    assert ours["last_loss"] < ours["first_loss"]
    assert 0 < ours["lost_share"] < 1
    assert ours["warm_up_seconds"] > 0
    assert ours["loss_after"] < ours["first_loss"]
    assert len(plain["before_and_after"]) == 2
    assert found["ratio"] == pytest.approx(
        ours["tokens_per_second"] / plain["tokens_per_second"], abs=0.01
    )
    assert found["sandbox"] == "bubblewrap" or found["sandbox"].startswith("absent: ")
    assert found["data"] == "generated (FineWeb is absent)"


@pytest.mark.slow
def test_the_part_about_the_service(folder: Path) -> None:
    found = service.run(20.0, dry_run=True)
    assert [worker["gpus"] for worker in found["workers"]] == [0]
    assert [(one["state"], one["failure"]) for one in found["measurements"]] == [
        ("succeeded", None)
    ] * service.SEEDS
    assert all(one["took_seconds"] > 0 for one in found["measurements"])
    assert json.loads((folder / "service.json").read_text()) == found


def test_the_short_profile_of_the_service(tmp_path: Path) -> None:
    shutil.copytree(runs.NANOGPT, tmp_path / service.NAME)
    service.shorten(tmp_path / service.NAME / "environment.toml", "quick-gpu")
    environment = Environment.load(tmp_path / service.NAME)
    assert environment.name == service.NAME
    budget = environment.manifest.profiles["quick-gpu"].budget
    assert (budget.seconds, budget.warm_up_seconds, budget.evaluation_seconds) == (20, 240, 600)


@pytest.mark.slow
def test_the_part_about_order(folder: Path) -> None:
    found = order.run(20.0, dry_run=True)
    assert [(row["edit"], row["seed"]) for row in found["rows"]] == [
        ("baseline", 0),
        ("baseline", 1),
        ("good_muon", 0),
        ("bad_label_smoothing", 0),
    ]
    # Below a guess of one in 256: each had the machine, and its whole budget, to itself.
    assert all(1 < row["loss"] < 5.5 for row in found["rows"]), found["rows"]
    assert report.saved("order") == found
    assert isinstance(found["right_order"], bool)


@pytest.mark.slow
def test_without_the_sandbox_a_run_is_an_ordinary_process(tmp_path: Path) -> None:
    """As on a machine that lacks psutil; it is held to its clock all the same."""
    training.write_shards(tmp_path / "data", 512, dry_run=True)

    def made(name: str, code: str) -> runs.Run:
        files = runs.codebase_of(runs.NANOGPT) | {"launch.py": code}
        choice = runs.Choice(None, "absent: for this test")
        return runs.Run(
            name, tmp_path / name, choice, files, tmp_path / "data", "single-gpu", 3.0, 60.0, {}
        )

    asks = (
        "import os, time\nassert not os.path.exists(os.environ['ASSAY_DATA'])\n"
        "open(os.environ['ASSAY_ASK'], 'x').close()\n"
        "while not os.path.isdir(os.environ['ASSAY_DATA']): time.sleep(0.01)\n"
        "print(os.listdir(os.environ['ASSAY_DATA']), flush=True)\n"
    )
    good, late, bad = (
        made("good", asks),
        made("late", f"{asks}time.sleep(600)"),
        made("bad", "1/0"),
    )
    with runs.running(good, late, bad):
        for each in (good, late):
            assert each.asked(60), each.why()
            each.open_gate()
        assert not bad.asked(60)
        for each in (good, late, bad):
            each.finish()
    assert (good.reason, good.code) == ("exited", 0)
    assert (tmp_path / "good" / "log").read_text() == "['train_000001.bin']\n"
    assert late.reason == "wall"
    assert bad.code == 1
    assert "ZeroDivisionError" in bad.why()


def test_a_part_that_fails_keeps_what_it_had_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(seconds: float, dry_run: bool) -> dict[str, Any]:
        report.save("training", {"plain": seconds})
        raise RuntimeError("no more memory")

    monkeypatch.setattr(training, "run", run)
    found = main.measure("training", 7.0, dry_run=True)
    assert (found["plain"], found["error"]) == (7.0, "RuntimeError: no more memory")
    assert json.loads((folder / "training.json").read_text()) == found
    missing = main.measure("a_part_of_nobody", 7.0, dry_run=True)
    assert "benchmarks.gpu.a_part_of_nobody is absent" in missing["error"]


def test_the_speed_of_a_curve() -> None:
    steps = [
        {"step": n, "train/loss": 5.0 - n, "train/seconds": 2.0 + n, "train/tokens_per_second": r}
        for n, r in ((1, 100.0), (2, 300.0), (3, 200.0))
    ]
    points = [{"step": 0, "parameters": 10}, {"train/loss": 9.0, "train/seconds": 1.0}, *steps]
    found = training.speed_of(points, 10.0, 64)
    assert found["tokens_per_second"] == 200
    assert (found["first_loss"], found["last_loss"]) == (9.0, 2.0)
    assert (found["first_step_seconds"], found["end_seconds"]) == (1.0, 5.0)
    assert found["lost_share"] == 0.6


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
