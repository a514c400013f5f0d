"""Sealed evaluation: score an artifact outside the sandbox in which it was made.

`evaluate_in_child(request)` is the entry; an environment's `evaluator/evaluate.py` is given an
`Evaluation`. Nothing here imports numpy until an evaluation needs it.
"""

from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.evaluation import (
    Evaluation,
    EvaluationFailure,
    EvaluationOutcome,
    EvaluationRequest,
    evaluate_artifact,
)
from assay.evaluation.process import (
    EvaluationCancelled,
    evaluate_in_child,
    start_evaluation_server,
)
from assay.evaluation.threads import thread_variables

__all__ = [
    "Evaluation",
    "EvaluationCancelled",
    "EvaluationFailure",
    "EvaluationOutcome",
    "EvaluationRequest",
    "InvalidAnswer",
    "Rejection",
    "evaluate_artifact",
    "evaluate_in_child",
    "start_evaluation_server",
    "thread_variables",
]
