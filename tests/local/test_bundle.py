"""A result is measured again: by its service, and from a bundle without one."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from assay.client import Client
from assay.contracts.batch import BatchRequest
from services.worker.bundled import main
from tests.support.service import ServiceProcess, toy_ideas

pytestmark = pytest.mark.slow
KEY = "a secret of the service"


@dataclass(frozen=True)
class Measured:
    """An experiment of a service that has ended since, its bundle, and what its service said."""

    experiment: str
    data: bytes
    reproduced: subprocess.CompletedProcess[str]
    shown: str


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """An idea for `toy` on two seeds; measured, reproduced and bundled."""
    folder = tmp_path_factory.mktemp("service")
    service = ServiceProcess(folder / "data", env={"ASSAY_WORKER_HELD_OUT_KEY": KEY})
    service.start()
    target = folder / "exp.zip"
    try:
        with Client(service.ready["api"]) as client:
            wanted = BatchRequest.model_validate(
                {
                    "environment": "toy",
                    "profile": "tiny",
                    "ideas": [idea.model_dump() for idea in toy_ideas(1)],
                    "options": {"baseline_seeds": 2, "seeds": [0, 1]},
                }
            )
            batch = client.batches.wait(client.batches.create(wanted).id)
            (made,) = client.experiments.list(batch=batch.id)
        bundled = service.assay("experiment", "bundle", made.id, "-o", str(target))
        assert bundled.returncode == 0, bundled.stderr
        twice = service.assay("experiment", "bundle", made.id, "-o", str(target))
        assert twice.returncode == 1, "it overwrites nothing"
        reproduced = service.assay("experiment", "reproduce", made.id, "--wait", "--json")
        shown = service.assay("experiment", "show", made.id).stdout
    finally:
        service.stop()
    return Measured(made.id, target.read_bytes(), reproduced, shown)


def unpacked(data: bytes, folder: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(folder)
    return folder


def run(
    folder: Path, tmp_path: Path, *arguments: str, key: str = KEY, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a bundle by hand, in another working directory."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    env = os.environ | {
        "ASSAY_WORKER_CACHE": str(tmp_path / "cache"),
        "ASSAY_WORKER_PROBE": "quick",
        "ASSAY_WORKER_HELD_OUT_KEY": key,
        **more,
    }
    return subprocess.run(
        [sys.executable, str(folder / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=elsewhere,
        env=env,
    )


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return found


@pytest.mark.bubblewrap
def test_a_bundle_gives_the_same_number_elsewhere_without_a_service(
    measured: Measured, tmp_path: Path
) -> None:
    folder = unpacked(measured.data, tmp_path / "bundle")
    done = run(folder, tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["agrees"], found["warnings"]) == (True, [])
    assert [(each["seed"], each["equal"], each["same_artifact"]) for each in found["seeds"]] == [
        (0, True, True),
        (1, True, True),
    ]
    assert [each["measured"] for each in found["seeds"]] == [
        each["metric"] for each in record(folder)["seeds"]
    ]


@pytest.mark.bubblewrap
def test_another_number_is_told_with_exit_code_1(measured: Measured, tmp_path: Path) -> None:
    folder = unpacked(measured.data, tmp_path / "bundle")
    changed = record(folder)
    changed["seeds"][1]["metric"] += 0.001
    (folder / "record.json").write_text(json.dumps(changed))
    done = run(folder, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "seed 1: score" in done.stderr
    assert "differs, the same artifact" in done.stderr
    assert "does not agree" in done.stdout


def test_what_cannot_be_compared_is_named_before_anything_is_trained(
    measured: Measured, tmp_path: Path
) -> None:
    folder = unpacked(measured.data, tmp_path / "bundle")
    other = run(folder, tmp_path, key="another key")
    assert (other.returncode, "held_out_key" in other.stderr) == (2, True)
    changed = record(folder)
    changed["seeds"][0]["provenance"]["held_out"] = "0" * 64
    (folder / "record.json").write_text(json.dumps(changed))
    data = run(folder, tmp_path, "--allow-unisolated")
    assert (data.returncode, "held_out: the prepared search/" in data.stderr) == (2, True)
    for done in (other, data):
        assert "seed 0" not in done.stderr, "nothing was trained"


def changed_code(folder: Path) -> str:
    (folder / "codebase" / "search.py").write_text("raise SystemExit(0)\n")
    return "files changed"


def changed_evaluator(folder: Path) -> str:
    (folder / "environment" / "evaluator" / "evaluate.py").write_text("raise SystemExit(0)\n")
    return "files changed"


def link_in_the_code(folder: Path) -> str:
    (folder / "codebase" / "search.py").unlink()
    (folder / "codebase" / "search.py").symlink_to("/etc/hostname")
    return "the record names this file"


def name_outside(folder: Path) -> str:
    record_ = record(folder) | {"codebase_files": ["../../secret"]}
    (folder / "record.json").write_text(json.dumps(record_))
    return "not a name inside the tree"


@pytest.mark.parametrize(
    "damage", [changed_code, changed_evaluator, link_in_the_code, name_outside]
)
def test_files_that_are_not_those_of_the_record_are_refused(
    measured: Measured,
    tmp_path: Path,
    damage: Callable[[Path], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = unpacked(measured.data, tmp_path / "bundle")
    said = damage(folder)
    assert main(folder, ["--allow-unisolated"]) == 2
    assert said in capsys.readouterr().err


def test_code_of_an_idea_is_not_run_outside_a_sandbox(measured: Measured, tmp_path: Path) -> None:
    folder = unpacked(measured.data, tmp_path / "bundle")
    done = run(folder, tmp_path, ASSAY_WORKER_SANDBOX="subprocess")
    assert (done.returncode, "only in isolation" in done.stderr) == (2, True)
    assert "seed 0" not in done.stderr
    asked = run(folder, tmp_path, "--allow-unisolated", ASSAY_WORKER_SANDBOX="subprocess")
    assert asked.returncode == 0, asked.stderr


def test_a_bundle_says_what_a_reader_needs_and_holds_no_key(
    measured: Measured, tmp_path: Path
) -> None:
    folder = unpacked(measured.data, tmp_path / "bundle")
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
    assert set(texts) == {
        "README.md", "changes.diff", "idea.txt", "record.json", "requirements.txt", "run.py",
    }  # fmt: skip
    assert "+STEP = 0.05" in texts["changes.diff"]
    assert "Take steps of 0.05" in texts["idea.txt"]
    found = record(folder)
    python = found["seeds"][0]["provenance"]["python"]
    assert f"Python {python}" in texts["requirements.txt"]
    assert "assay" not in [line.partition("==")[0] for line in texts["requirements.txt"].split()]
    assert "pip install 'PATH_OF_ASSAY[worker,environments]'" in texts["README.md"]
    assert f"numpy=={found['seeds'][0]['provenance']['numpy']}" in texts["requirements.txt"]
    assert found["conditions"] in texts["README.md"]
    assert found["held_out_key"] in texts["README.md"]
    assert not {"host", "worker"} & found["seeds"][0]["provenance"].keys()
    assert KEY.encode() not in b"".join(
        path.read_bytes() for path in folder.rglob("*") if path.is_file()
    )


LEARN_SLOWER = """[Experiment] Learn more slowly.
[Code Changes]
In `config.py`:
<<<<<<< SEARCH
{old}
=======
{new}
>>>>>>> REPLACE
[End]"""


@pytest.mark.bubblewrap
@pytest.mark.timeout(1200)
def test_a_language_model_is_trained_again_to_the_digit(tmp_path: Path) -> None:
    line = "    learning_rate: float = "
    text = LEARN_SLOWER.format(old=f"{line}0.003", new=f"{line}0.002")
    service = ServiceProcess(tmp_path / "data")
    service.start()
    try:
        with Client(service.ready["api"]) as client:
            wanted = BatchRequest.model_validate(
                {
                    "environment": "nanogpt",
                    "profile": "tiny",
                    "ideas": [{"text": text}],
                    "options": {"baseline_seeds": 0},
                }
            )
            batch = client.batches.wait(client.batches.create(wanted).id)
            (made,) = client.experiments.list(batch=batch.id)
            assert made.state == "succeeded", made.failure
            data = client.experiments.bundle(made.id)
    finally:
        service.stop()
    folder = unpacked(data, tmp_path / "somewhere" / "bundle")
    done = run(folder, tmp_path, "--json", key="")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metric"], found["agrees"], found["warnings"]) == ("val_loss", True, [])
    assert [each["same_artifact"] for each in found["seeds"]] == [True]


def test_a_service_measures_it_again_and_agrees(measured: Measured) -> None:
    assert measured.reproduced.returncode == 0, measured.reproduced.stderr
    made = json.loads(measured.reproduced.stdout)["data"]
    assert made["idea"]["reproduces"] == measured.experiment
    assert made["agreement"]["agreement"] == "to the digit"
    assert [seed["equal"] for seed in made["agreement"]["seeds"]] == [True, True]
    assert f"reproduced as {made['id']}" in measured.shown
