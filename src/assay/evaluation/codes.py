"""Why an answer does not count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from assay.domain.failure_codes import REJECTIONS, Code, FailureCode, OtherCode


class Rejection(Enum):
    """Every sentence that an evaluation may tell about what it rejects, with its code.

    A predictor has seen held-out data and chooses how it misbehaves, so a number or a text of its
    making in a message would carry that data to whoever reads the message. The sentences are
    therefore fixed. Their number bounds what the choice among them can tell (docs/evaluation.md).
    The first members, named after the codes, are for evaluators that reject in their own words.
    """

    NOT_FINITE = (
        FailureCode.NOT_FINITE,
        "A number in the artifact, an answer or the metrics is NaN, infinite or too large. Look"
        " for a division by zero or an overflow in the model.",
    )
    WRONG_SHAPE = (
        FailureCode.WRONG_SHAPE,
        "The artifact, or an array of an answer, does not have the shape that the evaluator asks"
        " for. Compare predict.py and what training saves with those of the baseline.",
    )
    WRONG_TYPE = (
        FailureCode.WRONG_TYPE,
        "The artifact, or an array of an answer, does not have the type that the evaluator asks"
        " for. Compare predict.py and what training saves with those of the baseline.",
    )
    MALFORMED_FRAME = (
        FailureCode.MALFORMED_FRAME,
        "The predictor's answer is not one frame of the protocol with the `seq` and the arrays"
        " that were asked for. Write nothing else to stdout; docs/environments.md describes the"
        " frames.",
    )
    TIMEOUT = (
        FailureCode.TIMEOUT,
        "An answer of the predictor, or the evaluation as a whole, took too long. Make prediction"
        " faster; evaluation_seconds of the profile is the limit.",
    )
    PREDICTOR_DIED = (
        FailureCode.PREDICTOR_DIED,
        "The predictor ended, or closed its output, while it was asked about held-out data. Try"
        " predict.py on training data with inputs of all lengths.",
    )
    EARLY_ANSWER = (
        FailureCode.EARLY_ANSWER,
        "The predictor wrote to stdout before a question was complete. Write nothing there but one"
        " answer to each question.",
    )
    MISSING_ARTIFACT = (
        FailureCode.MISSING_ARTIFACT,
        "Training did not leave a file that the evaluator needs in $ASSAY_OUT.",
    )
    OVERSIZED = (
        FailureCode.OVERSIZED,
        "A file of the artifact is larger than the evaluator allows.",
    )
    LEAK = (
        FailureCode.LEAK,
        "A prediction depends on later tokens: with the prefix alone the losses differ by more"
        " than rounding. Check the attention mask and everything that mixes positions.",
    )
    INCONSISTENT = (
        FailureCode.INCONSISTENT,
        "The predictor answers the same question differently in another instance. Its answers must"
        " not depend on earlier questions, on the batch or on chance.",
    )
    FOOLED = (
        FailureCode.FOOLED,
        "Too many answers are judged right against references of other questions: they forge their"
        " marks, or the grader accepts anything.",
    )
    COMPUTE_EXCEEDED = (
        FailureCode.COMPUTE_EXCEEDED,
        "The predictor used more processor time than the profile allows beside the baseline's"
        " (`evaluation_compute`). Train in the training: what counts is the model it leaves.",
    )
    EVALUATOR_ERROR = (
        FailureCode.EVALUATOR_ERROR,
        "The evaluator failed. The log of the worker says how.",
    )

    DIED_AT_START = (
        FailureCode.PREDICTOR_DIED,
        "The predictor ended, or closed its output, before it was shown held-out data. Load the"
        " artifact at the end of training as predict.py does: an error there is shown in the log.",
    )
    OUT_OF_MEMORY = (
        FailureCode.PREDICTOR_DIED,
        "The predictor used more memory than the profile allows. Predict in smaller batches.",
    )
    OUT_OF_TIME = (
        FailureCode.PREDICTOR_DIED,
        "The predictor used up its time. Make prediction faster; evaluation_seconds of the profile"
        " is the limit.",
    )
    NOT_READY = (
        FailureCode.MALFORMED_FRAME,
        "The predictor's first frame is not `ready`. Start `assay_predictor.py`, or write that"
        " frame as docs/environments.md describes.",
    )
    LARGE_HEADER = (
        FailureCode.OVERSIZED,
        "The header of the predictor's answer is larger than the 65536 bytes of the protocol.",
    )
    LONG_COMPLETION = (
        FailureCode.OVERSIZED,
        "The length of a completion is negative or larger than `max_bytes` of the question.",
    )
    NOT_UTF8 = (FailureCode.WRONG_TYPE, "A completion is not UTF-8.")
    NOT_A_FILE = (
        FailureCode.WRONG_TYPE,
        "A file of the artifact cannot be read, or is a link or something else than a plain file.",
    )
    NOT_JSON = (
        FailureCode.WRONG_TYPE,
        "A file of the artifact is not valid JSON, or has a key twice.",
    )
    OTHER_PATH = (
        FailureCode.INCONSISTENT,
        "`step` does not answer what `next` answers: the losses differ by more than rounding."
        " Check the cache that `step` keeps.",
    )
    INTERRUPTED = (
        FailureCode.EVALUATION_INTERRUPTED,
        "The evaluation was ended from outside, or its sandbox failed. The log of the worker says"
        " how.",
    )

    @property
    def code(self) -> FailureCode:
        """The stable code, as `assay.domain.failure_codes` describes it."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """What submitters and models are told."""
        return self.value[1]


class InvalidAnswer(Exception):
    """What the codebase left or answered does not count.

    `message` is told to everyone: the sentence of `rejection`, or `sentence`, which must be a
    constant of the evaluator or of its manifest. `detail` may hold what the predictor chose; only
    operators read it.
    """

    def __init__(
        self,
        rejection: Rejection | DeclaredRejection,
        detail: str = "",
        *,
        sentence: str = "",
    ) -> None:
        super().__init__(rejection, detail, sentence)
        self.code: Code = rejection.code
        self.message = sentence or rejection.sentence
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class DeclaredRejection:
    """A reason that the environment declares under `[failures]`, with its sentence."""

    code: OtherCode
    sentence: str


def find_rejection(code: str, declared: Mapping[str, str]) -> Rejection | DeclaredRejection:
    """Return the rejection of that code: one of Assay's, or one that the environment declares.

    Raises:
        ValueError: there is no such code.
    """
    if code in declared:
        return DeclaredRejection(OtherCode(code), declared[code])
    if code in REJECTIONS:
        return Rejection[FailureCode(code).name]
    known = ", ".join(sorted([*REJECTIONS, *declared]))
    raise ValueError(
        f"{code!r} is no code to reject with; declare it under [failures] of environment.toml, "
        f"or use one of: {known}"
    )
