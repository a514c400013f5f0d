"""`assay env …`: folders on disk, and the baseline through the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.cli.check import check_environment
from assay.environments import Environment
from tests.cli.conftest import Cli

MANIFEST = """
name = "fake"
title = "Fake"
problem = "Lower the loss."

[metric]
name = "loss"
direction = "minimize"
reward = "reciprocal"

[codebase]
protected = ["predict.py"]

[entry_points]
train = ["python", "train.py"]
predict = ["python", "predict.py"]

[profiles.tiny]
[profiles.tiny.budget]
seconds = 5

[[knobs]]
name = "rate"
file = "train.py"
line = "rate = 0.1"
values = ["0.2"]

[[recipes]]
name = "twice"
title = "Do it twice"
[[recipes.edits]]
file = "train.py"
search = "depth = 2"
replace = "depth = 4"

[[recipes]]
name = "absent"
title = "Edit what is not there"
kind = "misfit"
[[recipes.edits]]
file = "train.py"
search = "nowhere"
replace = "x"
"""
PREPARE = """
import argparse, pathlib
p = argparse.ArgumentParser()
p.add_argument("--profile")
p.add_argument("--out")
a = p.parse_args()
for split in ("train", "search", "sealed"):
    (pathlib.Path(a.out) / split).mkdir()
    (pathlib.Path(a.out) / split / "x").write_text("12345")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound environment called `fake`, the only one there is."""
    path = tmp_path / "environments" / "fake"
    (path / "codebase").mkdir(parents=True)
    (path / "evaluator").mkdir()
    (path / "environment.toml").write_text(MANIFEST)
    (path / "prepare.py").write_text(PREPARE)
    (path / "evaluator" / "evaluate.py").write_text("def evaluate(run):\n    return {}\n")
    (path / "codebase" / "train.py").write_text("rate = 0.1\ndepth = 2\n")
    (path / "codebase" / "predict.py").write_text("pass\n")
    monkeypatch.setenv("ASSAY_ENVIRONMENTS", str(path.parent))
    return path


def wrong(folder: Path, *, prepare: bool = False) -> dict[str, str]:
    return {
        f.check: f.detail for f in check_environment(folder, None, prepare=prepare) if not f.ok
    }


def test_a_sound_folder_passes(cli: Cli, folder: Path) -> None:
    answer = cli("env", "check", str(folder), "--json")
    assert answer.code == 0
    checks = {f["check"]: f["ok"] for f in answer.json["data"]["findings"]}
    assert checks["prepare tiny"] is True
    assert {"manifest", "evaluator", "knob rate", "recipe twice", "recipe absent"} <= set(checks)
    assert "all well" in cli("env", "check", "fake").out


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "check", "said"),
    [
        ("environment.toml", 'title = "Fake"', 'titel = "Fake"', "manifest", "titel"),
        ("environment.toml", 'name = "fake"', 'name = "other"', "name", "same name"),
        ("environment.toml", '"rate = 0.1"', '"rate = 0.3"', "knob rate", "0 times"),
        ("codebase/train.py", "rate = 0.1", "rate = 0.1\nrate = 0.1", "knob rate", "2 times"),
        ("environment.toml", '["0.2"]', '["0.1"]', "knob rate", "already"),
        ("environment.toml", '"depth = 2"', '"depth = 3"', "recipe twice", "0 times"),
        ("environment.toml", '"nowhere"', '"depth"', "recipe absent", "no misfit"),
        ("environment.toml", '["predict.py"]', '["*.txt"]', "protected", "matches no file"),
        ("environment.toml", '["python", "train.py"]', '["python", "go.py"]', "entry point",
         "go.py"),
        ("evaluator/evaluate.py", "def evaluate", "def judge", "evaluator", "no function"),
        ("evaluator/evaluate.py", "(run)", "(run, x)", "evaluator", "2 arguments"),
        ("codebase/train.py", "depth = 2", "depth = (2", "codebase", "train.py:2"),
    ],
)  # fmt: skip
def test_every_mistake_is_found(
    folder: Path, file: str, old: str, new: str, check: str, said: str
) -> None:
    edit(folder / file, old, new)
    found = wrong(folder)
    assert said in found[check]


def test_a_prepare_that_fails_is_found(cli: Cli, folder: Path) -> None:
    edit(folder / "prepare.py", '("train", "search", "sealed")', '("train", "search")')
    assert "no sealed/ folder" in wrong(folder, prepare=True)["prepare tiny"]
    assert cli("env", "check", str(folder)).code == 1
    assert cli("env", "check", str(folder), "--no-prepare").code == 0


def test_unpack_writes_what_assay_brings_too(cli: Cli, folder: Path, tmp_path: Path) -> None:
    manifest = (folder / "environment.toml").read_text()
    (folder / "environment.toml").write_text('vendored = ["sources/hub.py"]\n' + manifest)
    target = tmp_path / "whole"
    assert cli("env", "unpack", "fake", str(target), "--json").code == 0
    assert "Hugging Face" in (target / "sources" / "hub.py").read_text()
    assert (target / "codebase" / "train.py").exists()
    assert cli("env", "unpack", "fake", str(target)).code == 2
    assert "vendored: sources/hub.py" in cli("env", "check", str(folder)).out


def test_what_is_no_environment(cli: Cli, tmp_path: Path, folder: Path) -> None:
    answer = cli("env", "check", str(tmp_path), "--json")
    assert answer.code == 1
    assert "environment.toml" in answer.json["data"]["findings"][0]["detail"]
    assert cli("env", "check", "nowhere", "--json").json["error"]["kind"] == "not_found"


def test_list_and_show_from_folders_and_from_the_service(cli: Cli, folder: Path) -> None:
    local = {e["name"]: e for e in cli("env", "list", "--json").json["data"]}
    assert local["fake"]["folder"] == str(folder)
    (served,) = cli("env", "list", "--service", "--json").json["data"]
    assert served["id"] == "fake@abc"
    assert "Lower the loss." in cli("env", "show", "fake").out
    assert "fake@abc" in cli("env", "show", "fake", "--service").out
    assert cli("env", "show", "nowhere").code == 1


def test_prepare_puts_the_data_where_it_is_told(cli: Cli, folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    answer = cli("env", "prepare", "fake", "--profile", "tiny", "--cache", str(cache), "--json")
    made = Path(answer.json["detail"]["folder"])
    assert (made / "sealed" / "x").read_text() == "12345"
    assert cli("env", "prepare", "fake", "--profile", "huge").code == 2


@pytest.fixture
def served(cli: Cli, folder: Path) -> Cli:
    """The service has the very environment of the folder."""
    cli.service.environment_id = Environment.load(folder).id
    cli.sleep = lambda _: None
    return cli


def test_calibrate_waits_prints_and_writes(served: Cli, folder: Path) -> None:
    served.service.pending = 4
    ids = [f"mea_{seed}" for seed in range(5)]
    facts = {"hardware_class": "cpu-fake", "torch": "2.9"}
    served.service.baseline = {"conditions": "cnd_1", "facts": facts, "measurements": ids}
    (folder / "baseline.json").write_text('{"paper": {"h100": {"mean": 1.0}}}')
    answer = served("env", "calibrate", "fake", "--profile", "tiny", "--seeds", "5")
    assert answer.code == 0, answer.err
    assert "mean 2.5, spread 0.0158 over 5 seeds" in answer.out
    assert "3/5" in answer.err
    written = json.loads((folder / "baseline.json").read_text())
    entry = written["tiny"]["cpu-fake"]
    assert (entry["mean"], entry["seeds"]) == (2.5, [0, 1, 2, 3, 4])
    assert entry["codebase"] == Environment.load(folder).codebase_hash
    assert entry["environment"] == Environment.load(folder).id == served.service.environment_id
    assert set(entry) == {
        "metric", "mean", "spread", "values", "seeds", "kind", "conditions", "measurements",
        "environment", "codebase", "measured_at",
    }  # fmt: skip
    assert (entry["kind"], entry["measurements"]) == ("score", ids)
    assert entry["conditions"] == {"id": "cnd_1", "facts": facts}
    assert written["paper"] == {"h100": {"mean": 1.0}}
    assert served("env", "check", str(folder)).code == 0


def test_calibrate_measures_controls_beside_the_baseline(served: Cli, folder: Path) -> None:
    control = """
[[recipes]]
name = "lottery"
title = "Draw lots"
kind = "control"
[[recipes.edits]]
file = "train.py"
search = "depth = 2"
replace = "depth = 3"
"""
    with (folder / "environment.toml").open("a") as file:
        file.write(control)
    served.service.environment_id = Environment.load(folder).id
    arguments = ("env", "calibrate", "fake", "--profile", "tiny", "--seeds", "2")
    answer = served(*arguments)
    assert answer.code == 0, answer.err
    assert "control lottery: mean" in answer.out
    written = json.loads((folder / "baseline.json").read_text())
    (figures,) = written["tiny"]["cpu-fake"]["controls"].values()
    assert set(figures) == {"mean", "spread", "values", "kind", "measurements"}
    assert (figures["kind"], figures["measurements"]) == ("score", ["mea_0", "mea_1"])
    (batch,) = served.service.batches.values()
    assert batch["options"]["seeds"] == [0, 1]
    assert served(*arguments, "--no-controls").code == 0
    assert list(served.service.batches.values()) == [batch]


def test_a_baseline_of_unknown_measurements_says_so(served: Cli, folder: Path) -> None:
    """As of a service that does not tell them, or of none."""
    assert served("env", "calibrate", "fake", "--profile", "tiny", "--seeds", "5").code == 0
    entry = Environment.load(folder).committed_baselines()["tiny"]["cpu-fake"]
    assert (entry["kind"], entry["conditions"], entry["measurements"]) == ("score", None, [])


def test_calibrate_can_leave_the_folder_alone(served: Cli, folder: Path) -> None:
    arguments = ("env", "calibrate", "fake", "--profile", "tiny")
    assert served(*arguments, "--no-write").code == 0
    assert served(*arguments, "--dry-run").code == 0
    assert served.service.calibrated == 2  # one seed alone, then all
    assert not (folder / "baseline.json").exists()


def test_calibrate_refuses_another_version(cli: Cli, folder: Path) -> None:
    answer = cli("env", "calibrate", "fake", "--profile", "tiny")
    assert answer.code == 2
    assert "--no-write" in answer.err
    assert not (folder / "baseline.json").exists()


def test_calibrate_times_out(served: Cli, folder: Path) -> None:
    served.service.pending = 1_000
    answer = served("env", "calibrate", "fake", "--profile", "tiny", "--timeout", "0.05")
    assert answer.code == 124


CRASHED = {
    "seed": 0,
    "measurement": "mea_7",
    "failure": {"stage": "train", "code": "crashed", "message": "ValueError: no"},
}
CALIBRATE = ("env", "calibrate", "fake", "--profile", "tiny")


def test_the_profile_says_how_many_seeds(served: Cli, folder: Path) -> None:
    assert "on 5 seeds" in served(*CALIBRATE, "--dry-run").out
    assert served(*CALIBRATE).code == 0
    assert served.service.asked_seeds == [[0], [0, 1, 2, 3, 4]]


def test_calibrate_says_why_a_seed_failed_and_stops(served: Cli, folder: Path) -> None:
    served.service.failures = [CRASHED]
    answer = served(*CALIBRATE)
    assert answer.code == 1
    assert "seed 0 of the baseline of fake@" in answer.err
    assert "failed at train (crashed): ValueError: no" in answer.err
    assert "  step 29\n  ValueError: no\n" in answer.err
    assert "step 10" not in answer.err
    assert "--profile tiny --again" in answer.err
    assert served.service.asked_seeds == [[0]]
    assert not (folder / "baseline.json").exists()
    assert served(*CALIBRATE, "--json").json["error"]["code"] == "baseline_failed"


def test_calibrate_starts_one_seed_alone_and_no_other_after_a_crash(
    served: Cli, folder: Path
) -> None:
    """The first seed is still running when it is asked for, and crashes then."""
    service = served.service
    service.pending = 6

    def crash(_: float) -> None:
        service.failures = [CRASHED]

    served.sleep = crash
    assert served(*CALIBRATE).code == 1
    assert service.asked_seeds == [[0]]


def test_calibrate_again_measures_what_failed(served: Cli, folder: Path) -> None:
    served.service.failures = [CRASHED]
    answer = served(*CALIBRATE, "--again")
    assert answer.code == 0, answer.err
    assert "mean 2.5" in answer.out


def test_what_failed_for_infrastructure_is_measured_again_unasked(
    served: Cli, folder: Path
) -> None:
    lost = {"stage": "start", "code": "infrastructure", "message": "", "retryable": True}
    served.service.failures = [CRASHED | {"seed": 3, "failure": lost}]
    answer = served(*CALIBRATE)
    assert answer.code == 1
    assert served.service.asked_seeds == [[0], [0, 1, 2, 3, 4]]
    assert "infrastructure" in answer.err


def test_power_says_which_effects_how_many_seeds_show(cli: Cli) -> None:
    answer = cli("env", "power", "fake", "--profile", "tiny")
    assert answer.code == 0
    assert "the default prior" in answer.out
    rows = cli("env", "power", "fake", "--profile", "tiny", "--json").json["data"]["rows"]
    assert [row["seeds"] for row in rows][:4] == [1, 2, 3, 5]
    effects = [row["effect"] for row in rows]
    assert effects == sorted(effects, reverse=True)
    baseline = cli.service.baseline
    baseline |= {"seeds": [0], "values": [2.5], "mean": 2.5, "spread": None}
    refused = cli("env", "power", "fake", "--profile", "tiny", "--json")
    assert refused.json["error"]["code"] == "no_baseline"
    assert "assay env calibrate" in refused.json["error"]["message"]


def test_a_fit_is_asked_for_and_told(cli: Cli) -> None:
    path = ("POST", "/v1/environments/fake/fit")
    dry = cli("env", "fit", "fake", "--profile", "tiny", "--dry-run")
    assert dry.code == 0
    assert path not in [request[:2] for request in cli.service.requests]
    answer = cli("env", "fit", "fake", "--profile", "tiny")
    assert "9 codebases" in answer.out
    assert path in [request[:2] for request in cli.service.requests]
