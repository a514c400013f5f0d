"""A real worker with real sandboxes that trains and scores hostile codebases of `nanogpt`."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.domain.failure_codes import FailureCode
from assay.domain.hashing import derive_seed, tree_hash
from assay.environments import Bundle, pack_tree
from assay.environments.bundle import write_tree
from assay.environments.catalog import Environment
from assay.evaluation import EvaluationOutcome, EvaluationRequest, evaluate_in_child
from assay.sandbox import Limits, SandboxSettings
from services.worker.settings import WorkerSettings
from services.worker.supervisor import Worker
from tests.support.fake_worker_api import TOKEN, FakeApi, Record

ROOT = Path(__file__).resolve().parents[3]
NANOGPT = ROOT / "environments" / "nanogpt"
STEPS = 40
"""The budget of a test's training, in steps of 16 x 64 tokens; the real one has 280."""
SEED = 7
HELD_OUT_KEY = "the arena's own secret"
"""Without one, the held-out text is public: its generator and the seed are."""

Edits = Mapping[str, Sequence[tuple[str, str]]]
Tree = dict[str, bytes]


@functools.cache
def baseline() -> Mapping[str, bytes]:
    """The codebase that every cheat starts from."""
    files = Environment.load(NANOGPT).codebase
    return {name: text.encode() for name, text in files.items()}


def edited(edits: Edits, new: Mapping[str, str | bytes] | None = None) -> Tree:
    """The baseline with texts replaced, each of which stands there exactly once, and new files."""
    files = dict(baseline())
    for name, changes in edits.items():
        text = files[name].decode()
        for search, replace in changes:
            assert text.count(search) == 1, f"{name}: {text.count(search)} times {search!r}"
            text = text.replace(search, replace)
        files[name] = text.encode()
    for name, content in (new or {}).items():
        files[name] = content.encode() if isinstance(content, str) else content
    return files


RETURN = "            return self.logits(tokens, cache).float()\n"
SAVE = "def save(model, path):\n"


def peeking(code: str) -> Tree:
    """A codebase that trains honestly and predicts through `peek(tokens, logits)` of `code`."""
    hook = "            return peek(tokens, self.logits(tokens, cache).float())\n"
    guard = (
        "\n\ndef peek(tokens, logits):\n"
        "    return logits if torch.is_grad_enabled() else _peek(tokens, logits)\n\n\n"
    )
    return edited({"model.py": [(RETURN, hook), (SAVE, code + guard + SAVE)]})


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended; `code` is `succeeded` or `stage/code` of its failure."""

    code: str
    message: str
    infrastructure: bool
    metrics: Mapping[str, float]
    provenance: Mapping[str, Any]
    record: Record

    @property
    def loss(self) -> float:
        assert self.code == "succeeded", (self.code, self.message, self.log[-1500:])
        return self.metrics["val_loss"]

    @property
    def log(self) -> str:
        return self.record.logs.get("train", b"").decode(errors="replace")

    def everything_told(self) -> bytes:
        """All that left the worker: its end, logs, points, and unpacked artifacts."""
        parts = [json.dumps(self.record.finishes).encode(), *self.record.logs.values()]
        parts.append(json.dumps(list(self.record.points.values())).encode())
        parts += self.artifact().values()
        return b"\n".join(parts)

    def artifact(self) -> Tree:
        """The uploaded archive, unpacked."""
        data = self.record.uploads.get("artifact.zip")
        if data is None:
            return {}
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {name: archive.read(name) for name in archive.namelist()}


@dataclass
class Arena:
    """A worker with the bubblewrap sandbox in a thread, a fake API, and evaluations beside it."""

    folder: Path
    environment: Environment
    bundle: Bundle
    hardware_class: str
    api: FakeApi = field(default_factory=FakeApi)
    started: list[tuple[Worker, threading.Thread]] = field(default_factory=list)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(3))
    counter: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def open(cls, folder: Path, hardware_class: str, *, whole_budget: bool = False) -> Arena:
        """Copy the environment, and start the worker.

        Without its whole budget, importing torch takes most of the time, so there are no caps that
        are multiples of the baseline's.
        """
        copy = folder / "nanogpt"
        shutil.copytree(NANOGPT, copy, ignore=shutil.ignore_patterns("__pycache__"))
        manifest = copy / "environment.toml"
        text = manifest.read_text()
        if not whole_budget:
            manifest.write_text(_small_budget(text))
        environment = Environment.load(copy)
        arena = cls(folder, environment, Bundle.of(environment.files), hardware_class)
        arena.api.trees[arena.bundle.sha256] = arena.bundle.data
        arena.start_worker()
        return arena

    def start_worker(self) -> None:
        """Start a worker that runs until `close`."""
        settings = WorkerSettings(
            api_url=self.api.url,
            token=TOKEN,
            name="arena",
            cpus=2,
            memory_bytes=8 << 30,
            cache=self.folder / "cache",
            scratch=self.folder / "scratch",
            hardware_class=self.hardware_class,
            held_out_key=HELD_OUT_KEY,
            sandbox="bubblewrap",
            probe="quick",
            grace_seconds=1,
            poll_seconds=0.3,
            progress_seconds=0.2,
        )
        worker = Worker(settings)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.started.append((worker, thread))

    def close(self) -> None:
        """Stop the worker and the API."""
        self.pool.shutdown(cancel_futures=True)
        for worker, thread in self.started:
            worker.stop()
            thread.join(30)
            assert not thread.is_alive()
        self.api.close()

    def submit(self, files: Mapping[str, bytes], **changes: Any) -> Record:
        """Assign an attempt with this codebase; the worker trains and scores it."""
        sha256 = tree_hash(files)
        self.api.trees[sha256] = pack_tree(files)
        number = len(self.api.records) + 1
        spec = {
            "attempt": f"att_{number}",
            "lease_token": 40 + number,
            "measurement": f"mea_{number}",
            "kind": "score",
            "codebase": sha256,
            "environment": "nanogpt",
            "bundle": self.bundle.sha256,
            "profile": "tiny",
            "seed": SEED,
            "hardware_class": self.hardware_class,
            "cpus": 1,
            "gpus": 0,
            "memory_bytes": 2 << 30,
        }
        return self.api.assign(spec | changes)

    def wait(self, record: Record) -> Outcome:
        """The end of an attempt, whose own limits end it sooner."""
        end = self.api.finished(record, 600)
        failure = end["failure"] or {}
        code = f"{failure['stage']}/{failure['code']}" if failure else end["state"]
        return Outcome(
            code,
            failure.get("message", ""),
            end["infrastructure"],
            end["metrics"],
            end["provenance"],
            record,
        )

    def attempt(self, files: Mapping[str, bytes], **changes: Any) -> Outcome:
        """Train and score a codebase from claim to finish."""
        return self.wait(self.submit(files, **changes))

    def data(self) -> Path:
        """The prepared data, as the worker has it (after the first attempt)."""
        found = [p.parent for p in (self.folder / "cache").rglob("search") if p.is_dir()]
        assert len(found) == 1, found
        return found[0]

    def score(
        self, files: Mapping[str, bytes], artifact: Mapping[str, bytes], **changes: Any
    ) -> EvaluationOutcome:
        """Score a codebase with an artifact that was trained before, in the same sandbox."""
        folder = self.folder / "scores" / str(next(self.counter))
        out = changes.pop("artifact_dir", folder / "out")
        write_tree(files, folder / "code")
        write_tree(artifact, out)
        (folder / "scratch").mkdir()
        request = EvaluationRequest(
            environment_dir=self.environment.folder,
            config=self.environment.profile("tiny").config,
            predict=self.environment.manifest.entry_points.predict,
            codebase_dir=folder / "code",
            artifact_dir=out,
            held_out=self.data() / "search",
            seed=derive_seed(SEED, "evaluation"),
            metric_name="val_loss",
            sandbox=SandboxSettings("bubblewrap", scratch=folder / "scratch"),
            limits=Limits(wall_seconds=90, memory_bytes=2 << 30),
            seconds=90.0,
            profile="tiny",
            hardware_class=self.hardware_class,
        )
        return evaluate_in_child(dataclasses.replace(request, **changes))

    def score_all(
        self,
        codebases: Mapping[str, Mapping[str, bytes]],
        artifact: Mapping[str, bytes],
        **changes: Any,
    ) -> Callable[[str], EvaluationOutcome]:
        """Begin to score all of them, a few at a time; call with a name for its outcome."""
        begun: dict[str, Future[EvaluationOutcome]] = {
            name: self.pool.submit(self.score, files, artifact, **changes)
            for name, files in codebases.items()
        }
        return lambda name: begun[name].result(timeout=200)

    def attempt_all(
        self, codebases: Mapping[str, Mapping[str, bytes]]
    ) -> Callable[[str], Outcome]:
        """Assign an attempt for each; call with a name for its outcome."""
        records = {name: self.submit(files) for name, files in codebases.items()}
        return lambda name: self.wait(records[name])


def _small_budget(manifest: str) -> str:
    for setting in ("tokens = 286720", "cpu_seconds = 120"):
        assert manifest.count(setting) == 1, setting
    text = manifest.replace("tokens = 286720", f"tokens = {STEPS * 16 * 64}")
    # Twice what a codebase in emulated bfloat16 takes on a busy core.
    text = text.replace("cpu_seconds = 120", "cpu_seconds = 30")
    return re.sub(r"^(compute|evaluation_compute|artifact) = .*\n", "", text, flags=re.MULTILINE)


def verdict(outcome: EvaluationOutcome) -> str:
    """`succeeded`, or the code of the failure."""
    if outcome.failure is None:
        return "succeeded"
    assert outcome.failure.code is not FailureCode.EVALUATION_INTERRUPTED, outcome.failure
    return str(outcome.failure.code)


def unpack_artifact(outcome: Outcome) -> Tree:
    """What training left, without the logs."""
    files = outcome.artifact()
    return {n.removeprefix("artifact/"): c for n, c in files.items() if n.startswith("artifact/")}


def read_shard(path: Path) -> bytes:
    """The tokens of a shard of bytes."""
    return path.read_bytes()[1024::2]
