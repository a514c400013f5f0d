"""Caps that are multiples of what the baseline uses on the same host."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from assay.contracts.environment import Budget
from assay.domain.usage import Used
from assay.evaluation import EvaluationOutcome
from assay.sandbox import Exit
from services.worker.collect import Found
from services.worker.failures import AttemptFailed, Cancelled, infrastructure
from services.worker.reference import References
from services.worker.speed import Speed
from services.worker.usage import UsageMeter
from tests.worker.conftest import Lab

RUN = Used(100.0, 40.0, 12.0, 1 << 28, 2_500_000, 630_784)
BUDGET = Budget(seconds=60, compute=1.4, evaluation_compute=3.0, artifact=1.5)
BURN = """
started = time.process_time()
while time.process_time() < started + {seconds}:
    pass
"""


@pytest.fixture
def capped(lab: Lab, tmp_path: Path) -> Lab:
    """A worker that has measured no baseline."""
    lab.start(cache=tmp_path / "cache")
    return lab


def submit(lab: Lab, train: str, **others: str) -> dict[str, Any]:
    return lab.api.finished(lab.submit(train, profile="capped", **others), 120)


def references(lab: Lab) -> list[dict[str, Any]]:
    folder = Path(lab.settings["cache"]) / "references"
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def told(end: dict[str, Any]) -> tuple[str, str]:
    failure = end["failure"] or {"stage": "", "code": end["state"]}
    return failure["stage"], failure["code"]


def test_an_idea_that_comes_first_is_held_to_a_baseline_run_for_it(capped: Lab) -> None:
    end = submit(capped, "answer(score=1.0)  # changed\n")
    assert told(end) == ("", "succeeded"), end["failure"]
    (stored,) = references(capped)
    assert len(stored["runs"]) == 3
    assert stored["about"]["hardware_class"] == "cpu-test"
    usage = end["provenance"]["usage"]
    assert 0.05 < usage["train_compute"] < 12
    assert 0.05 < usage["evaluation_compute"] < 12
    assert usage["train_artifact"] == 1.0
    # One record of the attempt: the runs for comparison were neither reported nor kept.
    assert len(capped.api.records) == 1
    again = submit(capped, "answer(score=1.0)  # changed again\n")
    assert told(again) == ("", "succeeded")
    assert len(references(capped)[0]["runs"]) == 3


def test_a_measured_baseline_is_a_reference_and_is_not_capped(capped: Lab) -> None:
    for count in (1, 2):
        end = submit(capped, "answer(score=1.0)\n")
        assert told(end) == ("", "succeeded"), end["failure"]
        assert len(references(capped)[0]["runs"]) == count
        speed = end["provenance"]["train_speed"]
        assert speed["seconds"] > 0
        assert speed["samples"] >= 4
    assert end["provenance"]["usage"]["train_artifact"] == 1.0


def test_a_probe_that_is_killed_loses_no_training(capped: Lab) -> None:
    ended, killed = threading.Event(), []

    def kill() -> None:
        while not ended.wait(0.05):
            running = {
                child: command(child) for child in psutil.Process().children(recursive=True)
            }
            if not any("train.py" in found for found in running.values()):
                continue
            for child, found in running.items():
                if "numpy.tanh" in found:
                    child.kill()
                    killed.append(child.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        end = submit(capped, "time.sleep(2)\nanswer(score=1.0)\n")
    finally:
        ended.set()
        killer.join()
    assert told(end) == ("", "succeeded"), end["failure"]
    assert killed


def command(process: psutil.Process) -> str:
    """The command line; empty once the process is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_the_speed_is_sampled_while_the_training_runs(capped: Lab) -> None:
    end = submit(capped, "time.sleep(5)\nanswer(score=1.0)\n")
    assert end["provenance"]["train_speed"]["samples"] >= 7


@pytest.mark.parametrize(
    ("train", "others", "outcome"),
    [
        (BURN.format(seconds=3.0) + "answer(score=1.0)\n", {}, ("train", "compute_exceeded")),
        (BURN.format(seconds=99.0) + "answer(score=1.0)\n", {}, ("train", "compute_exceeded")),
        (
            "answer(score=1.0)\n",
            {"model": f"import time\n{BURN.format(seconds=3.0)}\nVALUE = 2.0\n"},
            ("score", "compute_exceeded"),
        ),
        (
            "answer(score=1.0)\n(out / 'corpus').write_bytes(bytes(100_000))\n",
            {},
            ("train", "artifact_exceeded"),
        ),
    ],
    ids=["training", "hopeless training", "predictor", "artifact"],
)
def test_what_goes_beyond_a_cap_is_refused_by_name(
    capped: Lab, train: str, others: dict[str, str], outcome: tuple[str, str]
) -> None:
    end = submit(capped, train, **others)
    assert told(end) == outcome
    assert end["infrastructure"] is False
    assert end["metrics"] == {}
    assert len(references(capped)[0]["runs"]) == 3  # the baseline's alone


def test_a_baseline_that_fails_is_the_hosts_fault(
    capped: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Used:
        raise infrastructure("no_reference", "the baseline failed on this host: killed")

    monkeypatch.setattr("services.worker.attempt.run_baseline", broken)
    end = submit(capped, "answer(score=1.0)  # changed\n")
    assert end["failure"]["code"] == "no_reference"
    assert end["infrastructure"] is True


def meter(tmp_path: Path, reference: Used | None = RUN) -> UsageMeter:
    return UsageMeter(BUDGET, References(tmp_path, "env", {}), reference)


def ended(cpu_seconds: float) -> Exit:
    return Exit("exited", 0, 14.0, cpu_seconds, 1 << 28)


def test_a_host_that_slows_down_under_load_does_not_count_against_an_idea(tmp_path: Path) -> None:
    meter(tmp_path).trained(ended(13.9), Speed(0.1, 9))
    with pytest.raises(AttemptFailed) as refused:
        meter(tmp_path).trained(ended(14.1), Speed(0.1, 9))
    assert refused.value.failure.code == "compute_exceeded"
    assert "1.41 times" in refused.value.failure.message
    meter(tmp_path).trained(ended(18.0), Speed(0.14, 9))  # 1.29 times in units of a busy host
    meter(tmp_path, None).trained(ended(90.0), Speed(0.1, 9))  # the baseline defines what is usual


def test_a_cap_holds_where_the_meter_saw_nothing_of_the_baseline(tmp_path: Path) -> None:
    unseen = replace(RUN, training=0.0, evaluation=0.0)
    meter(tmp_path, unseen).trained(ended(1.3), Speed(0.1, 9))
    with pytest.raises(AttemptFailed):
        meter(tmp_path, unseen).trained(ended(1.5), Speed(0.1, 9))
    found = meter(tmp_path, unseen)
    found.trained(ended(1.0), Speed(0.1, 9))
    outcome = EvaluationOutcome({"loss": 1.0}, None, 5.0, 4.0, code_cpu_seconds=3.5)
    assert found.scored(outcome).failure is not None
    assert found.scored(replace(outcome, code_cpu_seconds=2.5)).failure is None


def test_an_evaluation_beyond_its_cap_tells_a_fixed_sentence(tmp_path: Path) -> None:
    found = meter(tmp_path)
    found.trained(ended(10.0), Speed(0.1, 9))
    honest = EvaluationOutcome({"loss": 1.0}, None, 5.0, 12.0, code_cpu_seconds=11.0)
    assert found.scored(honest) is honest
    refused = found.scored(replace(honest, code_cpu_seconds=12.5))
    assert refused.metrics is None
    assert refused.failure is not None
    assert refused.failure.code == "compute_exceeded"
    assert "3.1" not in refused.failure.message


def test_an_artifact_is_bounded_without_its_curve(tmp_path: Path) -> None:
    found = meter(tmp_path)
    found.left([Found("model.pt", 3_700_000), Found("metrics.jsonl", 9_000_000)], 630_784)
    assert found.artifact_bytes == 3_700_000 + len("model.pt")
    with pytest.raises(AttemptFailed):
        found.left([Found("model.pt", 2_500_000), Found("corpus", 1_400_000)], None)
    with pytest.raises(AttemptFailed):  # a corpus in the names of empty files
        found.left([Found(f"{n:0500}", 0) for n in range(8000)], None)


def test_references_are_medians_of_the_latest_runs(tmp_path: Path) -> None:
    stored = References(tmp_path, "env", {"torch": "2"})
    assert stored.get() is None
    for training in (1.0, *([50.0] * 9), *([70.0] * 11)):
        stored.add(replace(RUN, training=training))
    found = stored.get()
    assert found is not None
    assert found.training == 70.0
    (path,) = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["runs"]) == 20
    assert References(tmp_path, "env", {"torch": "3"}).get() is None
    path.write_text("{")
    assert stored.get() is None
    stored.add(RUN)
    assert stored.get() == RUN


def test_a_run_that_cannot_be_stored_is_only_missed(tmp_path: Path) -> None:
    (tmp_path / "full").write_text("")
    stored = References(tmp_path / "full", "env", {})
    stored.add(RUN)
    assert stored.get() is None


def test_a_warning_before_the_number_does_not_spoil_the_probe(
    capped: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "cannot tell the cache size" >&2\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    end = submit(capped, "answer(score=1.0)  # changed\n")
    assert told(end) == ("", "succeeded"), end["failure"]


def test_one_attempt_of_a_host_runs_the_baseline_and_the_others_wait(tmp_path: Path) -> None:
    running, go_on, runs = threading.Event(), threading.Event(), []

    def run() -> Used:
        runs.append(1)
        running.set()
        go_on.wait(30)
        return RUN

    def ask() -> None:
        References(tmp_path, "env", {}).get_or_run(run, threading.Event())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert running.wait(30)
    unwanted = threading.Event()
    unwanted.set()
    with pytest.raises(Cancelled):
        References(tmp_path, "env", {}).get_or_run(run, unwanted)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert runs == [1, 1, 1]
