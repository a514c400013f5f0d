"""Why an answer does not count."""

from __future__ import annotations

from enum import Enum, StrEnum


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
    COMPUTE_EXCEEDED = "compute_exceeded"
    EVALUATOR_ERROR = "evaluator_error"


class Rejection(Enum):
    """Every sentence that an evaluation may tell about what it rejects, with its code.

    A predictor has seen held-out data and chooses how it misbehaves, so a number or a text of its
    making in a message would carry that data to whoever reads the message. The sentences are
    therefore fixed. Their number bounds what the choice among them can tell (docs/evaluation.md).
    The first members, named after the codes, are for evaluators that reject in their own words.
    """

    NOT_FINITE = (
        InvalidCode.NOT_FINITE,
        "A number in the artifact, an answer or the metrics is NaN, infinite or too large. Look"
        " for a division by zero or an overflow in the model.",
    )
    WRONG_SHAPE = (
        InvalidCode.WRONG_SHAPE,
        "The artifact, or an array of an answer, does not have the shape that the evaluator asks"
        " for. Compare predict.py and what training saves with those of the baseline.",
    )
    WRONG_TYPE = (
        InvalidCode.WRONG_TYPE,
        "The artifact, or an array of an answer, does not have the type that the evaluator asks"
        " for. Compare predict.py and what training saves with those of the baseline.",
    )
    MALFORMED_FRAME = (
        InvalidCode.MALFORMED_FRAME,
        "The predictor's answer is not one frame of the protocol with the `seq` and the arrays"
        " that were asked for. Write nothing else to stdout; docs/environments.md describes the"
        " frames.",
    )
    TIMEOUT = (
        InvalidCode.TIMEOUT,
        "An answer of the predictor, or the evaluation as a whole, took too long. Make prediction"
        " faster; evaluation_seconds of the profile is the limit.",
    )
    PREDICTOR_DIED = (
        InvalidCode.PREDICTOR_DIED,
        "The predictor ended, or closed its output, while it was asked about held-out data. Try"
        " predict.py on training data with inputs of all lengths.",
    )
    EARLY_ANSWER = (
        InvalidCode.EARLY_ANSWER,
        "The predictor wrote to stdout before a question was complete. Write nothing there but one"
        " answer to each question.",
    )
    MISSING_ARTIFACT = (
        InvalidCode.MISSING_ARTIFACT,
        "Training did not leave a file that the evaluator needs in $ASSAY_OUT.",
    )
    OVERSIZED = (
        InvalidCode.OVERSIZED,
        "A file of the artifact is larger than the evaluator allows.",
    )
    LEAK = (
        InvalidCode.LEAK,
        "A prediction depends on later tokens: with the prefix alone the losses differ by more"
        " than rounding. Check the attention mask and everything that mixes positions.",
    )
    INCONSISTENT = (
        InvalidCode.INCONSISTENT,
        "The predictor answers the same question differently in another instance. Its answers must"
        " not depend on earlier questions, on the batch or on chance.",
    )
    FOOLED = (
        InvalidCode.FOOLED,
        "Too many answers are judged right against references of other questions: they forge their"
        " marks, or the grader accepts anything.",
    )
    COMPUTE_EXCEEDED = (
        InvalidCode.COMPUTE_EXCEEDED,
        "The predictor used more processor time than the profile allows beside the baseline's"
        " (`evaluation_compute`). Train in the training: what counts is the model it leaves.",
    )
    EVALUATOR_ERROR = (
        InvalidCode.EVALUATOR_ERROR,
        "The evaluator failed. The log of the worker says how.",
    )

    DIED_AT_START = (
        InvalidCode.PREDICTOR_DIED,
        "The predictor ended, or closed its output, before it was shown held-out data. Load the"
        " artifact at the end of training as predict.py does: an error there is shown in the log.",
    )
    OUT_OF_MEMORY = (
        InvalidCode.PREDICTOR_DIED,
        "The predictor used more memory than the profile allows. Predict in smaller batches.",
    )
    OUT_OF_TIME = (
        InvalidCode.PREDICTOR_DIED,
        "The predictor used up its time. Make prediction faster; evaluation_seconds of the profile"
        " is the limit.",
    )
    NOT_READY = (
        InvalidCode.MALFORMED_FRAME,
        "The predictor's first frame is not `ready`. Start `assay_predictor.py`, or write that"
        " frame as docs/environments.md describes.",
    )
    LARGE_HEADER = (
        InvalidCode.OVERSIZED,
        "The header of the predictor's answer is larger than the 65536 bytes of the protocol.",
    )
    LONG_COMPLETION = (
        InvalidCode.OVERSIZED,
        "The length of a completion is negative or larger than `max_bytes` of the question.",
    )
    NOT_UTF8 = (InvalidCode.WRONG_TYPE, "A completion is not UTF-8.")
    NOT_A_FILE = (
        InvalidCode.WRONG_TYPE,
        "A file of the artifact cannot be read, or is a link or something else than a plain file.",
    )
    NOT_JSON = (
        InvalidCode.WRONG_TYPE,
        "A file of the artifact is not valid JSON, or has a key twice.",
    )
    OTHER_PATH = (
        InvalidCode.INCONSISTENT,
        "`step` does not answer what `next` answers: the losses differ by more than rounding."
        " Check the cache that `step` keeps.",
    )
    INTERRUPTED = (
        InvalidCode.EVALUATOR_ERROR,
        "The evaluation was ended from outside, or its sandbox failed. The log of the worker says"
        " how.",
    )

    @property
    def code(self) -> InvalidCode:
        """The stable code."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """What submitters and models are told."""
        return self.value[1]


class InvalidAnswer(Exception):
    """What the codebase left or answered does not count.

    `message` is told to everyone: the sentence of `rejection`, or `sentence`, which must be a
    constant of the evaluator. `detail` may hold what the predictor chose; only operators read it.
    `signalled`: a program was ended by a signal that may have come from outside its sandbox.
    """

    def __init__(
        self,
        rejection: Rejection,
        detail: str = "",
        *,
        sentence: str = "",
        signalled: bool = False,
    ) -> None:
        super().__init__(rejection, detail, sentence, signalled)
        self.code = rejection.code
        self.message = sentence or rejection.sentence
        self.detail = detail
        self.signalled = signalled

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
