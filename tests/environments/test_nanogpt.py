"""The `nanogpt` environment: its text, its training, and that its evaluation cannot be fooled."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.environments.catalog import Environment
from assay.evaluation import EvaluationOutcome, EvaluationRequest, evaluate_in_child
from assay.patching import apply_answer
from assay.sandbox import Limits, SandboxSettings
from tests.environments.conftest import Bundled, Trained, TrainMany

STEP = 16 * 64  # tokens
SPLITS = ("train", "search", "sealed")
EDITS = Path(__file__).parent / "nanogpt"


def evaluate(
    nanogpt: Bundled, trained: Trained, data: Path, hardware_class: str, split: str = "search"
) -> EvaluationOutcome:
    profile = nanogpt.environment.profile("tiny")
    scratch = trained.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return evaluate_in_child(
        EvaluationRequest(
            environment_dir=nanogpt.environment.folder,
            config=profile.config,
            predict=nanogpt.environment.manifest.entry_points.predict,
            codebase_dir=trained.folder / "code",
            artifact_dir=trained.folder / "out",
            held_out=data / split,
            seed=0,
            metric_name=nanogpt.environment.manifest.metric.name,
            sandbox=SandboxSettings("subprocess", scratch=scratch),
            limits=Limits(wall_seconds=60, memory_bytes=4 << 30),
            seconds=60.0,
            profile="tiny",
            hardware_class=hardware_class,
        )
    )


def test_no_held_out_text_stands_in_the_training_text(nanogpt_data: Path) -> None:
    train = (nanogpt_data / "train" / "text.bin").read_bytes()
    splits = {
        name: (nanogpt_data / name / "text.bin").read_bytes() for name in ("search", "sealed")
    }
    documents = {name: text.split(b"\n\n")[:-1] for name, text in splits.items()}
    assert min(len(d) for d in documents.values()) > 200
    for name, texts in documents.items():
        other = splits["sealed" if name == "search" else "search"]
        for document in texts:
            assert document not in train
            assert document not in other
        # Nor any window that is scored.
        text = splits[name]
        stride = len(text) // 256
        assert not [i for i in range(256) if text[i * stride : i * stride + 65] in train]


def test_the_text_is_the_same_everywhere_and_quick_to_make(
    nanogpt: Bundled, nanogpt_data: Path, tmp_path: Path
) -> None:
    started = time.monotonic()
    prepare(nanogpt.environment.folder, tmp_path)
    assert time.monotonic() - started < 5
    for split in SPLITS:
        made = (tmp_path / split / "text.bin").read_bytes()
        assert made == (nanogpt_data / split / "text.bin").read_bytes()
        assert max(made) < 128


def test_a_text_of_ones_own_can_be_used(nanogpt: Bundled, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(nanogpt.environment.folder, copy)
    manifest = copy / "environment.toml"
    manifest.write_text(manifest.read_text().replace('text_file = ""', 'text_file = "own.txt"'))
    text = bytes(range(256)) * 4000
    (copy / "own.txt").write_bytes(text)
    prepare(copy, tmp_path / "data")
    parts = [(tmp_path / "data" / s / "text.bin").read_bytes() for s in SPLITS]
    assert b"".join(parts) == text
    assert Environment.load(copy).id != nanogpt.environment.id
    (copy / "own.txt").write_bytes(b"short")
    with pytest.raises(subprocess.CalledProcessError):
        prepare(copy, tmp_path / "data")


def prepare(folder: Path, out: Path) -> None:
    subprocess.run(
        [sys.executable, str(folder / "prepare.py"), "--profile", "tiny", "--out", str(out)],
        check=True,
    )


def test_every_recipe_does_what_it_says(nanogpt: Bundled, train_many: TrainMany) -> None:
    """Edits train, and give models that look at the past alone; crash recipes raise."""
    edits, crashes = nanogpt.names("edit"), nanogpt.names("crash")
    trees = {name: nanogpt.apply(name) for name in (*edits, *crashes)}
    together = [name for name in edits if name not in ("cosine_schedule", "swiglu", "plain_sgd")]
    trees["all together"] = nanogpt.apply(*together)
    results = train_many(trees, 6 * STEP)
    for name in (*edits, "all together"):
        result = results[name]
        assert result.error is None, f"{name}\n{result.error}"
        assert result.checks["shape"] == [4, 64, 256], name
        assert result.checks["short"] == [4, 5, 256], name
        assert result.checks["dtype"] == "torch.float32", name
        assert result.checks["finite"], name
        assert result.checks["future"] < 1e-3, name
    for name in crashes:
        assert results[name].error is not None, name
        assert "RuntimeError" in results[name].error, name
        assert not (results[name].folder / "out" / "model.pt").exists()


def test_the_same_seed_gives_the_same_weights(nanogpt: Bundled, train_many: TrainMany) -> None:
    trees = {"one": nanogpt.files, "two": nanogpt.files}
    results = train_many(trees, 8 * STEP, seeds=(0, 1))
    weights = {n: (r.folder / "out" / "model.pt").read_bytes() for n, r in results.items()}
    assert weights["one@0"] == weights["two@0"]
    assert weights["one@1"] == weights["two@1"]
    assert weights["one@0"] != weights["one@1"]


def test_training_writes_its_learning_curve(nanogpt: Bundled, train_many: TrainMany) -> None:
    result = train_many({"baseline": nanogpt.files}, 31 * STEP)["baseline"]
    assert result.error is None
    lines = (result.folder / "out" / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    assert [p["step"] for p in points] == [0, 10, 20, 30]
    losses = [p["train/loss"] for p in points]
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # ln 256: nothing is known yet
    assert losses[-1] < 3.5
    assert sorted(os.listdir(result.folder / "out")) == ["metrics.jsonl", "model.pt"]


def test_a_training_that_is_asked_to_stop_leaves_what_it_has(
    nanogpt: Bundled, nanogpt_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"budget": {"tokens": 100000000}}')
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=nanogpt.environment.folder / "codebase",
        env={
            "PATH": os.environ["PATH"],
            "ASSAY_DATA": str(nanogpt_data / "train"),
            "ASSAY_OUT": str(tmp_path),
            "ASSAY_CONFIG": str(tmp_path / "config.json"),
            "ASSAY_SEED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stdout=subprocess.DEVNULL,
    )
    curve = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (curve.exists() and curve.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    assert (tmp_path / "model.pt").stat().st_size > 1_000_000


def test_the_evaluation_scores_honest_models_and_catches_those_that_look_ahead(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    peeking = dict(nanogpt.files)
    mask = 'torch.full((T, T), float("-inf")).triu(diagonal=1)'
    assert mask in peeking["model.py"]
    peeking["model.py"] = peeking["model.py"].replace(mask, mask.replace("=1", "=2"))
    talking = dict(nanogpt.files)
    talking["model.py"] += '\nprint("val_loss: 0.0001", flush=True)\n'
    trees = {"baseline": nanogpt.files, "talking": talking, "peeking": peeking}
    results = train_many(trees, 60 * STEP)
    assert results["peeking"].checks["future"] > 0.1

    honest = evaluate(nanogpt, results["baseline"], nanogpt_data, hardware_class)
    assert honest.metrics is not None, honest.failure
    assert 2.0 < honest.metrics["val_loss"] < 3.2
    assert abs(honest.metrics["val_loss/correction"]) < 0.003
    assert 0 < honest.metrics["val_loss/windows_se"] < 0.1

    loud = evaluate(nanogpt, results["talking"], nanogpt_data, hardware_class)
    assert loud.metrics is not None, loud.failure
    # Other code gets other secret positions, so rounding differs.
    assert loud.metrics["val_loss"] == pytest.approx(honest.metrics["val_loss"], abs=1e-3)
    again = evaluate(nanogpt, results["baseline"], nanogpt_data, hardware_class)
    assert again.metrics == honest.metrics

    caught = evaluate(nanogpt, results["peeking"], nanogpt_data, hardware_class)
    assert caught.failure is not None
    assert caught.failure.code == "leak"


def test_a_checkpoint_that_does_not_fit_is_explained(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    trained = train_many({"baseline": nanogpt.files}, STEP)["baseline"]
    wider = nanogpt.apply("swiglu")
    (trained.folder / "code" / "model.py").write_text(wider["model.py"])
    outcome = evaluate(nanogpt, trained, nanogpt_data, hardware_class)
    assert outcome.failure is not None
    assert outcome.failure.code == "predictor_died"
    assert "gate.weight" in outcome.failure.message


@pytest.mark.slow
def test_a_good_edit_beats_the_baseline_and_a_bad_one_does_not(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    """One seed at the full budget; `benchmarks/discrimination.py` is the proof, over five."""
    trees = {"baseline": nanogpt.files}
    for name in ("good_bigram_embedding", "bad_label_smoothing"):
        edit = (EDITS / f"{name}.diff").read_text()
        trees[name] = apply_answer(nanogpt.files, edit).files
    tokens = nanogpt.environment.profile("tiny").budget.tokens
    losses = {}
    for name, trained in train_many(trees, tokens).items():
        outcome = evaluate(nanogpt, trained, nanogpt_data, hardware_class)
        assert outcome.metrics is not None, outcome.failure
        losses[name] = outcome.metrics["val_loss"]
    # Seeds differ by 0.013 (standard deviation); these effects are 0.24 and 0.19.
    assert losses["good_bigram_embedding"] < losses["baseline"] - 0.1
    assert losses["bad_label_smoothing"] > losses["baseline"] + 0.08
