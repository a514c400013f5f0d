"""Assay as the evaluator of OpenEvolve (https://pypi.org/project/openevolve/)."""

from __future__ import annotations

from typing import Any, Unpack

from assay.adapters.evaluator import Settings
from assay.adapters.programs import ProgramScorer, import_extra


class ProgramEvaluator(ProgramScorer):
    """The `evaluate` of an OpenEvolve evaluation file; see `Evaluator` for its arguments.

    A program's `combined_score` is its reward, 0 if it failed. Artifacts tell the model why.
    """

    def __init__(
        self, environment: str, profile: str, *, file: str, **settings: Unpack[Settings]
    ) -> None:
        settings.setdefault("ideator", "openevolve")
        super().__init__(environment, profile, file=file, **settings)
        self._result = import_extra("openevolve.evaluation_result", "openevolve").EvaluationResult

    def __call__(self, program_path: str) -> Any:
        """Return the `openevolve.evaluation_result.EvaluationResult` of a program.

        Raises: as `score_all`; OpenEvolve then calls it again.
        """
        score = self.score_program(program_path)
        metrics = {"combined_score": score.reward}
        if score.metric is not None:
            metrics[score.metric_name] = score.metric
        return self._result(metrics=metrics, artifacts=score.as_text())
