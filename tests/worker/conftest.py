"""A worker against a fake API, with an environment of a few lines."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from assay.domain.hashing import tree_hash
from assay.environments import Bundle, pack_tree
from assay.environments.bundle import read_tree, write_tree
from services.worker.settings import WorkerSettings
from services.worker.supervisor import Worker
from tests.support.fake_worker_api import TOKEN, FakeApi, Record

MANIFEST = """
name = "tiny"
title = "Tiny"
problem = "Answer."
[metric]
name = "score"
direction = "maximize"
bound = 10.0
[codebase]
protected = ["predict.py"]
[entry_points]
train = ["python", "train.py"]
predict = ["python", "predict.py"]
[smoke]
profile = "small"
seconds = 4
[profiles.small]
cpus = 1
memory_gb = 0.5
budget = { seconds = 20, evaluation_seconds = 10 }
config = { goal = 3 }
[profiles.short]
cpus = 1
memory_gb = 0.5
budget = { seconds = 0.4 }
[profiles.long]
cpus = 1
memory_gb = 0.5
budget = { seconds = 600, evaluation_seconds = 120 }
config = { goal = 3 }
[profiles.gpus]
cpus = 1
gpus = 2
memory_gb = 0.5
budget = { seconds = 60, evaluation_seconds = 30 }
config = { goal = 3 }
[profiles.stingy]
cpus = 1
memory_gb = 0.5
artifact_gb = 1.8626451492309571e-06
budget = { seconds = 20, evaluation_seconds = 10 }
config = { goal = 3 }
[profiles.large]
cpus = 8
gpus = 2
memory_gb = 64.0
budget = { seconds = 600, evaluation_seconds = 120 }
config = { goal = 3, width = 768 }
[profiles.large.smoke]
cpus = 1
memory_gb = 0.5
seconds = 4
config = { width = 8, steps = 2 }
[profiles.warm]
cpus = 1
gpus = 2
memory_gb = 0.5
budget = { seconds = 6, warm_up_seconds = 60, evaluation_seconds = 60 }
config = { goal = 3 }
[profiles.hasty]
cpus = 1
gpus = 2
memory_gb = 0.5
budget = { seconds = 60, warm_up_seconds = 1 }
[profiles.brief]
cpus = 1
memory_gb = 0.5
budget = { seconds = 2 }
[profiles.capped]
cpus = 1
memory_gb = 0.5
config = { goal = 3, ask = 1 }
[profiles.capped.budget]
seconds = 120
evaluation_seconds = 60
compute = 12.0
evaluation_compute = 12.0
artifact = 1.5
"""

EVALUATE = """
import time

def evaluate(run):
    answer = run.read_json("answer.json")
    time.sleep(answer.get("sleep", 0))
    if answer.get("checkpoints"):
        texts = {}
        for checkpoint in run.checkpoints:
            with run.predictor(checkpoint.name) as predictor:
                got = predictor.ask("value", {}, {"value": ("float64", (1,))})
            texts[checkpoint.name] = float(got["value"][0])
        best = max(texts, key=texts.get)
        run.keep(best)
        seconds = {f"seconds/{c.name}": c.seconds for c in run.checkpoints}
        return {"score": texts[best], "best": float(best), **seconds}
    if answer.get("ask") or run.config.get("ask"):
        with run.predictor() as predictor:
            got = predictor.ask("value", {}, {"value": ("float64", (1,))})
        return {"score": float(got["value"][0]), "goal": run.config["goal"]}
    is_sealed = (run.held_out / "data.txt").read_text() == "sealed"
    return {"score": answer["score"], "goal": run.config["goal"], "is_sealed": float(is_sealed)}
"""

PREPARE = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--profile")
parser.add_argument("--out", type=pathlib.Path)
arguments = parser.parse_args()
for split in ("train", "search", "sealed"):
    (arguments.out / split).mkdir()
    (arguments.out / split / "data.txt").write_text(split)
"""

PREDICT = """
import json, os, pathlib, struct, sys
sys.stdout.buffer.write(struct.pack("<4sI", b"ASSY", 15) + b'{"op": "ready"}')
sys.stdout.buffer.flush()
sys.stdin.buffer.peek(1)
from model import VALUE
magic, length = struct.unpack("<4sI", sys.stdin.buffer.read(8))
question = json.loads(sys.stdin.buffer.read(length))
assert "ASSAY_DATA" not in os.environ
arrays = [{"name": "value", "dtype": "float64", "shape": [1]}]
header = json.dumps({"seq": question["seq"], "arrays": arrays}).encode()
sys.stdout.buffer.write(struct.pack("<4sI", b"ASSY", len(header)) + header)
checkpoint = pathlib.Path(os.environ["ASSAY_OUT"], "value")
value = float(checkpoint.read_text()) if checkpoint.exists() else VALUE
sys.stdout.buffer.write(struct.pack("<d", value))
sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""

HEADER = """
import json, os, pathlib, sys, time
out = pathlib.Path(os.environ["ASSAY_OUT"])
def answer(**content):
    (out / "answer.json").write_text(json.dumps(content))
"""


@pytest.fixture(autouse=True)
def _no_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("ASSAY_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of a tiny environment."""
    folder = tmp_path_factory.mktemp("environment") / "tiny"
    files = {
        "environment.toml": MANIFEST,
        "evaluator/evaluate.py": EVALUATE,
        "prepare.py": PREPARE,
        "codebase/train.py": HEADER + "answer(score=1.0)\n",
        "codebase/model.py": "VALUE = 2.0\n",
        "codebase/predict.py": PREDICT,
    }
    write_tree({name: text.encode() for name, text in files.items()}, folder)
    return Bundle.of(read_tree(folder))


@pytest.fixture
def api(environment: Bundle) -> Iterator[FakeApi]:
    fake = FakeApi()
    fake.trees[environment.sha256] = environment.data
    yield fake
    fake.close()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the tests: the data is prepared once."""
    return tmp_path_factory.mktemp("cache")


@dataclass
class Lab:
    """A worker in a thread, and attempts for it."""

    api: FakeApi
    bundle: Bundle
    settings: dict[str, Any]
    workers: list[tuple[Worker, threading.Thread]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    @property
    def scratch(self) -> Path:
        return Path(self.settings["scratch"])

    def start(self, **changes: Any) -> Worker:
        """Start a worker; `stop` ends it."""
        self.settings |= changes
        worker = Worker(WorkerSettings(**self.settings))
        thread = threading.Thread(target=self._run, args=(worker,))
        thread.start()
        self.workers.append((worker, thread))
        return worker

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        except Exception as error:
            self.errors.append(error)

    def stop(self) -> None:
        """Stop the worker and wait until it has ended."""
        for worker, thread in self.workers:
            worker.stop()
            thread.join(15)
            assert not thread.is_alive()

    def codebase(self, train: str, **others: str) -> str:
        """Store the baseline codebase with another `train.py`; returns its hash."""
        files = {f"{n}.py": text.encode() for n, text in others.items()}
        files = {"model.py": b"VALUE = 2.0\n", "predict.py": PREDICT.encode()} | files
        files["train.py"] = (HEADER + train).encode()
        sha256 = tree_hash(files)
        self.api.trees[sha256] = pack_tree(files)
        return sha256

    def submit(self, train: str, *, profile: str = "small", **others: str) -> Record:
        """Assign an attempt that trains with this code."""
        return self.assign(self.codebase(train, **others), profile=profile)

    def assign(self, codebase: str, profile: str = "small", **changes: Any) -> Record:
        number = len(self.api.records) + 1
        spec = {
            "attempt": f"att_{number}",
            "lease_token": 40 + number,
            "measurement": f"mea_{number}",
            "kind": "score",
            "codebase": codebase,
            "environment": "tiny",
            "bundle": self.bundle.sha256,
            "profile": profile,
            "seed": 7,
            "hardware_class": "cpu-test",
            "cpus": 1,
            "gpus": 0,
            "memory_bytes": 1 << 29,
            "needs_isolation": False,
        }
        return self.api.assign(spec | changes)

    def workspaces(self) -> list[str]:
        """Folders of attempts in the scratch folder."""
        return sorted(p.name for p in (self.scratch / "attempts").glob("att_*"))


@pytest.fixture
def lab(api: FakeApi, environment: Bundle, cache: Path, tmp_path: Path) -> Iterator[Lab]:
    """A laboratory with the subprocess sandbox; call `start`."""
    found = Lab(
        api,
        environment,
        {
            "api_url": api.url,
            "token": TOKEN,
            "name": "bench",
            "cpus": 1,
            "memory_bytes": 1 << 30,
            "cache": cache,
            "scratch": tmp_path / "scratch",
            "hardware_class": "cpu-test",
            "sandbox": "subprocess",
            "probe": "quick",
            "grace_seconds": 1,
            "poll_seconds": 0.3,
        },
    )
    yield found
    found.stop()
    assert found.workspaces() == []
