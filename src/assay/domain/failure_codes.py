"""Every way in which an experiment, measurement, attempt or sample can fail, and what follows.

The worker, the implementer, the storage, the search and docs/errors.md all look here, so that a
code has one meaning and one set of consequences. `RULES` is the list; add a code there, then run
`make failure-codes`. Codes of HTTP answers and of the command line are elsewhere
(`assay.domain.errors`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NewType

from assay.domain.states import FailureStage


class Blame(StrEnum):
    """Who has to change something before it can end differently."""

    IDEA = "idea"  # the idea, or the edit or code that was written for it
    HOST = "host"  # a worker, or the machine it runs on
    SERVICE = "service"  # Assay's API or its stores, or a provider of models
    ENVIRONMENT = "environment"  # files of the environment that no idea can change
    SETTINGS = "settings"  # what was asked for: a cap, a key, a recording
    NOBODY = "nobody"  # nothing went wrong: it was cancelled, or its worker was stopped
    UNCLEAR = "unclear"  # the host or the code; nobody can tell which


class FailureCode(StrEnum):
    """The stable name of a failure."""

    # Refused by the patcher (`assay.patching.RefusalCode`).
    NO_DIFF = "no_diff"
    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    BAD_PATH = "bad_path"
    PROTECTED = "protected"
    SYMLINK = "symlink"
    UNKNOWN_FILE = "unknown_file"
    FILE_EXISTS = "file_exists"
    UNSUPPORTED = "unsupported"
    NO_MATCH = "no_match"
    AMBIGUOUS = "ambiguous"
    ALREADY_APPLIED = "already_applied"
    CONFLICT = "conflict"
    NO_CHANGE = "no_change"
    PLACEHOLDER = "placeholder"
    SYNTAX_ERROR = "syntax_error"
    # Refused by the implementer.
    DOES_NOT_COMPILE = "does_not_compile"
    TOO_COSTLY = "too_costly"
    SMOKE_FAILED = "smoke_failed"
    UNCHANGED = "unchanged"
    # Answers and calls of the model that implements.
    EMPTY_ANSWER = "empty_answer"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    RATE_LIMITED = "rate_limited"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    BAD_REQUEST = "bad_request"
    MODEL_ERROR = "model_error"
    MISSING_PACKAGE = "missing_package"
    MISSING_KEY = "missing_key"
    REPLAY_MISS = "replay_miss"
    TOO_LATE = "too_late"
    # No model was asked, or nothing was measured.
    SPEND_CAP = "spend_cap"
    GPU_HOURS_CAP = "gpu_hours_cap"
    NEAR_DUPLICATE = "near_duplicate"
    NO_SAMPLES = "no_samples"
    NO_REVISIONS = "no_revisions"
    # Measurements that ended before scoring.
    CRASHED = "crashed"
    WALL_BUDGET_EXCEEDED = "wall_budget_exceeded"
    WARM_UP_EXCEEDED = "warm_up_exceeded"
    CPU_BUDGET_EXCEEDED = "cpu_budget_exceeded"
    COMPUTE_EXCEEDED = "compute_exceeded"
    ARTIFACT_EXCEEDED = "artifact_exceeded"
    MEMORY_EXCEEDED = "memory_exceeded"
    DISK_EXCEEDED = "disk_exceeded"
    PROCESSES_EXCEEDED = "processes_exceeded"
    NO_ARTIFACT = "no_artifact"
    UNSAFE_ARTIFACT = "unsafe_artifact"
    CANCELLED = "cancelled"
    IMPLAUSIBLE = "implausible"
    CODEBASE_TOO_LARGE = "codebase_too_large"
    NOT_CONFIRMED = "not_confirmed"
    QUARANTINED = "quarantined"
    INFRASTRUCTURE = "infrastructure"
    # Rejected by an evaluator.
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
    # Attempts that are tried again.
    LOST = "lost"
    WORKER_RESTARTED = "worker_restarted"
    DEADLINE = "deadline"
    UNCLAIMED = "unclaimed"
    IGNORED = "ignored"
    WORKER_REMOVED = "worker_removed"
    WORKER_STOPPED = "worker_stopped"
    EVALUATION_INTERRUPTED = "evaluation_interrupted"
    NOT_ISOLATED = "not_isolated"
    SANDBOX_FAILED = "sandbox_failed"
    HOST_BUSY = "host_busy"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    HOST_FAILED = "host_failed"
    WORKER_ERROR = "worker_error"
    PROBE_FAILED = "probe_failed"
    PROBE_CHANGED = "probe_changed"
    NO_REFERENCE = "no_reference"
    GPU_UNAVAILABLE = "gpu_unavailable"
    GPU_TROUBLE = "gpu_trouble"
    WRONG_HARDWARE = "wrong_hardware"
    CORRUPT_TRANSFER = "corrupt_transfer"
    PREPARE_FAILED = "prepare_failed"
    API_REFUSED = "api_refused"
    REPORT_REFUSED = "report_refused"
    UNAVAILABLE = "unavailable"
    OBJECT_STORE_DENIED = "object_store_denied"
    UNKNOWN_FAILURE = "unknown_failure"


#: A code that is not in `FailureCode`: declared by an environment, or stored by another version
#: of Assay. `read_code` makes one.
OtherCode = NewType("OtherCode", str)
Code = FailureCode | OtherCode


@dataclass(frozen=True, kw_only=True)
class FailureRules:
    """What follows from a failure.

    Attributes:
        stages: where it can happen.
        blame: who has to change something.
        meaning: what happened and what to do, as docs/errors.md says it (Markdown).
        retried: an attempt that ends so has its measurement queued again.
        counts_as_try: of the few tries that a measurement has, it uses one.
        counts_against_worker: a worker with several of these is cordoned, and the measurement
            goes to another one.
        worker_is_gone: the worker was lost with the attempt. A measurement that takes several
            workers with it is quarantined.
        shared: as the failure of a measurement it stands for every identical codebase, and is not
            measured again until somebody asks for that.
        retryable: what the API says: without any change, asking again may end differently.
        shown_to_ideators: a search tells its ideators of it. What says nothing about the idea
            would teach them to avoid it.
    """

    stages: tuple[FailureStage, ...]
    blame: Blame
    meaning: str
    retried: bool = False
    counts_as_try: bool = False
    counts_against_worker: bool = False
    worker_is_gone: bool = False
    shared: bool = False
    retryable: bool = False
    shown_to_ideators: bool = False

    @property
    def waits(self) -> bool:
        """Whether the next try has to wait. Start failures tend to repeat; a lost attempt has
        cost a lease of waiting already."""
        return self.counts_as_try and not self.worker_is_gone


_IMPLEMENT, _SCHEDULE, _START = FailureStage.IMPLEMENT, FailureStage.SCHEDULE, FailureStage.START
_TRAIN, _SCORE, _GUARD = FailureStage.TRAIN, FailureStage.SCORE, FailureStage.GUARD


def _edit(meaning: str) -> FailureRules:
    """The answer of the model that implements is no good."""
    return FailureRules(
        stages=(_IMPLEMENT,), blame=Blame.IDEA, meaning=meaning, shown_to_ideators=True
    )


def _unasked(
    meaning: str,
    blame: Blame = Blame.SETTINGS,
    *,
    stages: tuple[FailureStage, ...] = (_IMPLEMENT,),
    retryable: bool = False,
) -> FailureRules:
    """There is no answer to judge, for a reason that is not the idea's."""
    return FailureRules(stages=stages, blame=blame, meaning=meaning, retryable=retryable)


def _code(meaning: str, *stages: FailureStage) -> FailureRules:
    """The code of the idea failed: measured again it would fail again."""
    return FailureRules(
        stages=stages, blame=Blame.IDEA, meaning=meaning, shared=True, shown_to_ideators=True
    )


def _given_up(
    meaning: str, *stages: FailureStage, blame: Blame, shown_to_ideators: bool = False
) -> FailureRules:
    """The measurement failed after several tries, and another request measures it anew."""
    return FailureRules(
        stages=stages,
        blame=blame,
        meaning=meaning,
        retryable=True,
        shown_to_ideators=shown_to_ideators,
    )


def _again(
    meaning: str,
    *stages: FailureStage,
    blame: Blame = Blame.HOST,
    counts_as_try: bool = True,
    counts_against_worker: bool = True,
    worker_is_gone: bool = False,
) -> FailureRules:
    """The attempt is tried again."""
    return FailureRules(
        stages=stages or (_START,),
        blame=blame,
        meaning=meaning,
        retried=True,
        counts_as_try=counts_as_try,
        counts_against_worker=counts_against_worker,
        worker_is_gone=worker_is_gone,
        retryable=True,
    )


#: In the order of docs/errors.md.
RULES: Final[Mapping[FailureCode, FailureRules]] = {
    FailureCode.NO_DIFF: _edit(
        "The answer holds no edit. With `offline:literal`: the idea spells none out."
    ),
    FailureCode.MALFORMED: _edit(
        "Starts like a diff and cannot be read to its end, a block names no file, a header is torn"
        " or has no hunk, or a changed line belongs to no hunk; or holds a NUL or half a surrogate"
        " pair."
    ),
    FailureCode.TOO_LARGE: _edit(
        "The answer has more text, files or hunks than the limits allow, or would take too much"
        " work to place. Send only what changes."
    ),
    FailureCode.BAD_PATH: _edit(
        "A path is absolute, climbs out, enters `.git`, holds odd characters, or cannot stand"
        " beside an existing file; or a header names two files."
    ),
    FailureCode.PROTECTED: _edit(
        "The edit touches a protected file, or adds one that Python would import instead of it."
    ),
    FailureCode.SYMLINK: _edit("The path is or passes a symbolic link."),
    FailureCode.UNKNOWN_FILE: _edit("The edit changes a file that does not exist."),
    FailureCode.FILE_EXISTS: _edit(
        "The edit creates a file, or renames one to a name, that exists."
    ),
    FailureCode.UNSUPPORTED: _edit("Binary files, symbolic links, submodules and copies."),
    FailureCode.NO_MATCH: _edit(
        "The lines to change are nowhere in the file. They must be whole lines of it. The message"
        " shows the nearest ones."
    ),
    FailureCode.AMBIGUOUS: _edit(
        "The lines to change stand in several places, the name fits several files, new lines have"
        " no place or no certain indentation, or the answer could be applied to its own result"
        " once more and would add to it: more context, or the whole path, is needed. In the"
        " command line: an id matches several things."
    ),
    FailureCode.ALREADY_APPLIED: _edit(
        "What the edit would make stands there already, even if its old lines do too; an edit is"
        " not made twice. Leave it out."
    ),
    FailureCode.CONFLICT: _edit(
        "Two hunks change the same lines differently; or a file is created twice in different"
        " words, meets two fates (edited and deleted), or is renamed and changed under its old"
        " name."
    ),
    FailureCode.NO_CHANGE: _edit("The edits leave every file as it was."),
    FailureCode.PLACEHOLDER: _edit(
        'Added lines say that code stays as it is ("rest unchanged", or a bare `...` where Python'
        " has no use for one) where the code itself must stand."
    ),
    FailureCode.SYNTAX_ERROR: _edit("A changed Python file does not parse, and did before."),
    FailureCode.DOES_NOT_COMPILE: _edit("A changed Python file does not compile."),
    FailureCode.TOO_COSTLY: _edit(
        "Applying and compiling the edit took more than 10 seconds of processor time or 1 GiB of"
        " memory. Send a smaller and plainer one: no generated tables, no deeply nested blocks or"
        " expressions."
    ),
    FailureCode.SMOKE_FAILED: _edit(
        "The code was started for some seconds on a worker and crashed; the message is the"
        " traceback, with the lines it names."
    ),
    FailureCode.EMPTY_ANSWER: _edit("The answer holds no text."),
    FailureCode.REFUSED: _edit("The model declined."),
    FailureCode.TRUNCATED: _edit(
        "The answer was cut off: by the token limit, or its last hunk ends early (behind a change,"
        " with fewer lines than it claims; in a fence that is not closed; in half a line). Nothing"
        " of it is applied. Send it whole; make it shorter if there is no room."
    ),
    FailureCode.RATE_LIMITED: _unasked(
        "The provider kept asking to slow down. Submit again later.",
        Blame.SERVICE,
        retryable=True,
    ),
    FailureCode.PROVIDER_UNAVAILABLE: _unasked(
        "The provider could not be reached, was overloaded, timed out or answered something"
        " unreadable.",
        Blame.SERVICE,
        retryable=True,
    ),
    FailureCode.BAD_REQUEST: _unasked(
        "The provider refused the request: wrong key, unknown model, prompt too long."
    ),
    FailureCode.MODEL_ERROR: _unasked(
        "The model's call failed otherwise.", Blame.UNCLEAR, retryable=True
    ),
    FailureCode.MISSING_PACKAGE: _unasked("The provider's SDK is missing."),
    FailureCode.MISSING_KEY: _unasked("There is no key for the provider."),
    FailureCode.REPLAY_MISS: _unasked(
        "`--replay`: the recording holds no answer to this call; the message says which call, and"
        " what has changed."
    ),
    FailureCode.TOO_LATE: _unasked(
        "`--replay`: another sample had won before this one was answered, and wins again.",
        Blame.NOBODY,
    ),
    FailureCode.SPEND_CAP: _unasked(
        "A cap on dollars (of the batch, its search, its owner, or the owner's day) is reached;"
        " the message says which, and what was used. Submit the rest again under a higher cap."
    ),
    FailureCode.GPU_HOURS_CAP: _unasked(
        "The same of a cap on GPU-hours: it is reached, so that no model is asked, or (stage"
        " `schedule`) the measurement would pass it. As an answer of the API (409): the retry of a"
        " measurement would pass the owner's cap.",
        stages=(_IMPLEMENT, _SCHEDULE),
    ),
    FailureCode.NEAR_DUPLICATE: _unasked(
        "`options.novelty` is `skip`, and an earlier idea has nearly the same words. The"
        " experiment is cancelled, not failed.",
        Blame.NOBODY,
    ),
    FailureCode.UNCHANGED: _edit(
        "The edit changes comments, docstrings or formatting alone, so the code is the original's."
        " Or a repair gave the codebase that crashed; then it stands in the message of the crash."
    ),
    FailureCode.NO_SAMPLES: _unasked("No sample was asked for."),
    FailureCode.NO_REVISIONS: _unasked("No call was made for a sample."),
    FailureCode.CRASHED: _code(
        "The code ended with an error; the message is the traceback's last line, the log has the"
        " rest. Without a traceback it says how the program ended; bubblewrap reports a signal *n*"
        " and an exit status of 128 + *n* in the same way, so there the message names both. A"
        " death by HUP, INT, TERM or KILL that nobody explains is tried [once"
        " more](execution.md#who-is-to-blame).",
        _TRAIN,
    ),
    FailureCode.WALL_BUDGET_EXCEEDED: _code(
        "Training reached `budget.seconds`. Make it do less; `$ASSAY_SECONDS` holds the limit. On"
        " CPUs, time without a processor [does not count](execution.md#who-is-to-blame).",
        _TRAIN,
    ),
    FailureCode.WARM_UP_EXCEEDED: _code(
        "Training did not ask for its data within `budget.warm_up_seconds`. Compile less before"
        " [the file `$ASSAY_ASK` is made](environments.md#warm-up), or make it in any case.",
        _TRAIN,
    ),
    FailureCode.CPU_BUDGET_EXCEEDED: _code(
        "Training reached `budget.cpu_seconds`, a safety for what hangs; `compute_exceeded` is the"
        " cap on how much is trained.",
        _TRAIN,
    ),
    FailureCode.COMPUTE_EXCEEDED: _code(
        "Training, or the predictor, used more CPU time than `budget.compute` or"
        " `budget.evaluation_compute` allow beside what the baseline uses [on the same"
        " host](evaluation.md#compute). Make a step cheaper, or take fewer; train in the"
        " training.",
        _TRAIN,
        _SCORE,
    ),
    FailureCode.ARTIFACT_EXCEEDED: _code(
        "`$ASSAY_OUT` holds more bytes than `budget.artifact` allows beside the baseline's. Save"
        " the weights alone.",
        _TRAIN,
    ),
    FailureCode.MEMORY_EXCEEDED: _code(
        "The process tree used more than the profile's `memory_gb`.", _TRAIN
    ),
    FailureCode.DISK_EXCEEDED: _code(
        "It wrote more than the profile's `disk_gb`, or more files than the worker allows. An"
        " output folder of up to 1 GiB is held in memory under a root worker, so this is also the"
        " code when memory ran out and files hold more than half of it. Keep fewer checkpoints.",
        _TRAIN,
    ),
    FailureCode.PROCESSES_EXCEEDED: _code(
        "It was refused another process or thread and failed. Use fewer loader workers; whoever "
        "wrote the environment can give the profile more `processes`.",
        _TRAIN,
    ),
    FailureCode.NO_ARTIFACT: _code(
        "Training ended well and left nothing in `$ASSAY_OUT` but its curve.", _TRAIN
    ),
    FailureCode.UNSAFE_ARTIFACT: _code(
        "`$ASSAY_OUT` holds links, devices, odd names, or more files or bytes than allowed.",
        _TRAIN,
    ),
    FailureCode.CANCELLED: FailureRules(
        stages=(_START, _TRAIN),
        blame=Blame.NOBODY,
        meaning="Somebody cancelled it.",
        retryable=True,
    ),
    FailureCode.IMPLAUSIBLE: _code(
        "The result, or what confirms it, is better than the"
        " [`bound`](environments.md#environmenttoml). Look for a leak before believing it.",
        _GUARD,
    ),
    FailureCode.CODEBASE_TOO_LARGE: _code(
        "The codebase is 256 KiB larger than its baseline, or has more than 1,000 files. Code may"
        " not carry data or weights.",
        _GUARD,
    ),
    FailureCode.NOT_CONFIRMED: _code(
        "Much better than the baseline, and with fresh secret positions it scored otherwise."
        " Neither score counts; look at how it predicts.",
        _GUARD,
    ),
    FailureCode.QUARANTINED: _given_up(
        "Two workers were lost while they ran it, so it is not given to a third. Look at its logs"
        " before it is asked for again.",
        _START,
        blame=Blame.UNCLEAR,
        shown_to_ideators=True,
    ),
    FailureCode.INFRASTRUCTURE: _given_up(
        "The measurement was given up after four attempts failed for reasons of the host; its"
        " attempts say which. At stage `implement`: faults of the service itself (a full disk, an"
        " unreachable store), five times.",
        _START,
        _IMPLEMENT,
        blame=Blame.SERVICE,
    ),
    FailureCode.NOT_FINITE: _code("NaN, an infinity, or a number beyond ±1e100.", _SCORE),
    FailureCode.WRONG_SHAPE: _code("An answer has another shape than asked for.", _SCORE),
    FailureCode.WRONG_TYPE: _code(
        "An answer has another type than asked for, or a file is not what it should be.", _SCORE
    ),
    FailureCode.MALFORMED_FRAME: _code(
        "The predictor did not keep to the protocol: an answer is not a frame, or its first frame"
        " is not [`ready`](environments.md#codebasepredictpy).",
        _SCORE,
    ),
    FailureCode.TIMEOUT: _code(
        "An answer, or the evaluation, took too long. In the command line: waiting took too long,"
        " and the work goes on.",
        _SCORE,
    ),
    FailureCode.PREDICTOR_DIED: _code(
        "The predictor ended, closed its output, or used up its memory or time. Load the artifact"
        " at the end of training as `predict.py` does, to see an error in the log; operators find"
        " the predictor's own in the worker's log.",
        _SCORE,
    ),
    FailureCode.EARLY_ANSWER: _code("Bytes came before the question was written.", _SCORE),
    FailureCode.MISSING_ARTIFACT: _code(
        "Training did not leave a file that the evaluator needs.", _SCORE
    ),
    FailureCode.OVERSIZED: _code(
        "A file, a header or a completion is larger than allowed.", _SCORE
    ),
    FailureCode.LEAK: _code(
        "A language model's predictions depend on later tokens: with the prefix alone they are"
        " others ([the rules](evaluation.md#language-models)).",
        _SCORE,
    ),
    FailureCode.INCONSISTENT: _code(
        "The predictor answers the same question otherwise in another instance, or by steps: it"
        " remembers other questions, depends on its batch, or its cached path computes something"
        " else.",
        _SCORE,
    ),
    FailureCode.FOOLED: _code(
        "Too many answers are judged right against references of other questions: they forge their"
        " marks, or the grader accepts anything.",
        _SCORE,
    ),
    FailureCode.EVALUATOR_ERROR: FailureRules(
        stages=(_SCORE,),
        blame=Blame.UNCLEAR,
        meaning="The evaluator raised an exception, or was killed. The worker's log says which.",
        shared=True,
        shown_to_ideators=True,
    ),
    FailureCode.LOST: _again(
        "The lease ran out, or the worker no longer runs the attempt.",
        blame=Blame.UNCLEAR,
        worker_is_gone=True,
    ),
    FailureCode.WORKER_RESTARTED: _again(
        "The worker was restarted, and did not keep the attempt.",
        blame=Blame.UNCLEAR,
        worker_is_gone=True,
        counts_against_worker=False,
    ),
    FailureCode.DEADLINE: _again(
        "The worker was heard of and yet did not end the attempt within its bound.",
        blame=Blame.UNCLEAR,
        worker_is_gone=True,
    ),
    FailureCode.UNCLAIMED: _again(
        "The worker did not take the attempt in time, so it ran nowhere.",
        blame=Blame.NOBODY,
        counts_as_try=False,
        counts_against_worker=False,
    ),
    FailureCode.IGNORED: _again(
        "The same of a worker that was heard of meanwhile.",
        counts_as_try=False,
    ),
    FailureCode.WORKER_REMOVED: _again(
        "The operator removed the worker.",
        blame=Blame.NOBODY,
        counts_as_try=False,
        counts_against_worker=False,
    ),
    FailureCode.WORKER_STOPPED: _again(
        "The worker was told to stop, or to drain. Also the end of a program that a signal ended"
        " then, or within 5 s before: engines such as Slurm signal every process of a job.",
        blame=Blame.NOBODY,
        counts_as_try=False,
        counts_against_worker=False,
    ),
    FailureCode.EVALUATION_INTERRUPTED: _again(
        "The evaluation was ended from outside, or its sandbox did not start.", _START, _SCORE
    ),
    FailureCode.NOT_ISOLATED: _again(
        "The worker's sandbox does not isolate untrusted code, or failed its own probe; another"
        " worker gets it."
    ),
    FailureCode.SANDBOX_FAILED: _again("The sandbox could not start or end the code."),
    FailureCode.HOST_BUSY: _again(
        "The program was kept waiting for a processor that others used, so its time says nothing"
        " about the code. Give the worker fewer slots, or the host less other work.",
        _START,
        _TRAIN,
        _SCORE,
        counts_against_worker=False,
    ),
    FailureCode.HOST_OUT_OF_MEMORY: _again(
        "The kernel killed the program for memory although it was below its own limit: the host"
        " has too little. Give the worker less memory to offer.",
        _START,
        _TRAIN,
        _SCORE,
    ),
    FailureCode.HOST_FAILED: _again("An error of the operating system, such as a full disk."),
    FailureCode.WORKER_ERROR: _again("A bug in the worker; its log has the traceback."),
    FailureCode.PROBE_FAILED: _again(
        "The fixed work that tells how fast the host is could not be done in the sandbox. Its"
        " interpreter needs numpy."
    ),
    FailureCode.PROBE_CHANGED: _again(
        "The worker was upgraded while this attempt ran, and measures the host's speed in another"
        " way now. The attempt is made again."
    ),
    FailureCode.NO_REFERENCE: _again(
        "The profile's caps are multiples of the baseline's use, and the baseline, which the"
        " worker ran to find it out, failed on this host; the message says how.",
        blame=Blame.UNCLEAR,
    ),
    FailureCode.GPU_UNAVAILABLE: _again(
        "Fewer GPUs are free and healthy than the scheduler was told; `assay worker show` says "
        "which are left out, and why."
    ),
    FailureCode.GPU_TROUBLE: _again(
        "A GPU was in trouble when a program on it failed (`assay worker show` says which), the "
        "NVIDIA driver does not answer as it should, or `nvidia-ml-py` is missing: `pip install "
        "'assay[gpu]'`."
    ),
    FailureCode.WRONG_HARDWARE: _again("The worker is not of the hardware class asked for."),
    FailureCode.CORRUPT_TRANSFER: _again("What was fetched does not have its hash."),
    FailureCode.PREPARE_FAILED: _again(
        "`prepare.py` failed, or left data that it must not; the message holds its last lines."
        " `assay env check` shows it too.",
        blame=Blame.ENVIRONMENT,
    ),
    FailureCode.API_REFUSED: _again(
        "The API refused a request of the worker.", blame=Blame.SERVICE
    ),
    FailureCode.REPORT_REFUSED: _again(
        "The API refused the end of the attempt, also without its artifact.",
        blame=Blame.SERVICE,
    ),
    FailureCode.UNAVAILABLE: _again(
        "The worker could not reach the API or the object store for too long, or could not use a"
        " folder of its own.",
        blame=Blame.UNCLEAR,
    ),
    FailureCode.OBJECT_STORE_DENIED: _again(
        "The presigned URL was refused several times; compare the clocks, and"
        " `ASSAY_SERVER_S3_PUBLIC_ENDPOINT_URL` with what the worker reaches.",
        blame=Blame.SERVICE,
    ),
    FailureCode.UNKNOWN_FAILURE: _again(
        "The worker reported a code that this service does not know, or at a stage where it cannot"
        " happen; the message starts with it. Bring worker and service to the same version.",
        blame=Blame.UNCLEAR,
    ),
}

#: Of a code that the environment declares. It is the evaluator's judgement of what was trained.
_DECLARED = _code("The environment declares it.", _SCORE)
#: Of a code that another version of Assay stored: nothing is concluded from it.
_OTHER = FailureRules(
    stages=tuple(FailureStage),
    blame=Blame.UNCLEAR,
    meaning="Another version of Assay stored it.",
    retryable=True,
)
#: An environment may declare so many codes of its own: with them the codes of scoring still fit
#: into `assay.domain.rounding.OUTCOME_BITS`.
MOST_DECLARED = 8
_VALUES = frozenset(code.value for code in FailureCode)
_PATTERN = re.compile(r"[a-z]+(_[a-z]+)*")
_MOST_CHARACTERS = 64


def codes_at(stage: FailureStage) -> frozenset[FailureCode]:
    """Return the registered codes that can happen at a stage."""
    return frozenset(code for code, rules in RULES.items() if stage in rules.stages)


#: What an evaluator may reject with, beside the codes that its environment declares.
REJECTIONS = frozenset(code for code in codes_at(_SCORE) if not RULES[code].retried)


def read_code(text: str) -> Code:
    """Return the registered code of that name, or the name as it is. Never fails."""
    return FailureCode(text) if text in _VALUES else OtherCode(text)


def rules_for(code: str, stage: FailureStage | str) -> FailureRules:
    """Return what follows from a failure, also from one that is not registered.

    At stage `score` that is a code of the environment; elsewhere another version stored it.
    """
    found = read_code(code)
    if isinstance(found, FailureCode):
        return RULES[found]
    return _DECLARED if stage == _SCORE.value else _OTHER


def rules_of_stored(failure: Mapping[str, Any]) -> FailureRules:
    """Return what follows from a failure as `Failure.as_dict` made it."""
    return rules_for(failure["code"], failure["stage"])


def why_not_declarable(code: str) -> str | None:
    """Say why an environment may not declare a code of its own by that name; None if it may."""
    if not _PATTERN.fullmatch(code) or len(code) > _MOST_CHARACTERS:
        return f"{code[:80]!r} must be lower-case words joined by `_`, at most 64 characters"
    if code in _VALUES:
        return f"{code!r} is a code of Assay itself; choose another name"
    return None


@dataclass(frozen=True)
class Failure:
    """Why something failed."""

    stage: FailureStage
    code: Code
    message: str

    @property
    def rules(self) -> FailureRules:
        return rules_for(self.code, self.stage)

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is stored and as the API shows it."""
        return {
            "stage": self.stage.value,
            "code": str(self.code),
            "message": self.message,
            "retryable": self.rules.retryable,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Failure:
        """Return the inverse of `as_dict`; the code may be one of another version."""
        return cls(FailureStage(stored["stage"]), read_code(stored["code"]), stored["message"])


def reported_failure(
    stage: FailureStage, code: str, message: str, declared: Collection[str] = ()
) -> Failure:
    """Return what a worker reported, as `unknown_failure` if its code cannot be.

    A refusal would only make the worker report again, and lose what it said. `declared` are the
    codes of the environment.
    """
    found = read_code(code)
    if isinstance(found, FailureCode):
        is_known = stage in RULES[found].stages
    else:
        is_known = stage is _SCORE and code in declared
    if is_known:
        return Failure(stage, found, message)
    said = f"{code} at stage {stage.value}, which this service does not know: {message}"
    return Failure(_START, FailureCode.UNKNOWN_FAILURE, said)
