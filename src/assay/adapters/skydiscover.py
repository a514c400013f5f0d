"""Assay as the evaluator of SkyDiscover (https://pypi.org/project/skydiscover/)."""

from __future__ import annotations

from typing import Any, Unpack

from assay.adapters.evaluator import Settings
from assay.adapters.programs import ProgramScorer, import_extra


class ProgramEvaluator(ProgramScorer):
    """The `evaluator` of `skydiscover.run_discovery`; see `Evaluator` for its arguments.

    A program's `combined_score` is its reward. One that failed has 0 and an `error`, which
    SkyDiscover shows to the model and asks it to try again.
    """

    def __init__(
        self, environment: str, profile: str, *, file: str, **settings: Unpack[Settings]
    ) -> None:
        settings.setdefault("ideator", "skydiscover")
        super().__init__(environment, profile, file=file, **settings)
        results = import_extra("skydiscover.evaluation.evaluation_result", "skydiscover")
        self._result = results.EvaluationResult

    def __call__(self, program_path: str) -> Any:
        """Return the `skydiscover.evaluation.evaluation_result.EvaluationResult` of a program.

        Raises: as `score_all`; SkyDiscover then calls it again.
        """
        score = self.score_program(program_path)
        metrics: dict[str, Any] = {"combined_score": score.reward}
        if score.metric is not None:
            metrics[score.metric_name] = score.metric
        else:
            metrics["error"] = score.failure
        return self._result(metrics=metrics, artifacts=score.as_text())
