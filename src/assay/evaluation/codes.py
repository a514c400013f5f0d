"""Why an answer does not count."""

from __future__ import annotations

from enum import StrEnum


class InvalidCode(StrEnum):
    """The closed list of reasons; nothing else ever leaves an evaluation."""

    NOT_FINITE = "not_finite"
    WRONG_SHAPE = "wrong_shape"
    WRONG_TYPE = "wrong_type"
    MALFORMED_FRAME = "malformed_frame"
    TIMEOUT = "timeout"
    PREDICTOR_DIED = "predictor_died"
    EARLY_ANSWER = "early_answer"
    MISSING_ARTIFACT = "missing_artifact"
    OVERSIZED = "oversized"
    LEAK = "leak"
    INCONSISTENT = "inconsistent"
    FOOLED = "fooled"
    EVALUATOR_ERROR = "evaluator_error"


class InvalidAnswer(Exception):
    """What the codebase left or answered does not count, for the reason in `code`."""

    def __init__(self, code: InvalidCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
