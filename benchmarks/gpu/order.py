"""Whether `quick-gpu` at 45 s puts known edits into the right order.

The baseline on two seeds, Muon below both of them, label smoothing above. All compile at the same
time, since that takes processors; then each gets its data, and the GPU, alone. `full` is for
`--long`: all edits of `tests/environments/nanogpt/edits`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu import report, runs

EDITS = runs.ROOT / "tests" / "environments" / "nanogpt" / "edits"
GOOD, BAD = "good_muon", "bad_label_smoothing"
SECONDS = 45.0
_TOY = (
    "--n_layer 1 --n_head 2 --n_embd 32 --context 32 --batch_size 8 --micro_batch 8 "
    "--compile false --val_every 0 --reserve_seconds 0.5 --precision fp32 --log_every 2"
)
TOY_FLAGS = tuple(_TOY.split())
_WARM_UP_SECONDS = 420.0
_AT_ONCE = 4


def run(seconds: float, dry_run: bool) -> dict[str, Any]:
    """Train four times, for at most 45 s each, in about `seconds`."""
    each = min(SECONDS, seconds / 5)
    found = _measure([("baseline", 0), ("baseline", 1), (GOOD, 0), (BAD, 0)], each, dry_run)
    losses = {
        name: [row["loss"] for row in found["rows"] if row["edit"] == name]
        for name in names(found)
    }
    complete = None not in [loss for each in losses.values() for loss in each]
    found["right_order"] = bool(
        complete
        and max(losses[GOOD]) < min(losses["baseline"])
        and max(losses["baseline"]) < min(losses[BAD])
    )
    report.save("order", found)
    return found


def full(dry_run: bool) -> dict[str, Any]:
    """All edits and the baseline, on one seed each."""
    edits = sorted(path.stem for path in EDITS.glob("*.diff"))
    return _measure(
        [("baseline", 0), ("baseline", 1), *((name, 0) for name in edits)], SECONDS, dry_run
    )


def names(found: dict[str, Any]) -> list[str]:
    """The edits among the rows."""
    return list(dict.fromkeys(row["edit"] for row in found["rows"]))


def _measure(wanted: list[tuple[str, int]], seconds: float, dry_run: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seconds": seconds,
        "scored": "a plain pass over 512 windows",
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        choice = runs.choose(folder)
        found["sandbox"] = choice.said
        data = prepare(folder, "tiny" if dry_run else "quick-gpu")
        for start in range(0, len(wanted), _AT_ONCE):
            group = [
                _run_of(folder, choice, data, name, seed, seconds, dry_run)
                for name, seed in wanted[start : start + _AT_ONCE]
            ]
            with runs.running(*group):
                for training in group:
                    found["rows"].append(_finished(training, data, dry_run))
                    report.save("order", found)
    return found


def prepare(folder: Path, profile: str) -> Path:
    """The environment's generated text, made by its own program."""
    copied = folder / "environment"
    shutil.copytree(runs.NANOGPT, copied)
    shutil.copytree(runs.VENDORED, copied, dirs_exist_ok=True)
    command = [sys.executable, "prepare.py", "--profile", profile, "--out", str(folder / "data")]
    subprocess.run(command, cwd=copied, check=True, stdout=subprocess.DEVNULL)
    return folder / "data"


def _run_of(
    folder: Path,
    choice: runs.Choice,
    data: Path,
    name: str,
    seed: int,
    seconds: float,
    dry_run: bool,
) -> runs.Run:
    from assay.patching import apply_answer

    files = runs.codebase_of(runs.NANOGPT)
    if name != "baseline":
        diff = (EDITS / f"{name}.diff").read_text()
        files = dict(apply_answer(files, diff, protected=("predict.py",)).files)
    return runs.Run(
        f"{name}-{seed}".replace("_", "-"),
        folder / f"{name}-{seed}",
        choice,
        files,
        data / "train",
        "quick-gpu",
        seconds,
        _WARM_UP_SECONDS,
        {"vocab_size": 256},
        seed=seed,
        flags=TOY_FLAGS if dry_run else (),
        gpu=not dry_run,
    )


def _finished(training: runs.Run, data: Path, dry_run: bool) -> dict[str, Any]:
    """Give a training its data, wait for its end, and score it."""
    name, _, seed = training.folder.name.rpartition("-")
    row: dict[str, Any] = {"edit": name, "seed": int(seed), "loss": None}
    if training.asked(_WARM_UP_SECONDS):
        training.open_gate()
        training.finish()
    if (training.reason, training.code) == ("exited", 0):
        row["loss"] = runs.score(training, data / "search", windows=64 if dry_run else 512)
        row["steps"] = training.points()[-1]["step"]
        row["warm_up_seconds"] = round(training.warm_up_seconds or 0.0, 1)
    else:
        row["failed"] = training.why()
    print(f"{name} seed {seed}: {row['loss']}", flush=True)
    return row
