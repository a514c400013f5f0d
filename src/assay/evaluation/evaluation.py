"""Score what a training left behind, outside the sandbox it was made in."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import runpy
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from assay.domain.failure_codes import Code, FailureCode
from assay.evaluation import artifact as artifacts
from assay.evaluation.checkpoints import FOLDER, Checkpoint
from assay.evaluation.clock import Clock
from assay.evaluation.codes import InvalidAnswer, Rejection, find_rejection
from assay.evaluation.threads import thread_variables
from assay.evaluation.usage import CpuSeconds
from assay.sandbox import Limits, SandboxError, SandboxSettings
from assay.sandbox.starvation import UNCLEAR_SHARE

#: The service refuses a larger metric: sums and squares of it would not be finite.
_LARGEST = 1e100

if TYPE_CHECKING:  # numpy is imported only by the evaluations that need it
    import numpy as np

    from assay.evaluation.frames import Array
    from assay.evaluation.grading import Grades
    from assay.evaluation.language_model import LanguageModelScore, Mode
    from assay.evaluation.predictor import Predictor


@dataclass(frozen=True)
class EvaluationRequest:
    """All an evaluation needs; can be pickled.

    `environment_dir` is the unpacked bundle, `codebase_dir` a copy of the codebase that training
    could not write to, `artifact_dir` what training left (hostile), `held_out` the prepared split
    that scores, `sealed` one that a confirmation scores beside it (None: there is none to score).
    `checkpoints` are those the worker saw. `seed` is for what must stay secret; predictors are
    told `shown_seed`, so that they cannot tell one evaluation of their artifact from another.
    `predict` is None where the environment has no such entry point. Predictors get the GPUs with
    the UUIDs `gpus`, graders none.
    `secret` is mixed into all random numbers that must not be known: held-out text may be public.
    `seconds` bound the whole evaluation and `answer_seconds` each answer of a predictor (None: a
    quarter of the whole, the first one half). Of the time for which the host keeps the evaluation
    waiting for a processor, `starved_seconds` do not count.
    """

    environment_dir: Path
    config: Mapping[str, Any]
    predict: tuple[str, ...] | None
    codebase_dir: Path
    artifact_dir: Path
    held_out: Path
    seed: int
    metric_name: str
    sandbox: SandboxSettings
    limits: Limits
    seconds: float
    profile: str
    hardware_class: str
    threads: int = 1
    gpus: tuple[str, ...] = ()
    sealed: Path | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    secret: str = field(default="", repr=False)
    answer_seconds: float | None = None
    starved_seconds: float = 0.0
    shown_seed: int = 0
    declared_failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationFailure:
    """Why there is no result.

    `message` comes from a fixed set of sentences and may be told to everyone. `detail` may hold
    numbers and text that a predictor chose after it had seen held-out data, so it belongs in the
    worker's log and nowhere else.
    `unclear`: the host may be to blame.
    """

    code: Code
    message: str
    detail: str = ""
    unclear: bool = False

    @classmethod
    def of(cls, rejection: Rejection, detail: str = "") -> EvaluationFailure:
        """Return the failure with the code and the sentence of `rejection`."""
        return cls(rejection.code, rejection.sentence, detail)


@dataclass(frozen=True)
class EvaluationOutcome:
    """Either metrics or a failure. `cpu_seconds` count the evaluator and its predictors,
    `code_cpu_seconds` what predictors used of it after they were ready: the codebase's own part.

    `keep` names the checkpoints that are worth storing.
    """

    metrics: dict[str, float] | None
    failure: EvaluationFailure | None
    seconds: float
    cpu_seconds: float
    code_cpu_seconds: float = 0.0
    keep: tuple[str, ...] = ()


@dataclass
class Evaluation:
    """What an environment's `evaluate(run)` is given."""

    request: EvaluationRequest
    clock: Clock
    deadline: float
    cpu: CpuSeconds = field(default_factory=CpuSeconds)
    kept: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls, request: EvaluationRequest) -> Evaluation:
        """One whose time runs from now."""
        clock = Clock(request.starved_seconds)
        return cls(request, clock, clock.now() + request.seconds)

    @property
    def predictor_cpu_seconds(self) -> list[float]:
        """CPU seconds of every predictor and grader that ended."""
        return self.cpu.total

    @property
    def artifact(self) -> Path:
        """The folder that training left. Its content is hostile: prefer `read_json`."""
        return self.request.artifact_dir

    @property
    def held_out(self) -> Path:
        """The prepared split to score on."""
        return self.request.held_out

    @property
    def confirms(self) -> bool:
        """Whether the split `sealed/` is to be scored, too: only in a confirmation."""
        return self.request.sealed is not None

    @property
    def sealed(self) -> Path:
        """The prepared split `sealed/`, to confirm on what `held_out` has selected.

        Raises:
            ValueError: this evaluation does not confirm anything.
        """
        if self.request.sealed is None:
            raise ValueError("only a confirmation reads sealed/; ask run.confirms first")
        return self.request.sealed

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The folders `checkpoints/<name>` of the artifact, by name, with the seconds after the
        start of training at which the worker saw each complete. Changed ones are not among them.
        """
        return self.request.checkpoints

    def keep(self, checkpoint: str) -> None:
        """Store this checkpoint with the artifact; the others are thrown away."""
        self._check_checkpoint(checkpoint)
        self.kept.add(checkpoint)

    @property
    def config(self) -> dict[str, Any]:
        """The profile's `config`."""
        return dict(self.request.config)

    @property
    def seed(self) -> int:
        """The seed of the measurement. The codebase knows it: draw no secret from it."""
        return self.request.seed

    def read_json(self, name: str, max_bytes: int = artifacts.MAX_JSON_BYTES) -> Any:
        """A JSON file of the artifact; see `assay.evaluation.artifact.read_json`."""
        with self._naming(name):
            return artifacts.read_json(self.artifact, name, max_bytes)

    def read_bytes(self, name: str, max_bytes: int) -> bytes:
        """A file of the artifact; see `assay.evaluation.artifact.read_bytes`."""
        with self._naming(name):
            return artifacts.read_bytes(self.artifact, name, max_bytes)

    def reject(self, code: str, message: str) -> NoReturn:
        """End the evaluation: what training left does not count.

        `message` is told only if it is a string literal of the evaluator. One that was put
        together could hold what a predictor chose: it is a detail for the worker's log, and the
        sentence of `code` is told.

        Raises:
            InvalidAnswer: always.
            ValueError: `code` is none of Assay's for scoring, and the environment does not declare
                it under `[failures]`.
        """
        rejection = find_rejection(code, self.request.declared_failures)
        sentence = message if message in self._literals else ""
        raise InvalidAnswer(rejection, message, sentence=sentence)

    def predictor(self, checkpoint: str | None = None) -> AbstractContextManager[Predictor]:
        """A fresh instance of the predict entry point in a sandbox of its own.

        Of the artifact it sees all but the curve, or the folder of `checkpoint` and nothing that
        came later.

        Raises:
            ValueError: the environment has no such entry point, or there is no such checkpoint.
        """
        from assay.evaluation.launch import PredictorSettings, open_predictor

        request = self.request
        if request.predict is None:
            raise ValueError("the environment has no predict entry point")
        settings = PredictorSettings(
            argv=request.predict,
            codebase_dir=request.codebase_dir,
            artifact_dir=self._visible(checkpoint),
            config=request.config,
            env={
                "ASSAY_SEED": str(request.shown_seed),
                "ASSAY_PROFILE": request.profile,
                "ASSAY_HARDWARE_CLASS": request.hardware_class,
                "ASSAY_GPUS": str(len(request.gpus)),
                "ASSAY_SECONDS": f"{request.seconds:g}",
                **thread_variables(request.threads, len(request.gpus)),
            },
            sandbox=request.sandbox,
            limits=request.limits,
            gpus=request.gpus,
            clock=self.clock,
            deadline=self.deadline,
            answer_seconds=request.answer_seconds or request.seconds / 4,
            start_seconds=request.seconds / 2,
            hidden=artifacts.CURVE_FILE if checkpoint is None else "",
        )
        return open_predictor(settings, self.cpu)

    def score_language_model(
        self,
        windows: Array,
        vocab_size: int,
        *,
        mode: Mode = "parallel",
        sealed: int | None = None,
        checkpoint: str | None = None,
    ) -> LanguageModelScore:
        """The loss of the predictor on `windows` (n, T + 1); see `language_model`.

        `mode` says what else than `next` the predictor answers: `parallel`, `losses` or `step`.
        `sealed` is the number of positions asked with the prefix alone (None: 1024, by steps 256).
        `checkpoint` is the name of one of `checkpoints` (None: what training left in the end).
        """
        from assay.evaluation.language_model import score_language_model

        rng = self.artifact_rng(f"language model {checkpoint or ''}")
        return score_language_model(
            lambda: self.predictor(checkpoint), windows, vocab_size, rng, mode=mode, sealed=sealed
        )

    def ask_questions(
        self,
        questions: Sequence[str],
        *,
        max_bytes: int = 4096,
        batch: int = 16,
        seconds: float | None = None,
        checkpoint: str | None = None,
        predictor: Predictor | None = None,
    ) -> tuple[str | None, ...]:
        """The predictor's completions of `questions`, None for missing ones; see `questions`.

        `predictor` is a running predictor, which keeps running afterwards. Without it, a fresh one
        is started with `checkpoint`.

        Raises:
            ValueError: both are given: a running predictor has the checkpoint it was started with.
        """
        if predictor is not None and checkpoint is not None:
            raise ValueError("ask_questions takes a predictor or a checkpoint, not both")
        from assay.evaluation.questions import ask_questions

        rng = self.artifact_rng(f"questions {checkpoint or ''}")
        started = contextlib.nullcontext(predictor) if predictor else None
        return ask_questions(
            lambda: started or self.predictor(checkpoint),
            questions,
            rng,
            max_bytes=max_bytes,
            batch=batch,
            seconds=seconds,
        )

    def grade(
        self,
        answers: Sequence[str | None],
        references: Sequence[str],
        *,
        grader: str = "grade.py",
        files: Sequence[str] = (),
        pair_seconds: float = 5.0,
        memory_bytes: int = 1 << 30,
    ) -> Grades:
        """Grade answers in a sandbox with `grade(answer, reference)` of `evaluator/<grader>`.

        See `grading`. `files` are further files of `evaluator/` that the grader imports. A pair
        may take `pair_seconds` and half of `memory_bytes`, which all of the sandbox has.
        """
        from assay.evaluation.grading import grade
        from assay.evaluation.launch import GraderSettings, open_grader

        folder = self.request.environment_dir / "evaluator"
        settings = GraderSettings(
            files=tuple(folder / name for name in (grader, *files)),
            sandbox=self.request.sandbox,
            limits=Limits(wall_seconds=self.request.seconds, memory_bytes=memory_bytes),
            clock=self.clock,
            deadline=self.deadline,
            pair_seconds=pair_seconds,
            pair_bytes=memory_bytes // 2,
        )
        return grade(
            lambda: open_grader(settings, self.cpu),
            answers,
            references,
            self.artifact_rng("grading"),
        )

    @contextlib.contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Say which file of the artifact is rejected, if the evaluator names it in a literal."""
        try:
            yield
        except InvalidAnswer as invalid:
            if name in self._literals:
                invalid.message = f"{name}: {invalid.message}"
            raise

    @cached_property
    def _literals(self) -> frozenset[str]:
        """The strings that stand as they are in the evaluator's files: nobody else chose them."""
        files = (self.request.environment_dir / "evaluator").glob("*.py")
        nodes = (node for path in files for node in ast.walk(ast.parse(path.read_bytes())))
        return frozenset(
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )

    def _visible(self, checkpoint: str | None) -> Path:
        """What a predictor may see of the artifact."""
        if checkpoint is None:
            return self.artifact
        self._check_checkpoint(checkpoint)
        folder = self.artifact / FOLDER / checkpoint
        for path in (folder.parent, folder):  # training has ended: nobody can exchange them now
            if path.is_symlink() or not path.is_dir():
                raise InvalidAnswer(Rejection.NOT_A_FILE, f"{FOLDER}/{checkpoint} is not a folder")
        return folder

    def _check_checkpoint(self, name: str) -> None:
        if all(c.name != name for c in self.checkpoints):
            raise ValueError(f"there is no checkpoint {name[:80]!r}")

    def secret_rng(self) -> np.random.Generator:
        """Random numbers that are the same for the same seed, held-out split and worker's key, and
        that nobody can know who does not know all of these; the codebase does know the seed."""
        return _generator(self._secret())

    def artifact_rng(self, purpose: str) -> np.random.Generator:
        """Return numbers as secret as those of `secret_rng`, which differ between artifacts.

        Another codebase, another artifact or another `purpose` gets other numbers. The artifact
        counts by the names and contents of its files; the worker makes modes and times equal.

        With the same numbers for every idea, each evaluation would tell the next idea something
        about them: which of two halves of the positions is never sampled, say.
        """
        digest = self._secret()
        digest.update(f"\n{purpose}\n".encode())
        digest.update(self._left)
        return _generator(digest)

    @cached_property
    def _left(self) -> bytes:
        """The hash of codebase and artifact, which may be many gigabytes: taken once."""
        digest = hashlib.sha256()
        artifacts.hash_tree(digest, self.request.codebase_dir)
        # The curve holds times, and the same training has to get the same numbers. So a predictor
        # does not see it either: it could not act on anything that these numbers do not cover.
        artifacts.hash_tree(digest, self.request.artifact_dir, artifacts.CURVE_FILE)
        return digest.digest()

    def _secret(self) -> hashlib._Hash:
        digest = hashlib.sha256(f"{self.seed}\n{self.request.secret}".encode())
        held_out = self.request.held_out
        for path in sorted(p for p in held_out.rglob("*") if p.is_file()):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest


def _generator(digest: hashlib._Hash) -> np.random.Generator:
    import numpy as np

    return np.random.default_rng(int.from_bytes(digest.digest()))


def evaluate_artifact(request: EvaluationRequest) -> EvaluationOutcome:
    """Run the environment's evaluator in this process; never raises for what goes wrong in it.

    `evaluate_in_child` is the same in a process of its own, with an enforced deadline.
    """
    started, cpu_started = time.monotonic(), time.process_time()
    run = Evaluation.begin(request)
    metrics, failure = None, None
    try:
        metrics = _checked_metrics(_load(request.environment_dir)(run), request.metric_name)
    except InvalidAnswer as invalid:
        failure = _failure_of(invalid, run)
    except SandboxError as error:
        failure = EvaluationFailure.of(Rejection.INTERRUPTED, _describe(error))
    except (Exception, SystemExit) as error:
        failure = EvaluationFailure.of(Rejection.EVALUATOR_ERROR, _describe(error))
    return EvaluationOutcome(
        metrics=metrics,
        failure=failure,
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - cpu_started + sum(run.cpu.total),
        code_cpu_seconds=sum(run.cpu.answering),
        keep=tuple(sorted(run.kept)),
    )


def _failure_of(invalid: InvalidAnswer, run: Evaluation) -> EvaluationFailure:
    """Why an answer does not count; if it came late, with whom is to blame for that."""
    request, starved = run.request, run.clock.starved()
    is_late = invalid.code is FailureCode.TIMEOUT
    if is_late and request.starved_seconds and starved >= request.starved_seconds:
        detail = f"the host kept it waiting for {starved:.1f} s: {invalid.detail}"
        return EvaluationFailure.of(Rejection.INTERRUPTED, detail)
    return EvaluationFailure(
        invalid.code,
        invalid.message,
        invalid.detail,
        unclear=is_late and starved >= UNCLEAR_SHARE * request.seconds,
    )


def _load(environment_dir: Path) -> Callable[[Evaluation], object]:
    path = environment_dir / "evaluator" / "evaluate.py"
    evaluate: Callable[[Evaluation], object] = runpy.run_path(str(path))["evaluate"]
    return evaluate


def _checked_metrics(metrics: object, name: str) -> dict[str, float]:
    if not isinstance(metrics, dict) or name not in metrics:
        raise TypeError(f"evaluate() must return a dict with the metric {name!r}")
    checked: dict[str, float] = {}
    for key, value in metrics.items():
        if not isinstance(key, str) or not isinstance(value, Real):
            raise TypeError(f"evaluate() returned {key!r}: {type(value).__name__}")
        checked[key] = float(value)
        if not abs(checked[key]) <= _LARGEST:
            raise InvalidAnswer(Rejection.NOT_FINITE, f"{key} is {checked[key]}")
    return checked


def _describe(error: BaseException) -> str:
    """The error and its place, for the worker's log."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"[:2000]
