"""The scripts of docs/adapters.md, run as they stand there: the real packages, a real service, and
a scripted model that speaks the wire format they speak."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.batch import ExperimentBody
from tests.adapters.mutating import MutatingModel
from tests.docs.reading import DOCS, blocks
from tests.support.service import ServiceProcess

PAGE = DOCS / "adapters.md"
OPENAI = "https://api.openai.com/v1"
SECONDS = 240
CRASH = "NameError: name 'undefined' is not defined"


@dataclass(frozen=True)
class Ran:
    """What a script of the page left: its folder, what it printed, and what it was told."""

    folder: Path
    printed: str
    experiments: dict[str, ExperimentBody]
    model: MutatingModel


@pytest.fixture
def model() -> Iterator[MutatingModel]:
    with MutatingModel() as server:
        yield server


def run(
    script: str, ideator: str, folder: Path, service: ServiceProcess, model: MutatingModel
) -> Ran:
    """Run a script of the page in a folder that holds its files."""
    for block in blocks(PAGE):
        if block.file is not None:
            (folder / block.file).write_text(block.text.replace(OPENAI, model.openai_url))
    env = {
        **os.environ,
        "ASSAY_API_URL": str(service.ready["api"]),
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_BASE_URL": model.openai_url,
    }
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with service.client() as client:
        found = {
            experiment.id: experiment
            for batch in client.batches.list()
            if batch.ideator == ideator
            for experiment in client.experiments.list(batch=batch.id)
        }
    return Ran(folder, done.stdout, found, model)


def check(ran: Ran) -> None:
    """Check what holds for every optimizer: at least four results and one crash, each once."""
    experiments = ran.experiments.values()
    assert sum(each.state == "succeeded" for each in experiments) >= 4
    (crashed,) = (each for each in experiments if each.state != "succeeded")
    assert crashed.failure is not None
    assert (crashed.state, crashed.failure.message) == ("failed", CRASH)
    codebases = [each.codebase for each in experiments]
    assert len(set(codebases)) == len(codebases), "a codebase was submitted twice"
    assert len(ran.model.requests) >= 4
    best = max(each.reward for each in experiments)
    assert f"{best}" in ran.printed.splitlines()[-1]


def programs_in(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Metrics and artifacts of each program of the last checkpoint that an optimizer wrote."""
    last = folder / "checkpoints" / "checkpoint_8"
    for path in last.glob("programs/*.json"):
        program = json.loads(path.read_text())
        stored = program.get("artifacts_json")
        yield program["metrics"], program["artifacts"] if stored is None else json.loads(stored)


def check_programs(ran: Ran, folder: Path) -> dict[str, Any]:
    """Check that an optimizer has the numbers of the API. Returns the metrics of the crash."""
    found = {}
    for metrics, artifacts in programs_in(folder):
        if artifacts:  # SkyDiscover copies the first program without them
            experiment = ran.experiments[artifacts["experiment"]]
            assert metrics["combined_score"] == experiment.reward
            assert metrics.get("score") == experiment.metric
            assert ("failure" in artifacts) == (experiment.state == "failed")
            found[experiment.id] = metrics
    assert found.keys() == ran.experiments.keys()
    (crashed,) = (each for each in ran.experiments.values() if each.state == "failed")
    return found[crashed.id]


@pytest.mark.slow
def test_openevolve(service: ServiceProcess, model: MutatingModel, tmp_path: Path) -> None:
    ran = run("evolve.py", "openevolve", tmp_path, service, model)
    check(ran)
    assert len(model.requests) == 8
    assert check_programs(ran, tmp_path / "evolved") == {"combined_score": 0.0}
    assert "Improve a small optimiser" in model.requests[0].texts("system")[0]


@pytest.mark.slow
def test_skydiscover(service: ServiceProcess, model: MutatingModel, tmp_path: Path) -> None:
    ran = run("discover.py", "skydiscover", tmp_path, service, model)
    check(ran)
    crashed = check_programs(ran, tmp_path / "discovered")
    assert crashed == {"combined_score": 0.0, "error": f"train (crashed): {CRASH}"}
    assert "Improve a small optimiser" in model.requests[0].texts("system")[0]


@pytest.mark.slow
def test_gepa(service: ServiceProcess, model: MutatingModel, tmp_path: Path) -> None:
    ran = run("reflect.py", "gepa", tmp_path, service, model)
    check(ran)
    scores = re.findall(r"New subsample score ([\d.]+) is not better", ran.printed)
    scores += re.findall(r"Accepted candidate \(subsample score [\d.]+ -> ([\d.]+)\)", ran.printed)
    assert len(scores) == len(model.requests)
    assert {float(score) for score in scores} <= {e.reward for e in ran.experiments.values()}
    assert "0.0" in scores
    assert "Improve a small optimiser" in model.requests[0].texts()[0]
