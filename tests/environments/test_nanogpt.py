"""The `nanogpt` environment: its text, its training, and that its evaluation cannot be fooled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from assay.domain.states import MeasurementKind
from assay.evaluation import EvaluationOutcome, EvaluationRequest, evaluate_in_child
from assay.evaluation.checkpoints import Checkpoint
from assay.sandbox import Limits, SandboxSettings
from services.worker.scoring import Splits
from tests.environments.conftest import Bundled, Trained, TrainMany

pytestmark = pytest.mark.slow

STEP = 16 * 64  # tokens
SPLITS = ("train", "search", "sealed")


def evaluate(
    nanogpt: Bundled,
    trained: Trained,
    data: Path,
    hardware_class: str,
    checkpoints: tuple[Checkpoint, ...] = (),
    kind: MeasurementKind = MeasurementKind.SCORE,
    **config: object,
) -> EvaluationOutcome:
    """Score what training left, as a measurement of this kind."""
    profile = nanogpt.environment.profile("tiny")
    splits = Splits.of(nanogpt.environment.manifest.metric, data, kind)
    scratch = trained.folder / "scratch"
    scratch.mkdir(exist_ok=True)
    return evaluate_in_child(
        EvaluationRequest(
            environment_dir=nanogpt.environment.folder,
            config={**profile.config, **config},
            predict=nanogpt.environment.manifest.entry_points.predict,
            codebase_dir=trained.folder / "code",
            artifact_dir=trained.folder / "out",
            held_out=splits.held_out,
            sealed=splits.sealed,
            seed=0,
            metric_name=splits.metric,
            sandbox=SandboxSettings("subprocess", scratch=scratch),
            limits=Limits(wall_seconds=60, memory_bytes=4 << 30),
            seconds=60.0,
            profile="tiny",
            hardware_class=hardware_class,
            checkpoints=checkpoints,
        )
    )


def text_of(path: Path) -> bytes:
    """The tokens of a shard of bytes."""
    return np.fromfile(path, dtype="<u2", offset=1024).astype(np.uint8).tobytes()


def test_no_held_out_text_stands_in_the_training_text(nanogpt_data: Path) -> None:
    train = text_of(nanogpt_data / "train" / "train_000001.bin")
    splits = {name: text_of(nanogpt_data / name / "val_000000.bin") for name in SPLITS[1:]}
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


def test_every_recipe_does_what_it_says(nanogpt: Bundled, train_many: TrainMany) -> None:
    """Edits train, and give models that look at the past alone; crash recipes raise."""
    edits, crashes = nanogpt.names("edit"), nanogpt.names("crash")
    trees = {name: nanogpt.apply(name) for name in (*edits, *crashes)}
    # Some edit the same lines.
    alone = ("cosine_schedule", "swiglu", "plain_sgd", "layer_skips", "label_smoothing")
    together = [name for name in edits if name not in (*alone, "no_mlp_residual")]
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


def test_training_writes_its_learning_curve(
    nanogpt: Bundled, train_many: TrainMany, hardware_class: str
) -> None:
    result = train_many({"baseline": nanogpt.files}, 31 * STEP)["baseline"]
    assert result.error is None
    lines = (result.folder / "out" / "metrics.jsonl").read_text().splitlines()
    points = [json.loads(line) for line in lines]
    bf16 = hardware_class.endswith("bf16")
    assert points[0]["dtype"] == ("bfloat16" if bf16 else "float32")
    assert [p["step"] for p in points[1:]] == [0, 10, 20, 30]
    losses = [p["train/loss"] for p in points[1:]]
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # ln 256: nothing is known yet
    assert losses[-1] < 3.5
    assert sorted(os.listdir(result.folder / "out")) == ["metrics.jsonl", "model.pt"]


def test_a_training_that_is_asked_to_stop_leaves_what_it_has(
    nanogpt: Bundled, nanogpt_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 256, "budget": {"tokens": 100000000}}')
    process = subprocess.Popen(
        [sys.executable, "launch.py"],
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
    while not (curve.exists() and "loss" in curve.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    assert (tmp_path / "model.pt").stat().st_size > 1_000_000


def test_the_evaluation_scores_honest_models_and_catches_those_that_look_ahead(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    peeking = dict(nanogpt.files)
    mask = ".triu(diagonal=S - T + 1)"
    assert mask in peeking["model.py"]
    peeking["model.py"] = peeking["model.py"].replace(mask, ".triu(diagonal=S - T + 2)")
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


def test_a_confirmation_scores_the_unmodified_codebase_on_the_sealed_split(
    nanogpt: Bundled,
    train_many: TrainMany,
    nanogpt_data: Path,
    hardware_class: str,
    tmp_path: Path,
) -> None:
    trained = train_many({"baseline": nanogpt.files}, 30 * STEP)["baseline"]
    for name, split in (("search alone", "search"), ("sealed alone", "sealed")):
        (tmp_path / name).mkdir()
        (tmp_path / name / split).symlink_to(nanogpt_data / split)
    loss = {}
    for kind, data in (
        (MeasurementKind.SCORE, tmp_path / "search alone"),
        (MeasurementKind.CONFIRM, tmp_path / "sealed alone"),
    ):
        outcome = evaluate(nanogpt, trained, data, hardware_class, kind=kind)
        assert outcome.metrics is not None, outcome.failure
        loss[kind] = outcome.metrics["val_loss"]
    ordinary, confirmed = loss.values()
    assert ordinary != confirmed
    assert confirmed == pytest.approx(ordinary, abs=0.1)  # other windows of the same language


def test_a_checkpoint_that_does_not_fit_is_explained_in_the_workers_log(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    trained = train_many({"baseline": nanogpt.files}, STEP)["baseline"]
    wider = nanogpt.apply("swiglu")
    (trained.folder / "code" / "model.py").write_text(wider["model.py"])
    outcome = evaluate(nanogpt, trained, nanogpt_data, hardware_class)
    assert outcome.failure is not None
    assert outcome.failure.code == "predictor_died"
    assert "gate.weight" in outcome.failure.detail


@pytest.mark.timeout(900)  # minutes on a quiet machine, more on a busy one
def test_every_mode_gives_the_same_loss_with_any_forward_pass(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    """By steps through the cache, and where an edit has broken or removed it, from the prefix."""
    removed = dict(nanogpt.files)
    removed["model.py"] = removed["model.py"].replace("class Cache", "class NoCache")
    trees = {
        "cache": nanogpt.files,
        "shift": nanogpt.apply("token_shift"),
        "removed": removed,
    }
    for name, trained in train_many(trees, 20 * STEP).items():
        assert trained.error is None, trained.error
        few = {"windows": 64}
        found = {
            mode: evaluate(nanogpt, trained, nanogpt_data, hardware_class, scoring=mode, **few)
            for mode in ("parallel", "losses", "step")
        }
        metrics = {mode: outcome.metrics for mode, outcome in found.items()}
        assert None not in metrics.values(), (name, found)
        losses = [m["val_loss"] for m in metrics.values() if m is not None]
        assert max(losses) - min(losses) < 2e-3, (name, losses)


def test_the_time_to_a_target_is_that_of_the_first_checkpoint_below_it(
    nanogpt: Bundled, train_many: TrainMany, nanogpt_data: Path, hardware_class: str
) -> None:
    """Checkpoints of 1, 10, 20 and 30 steps; the seconds are the worker's, not the names'."""
    trained = train_many({"baseline": nanogpt.files}, 30 * STEP)["baseline"]
    seen = []
    for number, steps in enumerate((1, 10, 20, 30)):
        folder = trained.folder / "out" / "checkpoints" / f"{number:09.2f}"
        folder.mkdir(parents=True)
        early = train_many({f"early {steps}": nanogpt.files}, steps * STEP)[f"early {steps}"]
        (early.folder / "out" / "model.pt").rename(folder / "model.pt")
        seen.append(Checkpoint(folder.name, 7.5 * steps, ""))
    args = (nanogpt, trained, nanogpt_data, hardware_class, tuple(seen))
    few = {"windows": 64}
    final = evaluate(*args, **few).metrics
    assert final is not None
    assert "time_to_target" not in final
    reached = evaluate(*args, target=final["val_loss"] + 0.005, **few)
    assert reached.metrics is not None, reached
    assert reached.metrics["time_to_target"] == 225.0
    assert reached.keep == (seen[3].name,)
    early = evaluate(*args, target=5.0, **few)
    assert early.metrics is not None
    assert early.metrics["time_to_target"] == 75.0
    assert final["val_loss"] < early.metrics["target_loss_at"] < 5.0
    missed = evaluate(*args, target=0.5, **few)
    assert missed.metrics is not None
    assert "time_to_target" not in missed.metrics


def test_checkpoints_are_whole_when_they_get_their_name(
    nanogpt: Bundled, train_many: TrainMany
) -> None:
    flags = ("--checkpoint_every_seconds", "0.02")
    trained = train_many({"baseline": nanogpt.files}, 12 * STEP, flags=flags)["baseline"]
    assert trained.error is None
    out = trained.folder / "out"
    assert sorted(os.listdir(out)) == ["checkpoints", "metrics.jsonl", "model.pt"]
    names = sorted(os.listdir(out / "checkpoints"))
    assert len(names) >= 2
    assert {len(name) for name in names} == {9}
    sizes = {(out / "checkpoints" / name / "model.pt").stat().st_size for name in names}
    assert sizes == {(out / "model.pt").stat().st_size}
    # The last is that of the end, so that a target reached there has a time.
    last = out / "checkpoints" / names[-1] / "model.pt"
    assert last.read_bytes() == (out / "model.pt").read_bytes()
