"""Score what a training left behind, outside the sandbox it was made in."""

from __future__ import annotations

import hashlib
import math
import runpy
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from assay.evaluation import artifact as artifacts
from assay.evaluation.codes import InvalidAnswer, InvalidCode
from assay.sandbox import Limits, SandboxError, SandboxSettings

if TYPE_CHECKING:  # numpy is imported only by the evaluations that need it
    import numpy as np

    from assay.evaluation.frames import Array
    from assay.evaluation.language_model import LanguageModelScore
    from assay.evaluation.predictor import Predictor


@dataclass(frozen=True)
class EvaluationRequest:
    """All an evaluation needs; can be pickled.

    `environment_dir` is the unpacked bundle, `codebase_dir` a copy of the codebase that training
    could not write to, `artifact_dir` what training left (hostile), `held_out` the prepared split
    that scores. `predict` is None where the environment has no such entry point. `seconds` bound
    the whole evaluation and `answer_seconds` each answer of a predictor (None: only the whole).
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
    answer_seconds: float | None = None


@dataclass(frozen=True)
class EvaluationFailure:
    """Why there is no result.

    `infrastructure`: the host is to blame, not the codebase; another attempt may succeed.
    """

    code: InvalidCode
    message: str
    infrastructure: bool = False


@dataclass(frozen=True)
class EvaluationOutcome:
    """Either metrics or a failure. `cpu_seconds` count the evaluator and its predictors."""

    metrics: dict[str, float] | None
    failure: EvaluationFailure | None
    seconds: float
    cpu_seconds: float


@dataclass
class Evaluation:
    """What an environment's `evaluate(run)` is given."""

    request: EvaluationRequest
    deadline: float
    predictor_cpu_seconds: list[float] = field(default_factory=list)

    @property
    def artifact(self) -> Path:
        """The folder that training left. Its content is hostile: prefer `read_json`."""
        return self.request.artifact_dir

    @property
    def held_out(self) -> Path:
        """The prepared split to score on."""
        return self.request.held_out

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
        return artifacts.read_json(self.artifact, name, max_bytes)

    def read_bytes(self, name: str, max_bytes: int) -> bytes:
        """A file of the artifact; see `assay.evaluation.artifact.read_bytes`."""
        return artifacts.read_bytes(self.artifact, name, max_bytes)

    def reject(self, code: str, message: str) -> NoReturn:
        """End the evaluation: what training left does not count.

        Raises:
            InvalidAnswer: always.
            ValueError: `code` is not one of `InvalidCode`.
        """
        raise InvalidAnswer(InvalidCode(code), message)

    def predictor(self) -> AbstractContextManager[Predictor]:
        """A fresh instance of the predict entry point in a sandbox of its own.

        Raises:
            ValueError: the environment has no such entry point.
        """
        from assay.evaluation.launch import PredictorSettings, open_predictor

        request = self.request
        if request.predict is None:
            raise ValueError("the environment has no predict entry point")
        threads = str(request.threads)
        settings = PredictorSettings(
            argv=request.predict,
            codebase_dir=request.codebase_dir,
            artifact_dir=request.artifact_dir,
            config=request.config,
            env={
                "ASSAY_SEED": str(request.seed),
                "ASSAY_PROFILE": request.profile,
                "ASSAY_HARDWARE_CLASS": request.hardware_class,
                "ASSAY_THREADS": threads,
                "ASSAY_SECONDS": f"{request.seconds:g}",
                "OMP_NUM_THREADS": threads,
                "MKL_NUM_THREADS": threads,
                "OPENBLAS_NUM_THREADS": threads,
            },
            sandbox=request.sandbox,
            limits=request.limits,
            deadline=self.deadline,
            answer_seconds=request.answer_seconds or request.seconds,
        )
        return open_predictor(settings, self.predictor_cpu_seconds)

    def score_language_model(self, windows: Array, vocab_size: int) -> LanguageModelScore:
        """The loss of the predictor on `windows` (n, T + 1); see `language_model`."""
        from assay.evaluation.language_model import score_language_model

        return score_language_model(self.predictor, windows, vocab_size, self.secret_rng())

    def secret_rng(self) -> np.random.Generator:
        """Random numbers that are the same for the same seed and held-out split, and that nobody
        can know who does not know that split; the codebase does know the seed."""
        import numpy as np

        digest = hashlib.sha256(f"{self.seed}\n".encode())
        for path in sorted(p for p in self.held_out.rglob("*") if p.is_file()):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return np.random.default_rng(int.from_bytes(digest.digest()))


def evaluate_artifact(request: EvaluationRequest) -> EvaluationOutcome:
    """Run the environment's evaluator in this process; never raises for what goes wrong in it.

    `evaluate_in_child` is the same in a process of its own, with an enforced deadline.
    """
    started, cpu_started = time.monotonic(), time.process_time()
    run = Evaluation(request, started + request.seconds)
    metrics, failure = None, None
    try:
        metrics = _checked_metrics(_load(request.environment_dir)(run), request.metric_name)
    except InvalidAnswer as invalid:
        failure = EvaluationFailure(invalid.code, invalid.message)
    except SandboxError as error:
        failure = EvaluationFailure(InvalidCode.EVALUATOR_ERROR, _describe(error), True)
    except (Exception, SystemExit) as error:
        failure = EvaluationFailure(InvalidCode.EVALUATOR_ERROR, _describe(error))
    return EvaluationOutcome(
        metrics=metrics,
        failure=failure,
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - cpu_started + sum(run.predictor_cpu_seconds),
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
        if not math.isfinite(checked[key]):
            raise InvalidAnswer(InvalidCode.NOT_FINITE, f"{key} is {checked[key]}")
    return checked


def _describe(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"[:2000]
