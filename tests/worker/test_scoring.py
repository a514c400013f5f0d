"""What is scored twice by a worker, and what then counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from assay.contracts.environment import Budget, MetricSpec, Profile
from assay.contracts.worker import RescoreReport
from assay.domain.errors import InvalidInput
from assay.domain.failure_codes import FailureCode
from assay.domain.metrics import Direction
from assay.domain.rescore import Rescore
from assay.domain.states import MeasurementKind
from assay.evaluation import (
    EvaluationFailure,
    EvaluationOutcome,
    EvaluationRequest,
)
from assay.sandbox import Limits, SandboxSettings
from services.worker.failures import AttemptFailed, MetricBounds, read_bounds
from services.worker.scoring import Scoring, Splits


def scoring(outcomes: list[Any], rescore: Rescore | None) -> tuple[Scoring, list[int]]:
    seeds: list[int] = []

    def evaluate(request: EvaluationRequest) -> EvaluationOutcome:
        seeds.append(request.seed)
        found = outcomes.pop(0)
        if isinstance(found, dict):
            return EvaluationOutcome(found, None, 1.0, 0.5)
        return EvaluationOutcome(None, EvaluationFailure(found, "so"), 1.0, 0.5)

    spec = MetricSpec(name="loss", direction=Direction.MINIMIZE, confirmed="sealed")
    bounds = {"loss": 0.5, "sealed": 0.6}
    made = Scoring(spec, "loss", rescore, evaluate, on_failure=lambda text: None, bounds=bounds)
    return made, seeds


def request_of(predict: tuple[str, ...] | None = ("python", "predict.py")) -> EvaluationRequest:
    nowhere = Path("/nowhere")
    return EvaluationRequest(
        environment_dir=nowhere,
        config={},
        predict=predict,
        codebase_dir=nowhere,
        artifact_dir=nowhere,
        held_out=nowhere,
        seed=3,
        metric_name="loss",
        sandbox=SandboxSettings("subprocess", scratch=nowhere),
        limits=Limits(1, 1 << 20),
        seconds=10,
        profile="tiny",
        hardware_class="cpu",
    )


def test_an_outlier_is_scored_again_with_another_seed() -> None:
    made, seeds = scoring(
        [{"loss": 1.0, "loss/se": 0.01}, {"loss": 1.02, "loss/se": 0.02}], Rescore(1.5)
    )
    assert made.run(request_of()) == {"loss": 1.0, "loss/se": 0.01}
    assert len(set(seeds)) == 2
    assert made.second == RescoreReport(metrics={"loss": 1.02, "loss/se": 0.02}, seconds=1.0)
    assert made.seconds == 2.0


def test_an_outlier_that_does_not_repeat_does_not_count() -> None:
    made, _ = scoring([{"loss": 1.0}, {"loss": 1.1}], Rescore(1.5))
    with pytest.raises(AttemptFailed) as failed:
        made.run(request_of())
    assert (failed.value.failure.stage, failed.value.failure.code) == ("guard", "not_confirmed")
    assert made.second is None
    made, _ = scoring([{"loss": 1.0}, FailureCode.LEAK], Rescore(1.5))
    with pytest.raises(AttemptFailed) as failed:
        made.run(request_of())
    assert (failed.value.failure.stage, failed.value.failure.code) == ("score", "leak")


@pytest.mark.parametrize(
    ("rule", "predict"),
    [(Rescore(0.9), ("python", "predict.py")), (None, ("python", "x")), (Rescore(None), None)],
)
def test_the_ordinary_is_scored_once(
    rule: Rescore | None, predict: tuple[str, ...] | None
) -> None:
    made, seeds = scoring([{"loss": 1.0}], rule)
    assert made.run(request_of(predict)) == {"loss": 1.0}
    assert len(seeds) == 1
    assert made.second is None


@pytest.mark.parametrize("metrics", [{"loss": 0.4}, {"loss": 0.7, "sealed": 0.55}])
def test_what_is_held_impossible_never_counts(metrics: dict[str, float]) -> None:
    made, seeds = scoring([metrics], Rescore(None))
    with pytest.raises(AttemptFailed) as failed:
        made.run(request_of())
    assert failed.value.failure.code == "implausible"
    assert len(seeds) == 1


def test_what_an_evaluation_used_can_fail_it() -> None:
    made, _ = scoring([{"loss": 1.0}], None)
    refusal = EvaluationFailure(FailureCode.COMPUTE_EXCEEDED, "too much")
    made.judge = lambda outcome: dataclasses.replace(outcome, metrics=None, failure=refusal)
    with pytest.raises(AttemptFailed) as failed:
        made.run(request_of())
    assert (failed.value.failure.stage, failed.value.failure.code) == ("score", "compute_exceeded")


def test_a_bound_is_the_datas_before_the_profiles_before_the_metrics(tmp_path: Path) -> None:
    spec = MetricSpec(name="loss", direction=Direction.MINIMIZE, bound=0.5)
    usual = Profile(budget=Budget(seconds=1))
    assert MetricBounds.of(spec, usual, tmp_path) == MetricBounds(0.5, 0.5)
    own = usual.model_copy(update={"bound": 0.4})
    assert MetricBounds.of(spec, own, tmp_path) == MetricBounds(0.4, 0.4)
    (tmp_path / "bounds.json").write_text('{"search": 0.51}')
    assert MetricBounds.of(spec, own, tmp_path) == MetricBounds(0.51, 0.4)
    (tmp_path / "bounds.json").write_text('{"search": 0.51, "sealed": 0.49}')
    assert MetricBounds.of(spec, own, tmp_path) == MetricBounds(0.51, 0.49)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"search": NaN}', '{"validation": 1}', '{"sealed": true}']
)
def test_bounds_that_are_none_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bounds.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"bounds\.json"):
        read_bounds(tmp_path)


def test_a_noisy_look_does_not_excuse_a_difference() -> None:
    outcomes = [{"loss": 1.0, "loss/se": 0.0}, {"loss": 1.02, "loss/se": 0.02}]
    made, _ = scoring(outcomes, Rescore(1.5))
    with pytest.raises(AttemptFailed) as failed:
        made.run(request_of())
    assert failed.value.failure.code == "not_confirmed"


@pytest.mark.parametrize(
    ("kind", "confirmed", "has_sealed", "read", "metric", "bounds"),
    [
        ("score", None, True, ("search", None), "loss", {"loss": 0.5}),
        ("score", "other", True, ("search", None), "loss", {"loss": 0.5}),
        ("control", None, True, ("search", None), "loss", {"loss": 0.5}),
        ("confirm", None, True, ("sealed", None), "loss", {"loss": 0.4}),
        ("confirm", None, False, ("search", None), "loss", {"loss": 0.5}),
        ("confirm", "other", True, ("search", "sealed"), "other", {"loss": 0.5, "other": 0.4}),
    ],
)
def test_only_a_confirmation_reads_the_sealed_split(
    tmp_path: Path,
    kind: str,
    confirmed: str | None,
    has_sealed: bool,
    read: tuple[str, str | None],
    metric: str,
    bounds: dict[str, float],
) -> None:
    for name in ("search", "sealed"):
        (tmp_path / name).mkdir()
    if has_sealed:
        (tmp_path / "sealed" / "val.bin").write_bytes(b"1")
    spec = MetricSpec(name="loss", direction=Direction.MINIMIZE, confirmed=confirmed)
    splits = Splits.of(spec, tmp_path, MeasurementKind(kind))
    assert (splits.held_out.name, splits.sealed and splits.sealed.name) == read
    is_sealed = kind == "confirm" and has_sealed
    assert (splits.metric, splits.scored_on) == (metric, "sealed" if is_sealed else "search")
    assert splits.bounds(spec, MetricBounds(0.5, 0.4)) == bounds
