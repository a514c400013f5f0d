"""Which windows an evaluation scores: a confirmation those of sealed/, and no others."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from assay.domain.states import MeasurementKind
from assay.evaluation import Evaluation, EvaluationRequest
from assay.sandbox import Limits, SandboxSettings
from services.worker.scoring import Splits
from tests.environments.conftest import Bundled
from tests.environments.nanogpt.conftest import shard


@dataclass
class Scored(Evaluation):
    """An evaluation whose loss is the mean of all bytes that it scores."""

    windows: list[np.ndarray] = field(default_factory=list)

    def score_language_model(self, windows: np.ndarray, *_: Any, **__: Any) -> Any:
        self.windows.append(windows)
        none = dict.fromkeys(("correction", "largest_difference", "correction_se"), 0.0)
        return SimpleNamespace(loss=float(windows.mean()), windows_se=0.0, **none)


def scored(nanogpt: Bundled, data: Path, kind: MeasurementKind) -> tuple[float, np.ndarray]:
    """The metric of a measurement of this kind, and the windows that it is of."""
    environment = nanogpt.environment
    evaluator = runpy.run_path(str(environment.folder / "evaluator" / "evaluate.py"))
    splits = Splits.of(environment.manifest.metric, data, kind)
    run = Scored.begin(
        EvaluationRequest(
            environment_dir=environment.folder,
            config=environment.profile("tiny").config,
            predict=environment.manifest.entry_points.predict,
            codebase_dir=data,
            artifact_dir=data,
            held_out=splits.held_out,
            sealed=splits.sealed,
            seed=0,
            metric_name=splits.metric,
            sandbox=SandboxSettings("subprocess", scratch=data),
            limits=Limits(wall_seconds=9, memory_bytes=1 << 28),
            seconds=9.0,
            profile="tiny",
            hardware_class="cpu",
        )
    )
    metrics = evaluator["evaluate"](run)
    (windows,) = run.windows
    return metrics[run.request.metric_name], windows


def test_a_confirmation_scores_other_windows(nanogpt: Bundled, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = {split: rng.integers(256, size=40_000) for split in ("search", "sealed")}
    for split, tokens in texts.items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "val_000000.bin").write_bytes(shard(tokens))
    ordinary, on_search = scored(nanogpt, tmp_path, MeasurementKind.SCORE)
    confirmed, on_sealed = scored(nanogpt, tmp_path, MeasurementKind.CONFIRM)
    assert on_search.shape == on_sealed.shape == (256, 65)
    for split, windows in (("search", on_search), ("sealed", on_sealed)):
        assert windows[0].tolist() == texts[split][:65].tolist()
    assert not {w.tobytes() for w in on_search} & {w.tobytes() for w in on_sealed}
    assert ordinary != confirmed
