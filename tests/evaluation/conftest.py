"""Predictors as small scripts: the scripts import this preamble, then misbehave."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from assay.evaluation import EvaluationRequest
from assay.evaluation.channel import Channel
from assay.evaluation.clock import Clock
from assay.evaluation.codes import InvalidAnswer, Rejection
from assay.evaluation.predictor import Predictor
from assay.sandbox import Limits, SandboxSettings

PREAMBLE = """
import json, os, struct, sys, time
import numpy as np
out = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

def read():
    prefix = sys.stdin.buffer.read(8)
    if len(prefix) < 8:
        sys.exit(0)
    header = json.loads(sys.stdin.buffer.read(struct.unpack("<4sI", prefix)[1]))
    arrays = {}
    for a in header["arrays"]:
        size = int(np.prod(a["shape"])) * np.dtype(a["dtype"]).itemsize
        raw = sys.stdin.buffer.read(size)
        arrays[a["name"]] = np.frombuffer(raw, a["dtype"]).reshape(a["shape"])
    return header, arrays

def frame(seq, array, name="y", dtype=None, shape=None, magic=b"ASSY", **more):
    described = {"name": name, "dtype": dtype or array.dtype.name,
                 "shape": list(array.shape) if shape is None else shape}
    header = json.dumps({"seq": seq, "arrays": [described], **more}).encode()
    return struct.pack("<4sI", magic, len(header)) + header + array.tobytes()

def send(data):
    out.write(data)
    out.flush()

def note_sent():
    open("sent", "w").close()

ok = np.zeros((2, 3), np.float32)
"""

StartPredictor = Callable[..., AbstractContextManager[Predictor]]
MakeRequest = Callable[..., EvaluationRequest]


@pytest.fixture
def start_predictor(tmp_path: Path) -> StartPredictor:
    """Start a script as a plain subprocess and talk to it."""

    @contextlib.contextmanager
    def start(
        script: str, *, total: float = 20.0, each: float = 20.0, autopsy: str = "it ended"
    ) -> Iterator[Predictor]:
        path = tmp_path / "predictor.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        process = subprocess.Popen(
            [sys.executable, str(path)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        clock = Clock()
        channel = Channel(os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()), clock)
        process.stdin.close()
        process.stdout.close()
        try:
            yield Predictor(
                channel,
                clock=clock,
                deadline=clock.now() + total,
                answer_seconds=each,
                autopsy=lambda: InvalidAnswer(Rejection.PREDICTOR_DIED, autopsy),
            )
        finally:
            channel.close()
            process.kill()
            process.wait()

    return start


@pytest.fixture
def request_for(tmp_path: Path) -> MakeRequest:
    """A request for an evaluator and, if given, a predictor."""
    for name in ("evaluator", "codebase", "artifact", "held_out", "scratch"):
        (tmp_path / name).mkdir()
    tmp_path.chmod(0o755)

    def make(evaluator: str, predict: str | None = None, **changes: Any) -> EvaluationRequest:
        (tmp_path / "evaluator" / "evaluate.py").write_text(textwrap.dedent(evaluator))
        if predict is not None:
            (tmp_path / "codebase" / "predict.py").write_text(predict)
        request = EvaluationRequest(
            environment_dir=tmp_path,
            config={"size": 3},
            predict=("python", "predict.py") if predict is not None else None,
            codebase_dir=tmp_path / "codebase",
            artifact_dir=tmp_path / "artifact",
            held_out=tmp_path / "held_out",
            seed=11,
            shown_seed=12,
            metric_name="m",
            sandbox=SandboxSettings("subprocess", scratch=tmp_path / "scratch"),
            limits=Limits(wall_seconds=20, memory_bytes=1 << 30),
            seconds=20.0,
            profile="tiny",
            hardware_class="cpu-fp32",
        )
        return dataclasses.replace(request, **changes)

    return make
