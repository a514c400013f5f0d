"""Searches in memory and descriptors, processes that stay, and artifacts that are not files."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.domain.failure_codes import FailureCode
from assay.evaluation import EvaluationOutcome
from assay.patching import guard
from tests.attacks.scoring.arena import Arena, Outcome, Tree, edited, peeking
from tests.attacks.scoring.conftest import ROUNDING, Honest

pytestmark = pytest.mark.slow

WALKS = """
import ctypes
import gc
import re
import sys

LEFT = [3]


def holders(frame):
    while frame:
        yield from frame.f_locals.values()
        frame = frame.f_back
    yield from gc.get_objects()


def longer(row, found):
    for other in found.tolist():
        if len(other) > len(row) and other[: len(row)] == row:
            return other[len(row)]


def in_memory(row, text):
    prefix = b"".join(byte.to_bytes(4, "little") for byte in row)
    needle = re.compile(re.escape(prefix) + rb"(.)\\0{3}")
    for match in needle.finditer(text):
        if match[1] != b"\\0":  # the text has no such byte: unused memory
            return match[1][0]


def memory():
    # What lies around objects and tensors. `write` fails for pages that are not there; which are,
    # /proc does not tell a predictor.
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    tensors = [v.data_ptr() for v in holders(sys._getframe()) if torch.is_tensor(v)]
    reader, writer = os.pipe()
    pages = {}
    for start in (id(tensors), id(holders), libc.sbrk(0) - 4096, *tensors):
        for step in (4096, -4096):
            at = (start & ~4095) + min(step, 0)
            while at not in pages and len(pages) < 1 << 15:
                if libc.write(writer, ctypes.c_void_p(at), ctypes.c_size_t(4096)) != 4096:
                    break
                pages[at] = os.read(reader, 4096)
                at += step
    os.close(reader)
    os.close(writer)
    return b"".join(pages[at] for at in sorted(pages))


def _peek(tokens, logits):
    if not tokens.any() or tokens.size(1) < 12 or not LEFT:
        return logits
    LEFT.pop()
    logits = logits.clone()
    seen = [v for v in holders(sys._getframe()) if torch.is_tensor(v) and v.dim() == 2]
    text = memory()
    for i, row in enumerate(tokens.tolist()):
        labels = [longer(row, v) for v in seen if not v.is_floating_point()]
        labels.append(in_memory(row, text))
        for label in labels:
            if label is not None:
                logits[i, -1, label] += 30.0
    return logits
"""
READS_AHEAD = """
import fcntl


def _peek(tokens, logits):
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        assert not os.read(0, 1 << 20)
    except BlockingIOError:
        pass
    for place in ("/proc/self/fd/0", "/proc/1/fd/0", "/proc/1/fd/1", "/proc/1/mem"):
        try:
            with open(place, "rb", 0) as file:
                os.set_blocking(file.fileno(), False)
                assert not file.read(10)
        except OSError:
            pass
    fcntl.fcntl(0, fcntl.F_SETFL, flags)
    return logits
"""
STAYS = """
import time

if "predict" in __import__("sys").argv[0]:
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            os.close(0)
            time.sleep(500)
            os._exit(0)


def _peek(tokens, logits):
    return logits
"""
ASKED = {"walks": WALKS, "reads ahead": READS_AHEAD, "stays": STAYS}


@pytest.fixture(scope="module")
def asked(arena: Arena, honest: Honest) -> Callable[[str], EvaluationOutcome]:
    return arena.score_all({n: peeking(code) for n, code in ASKED.items()}, honest.artifact)


@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_found_beside_the_question(
    asked: Callable[[str], EvaluationOutcome], honest: Honest, name: str
) -> None:
    outcome = asked(name)
    assert outcome.seconds < 80
    if name == "walks" and outcome.failure is not None:
        # Whatever follows the prefix in freed memory may be taken for the label. It is wrong, and
        # the other instance does not find the same.
        assert outcome.failure.code == FailureCode.INCONSISTENT, outcome
        return
    assert outcome.metrics is not None, outcome
    assert outcome.metrics["val_loss"] == pytest.approx(honest.loss, abs=ROUNDING)


TRAIN = """
import base64, json, os, pickle, sys, time, zipfile
import weights
out = os.environ["ASSAY_OUT"]
path = os.path.join(out, "model.pt")
data = base64.b85decode(weights.TEXT)
with open(path, "wb") as file:
    file.write(data)
"""
REDUCE = """
class Trap:
    def __reduce__(self):
        return os.system, ("touch {canary}",)
with open(path, "wb") as file:
    pickle.dump(Trap(), file)
"""
# Written only after the training process has ended: what is written before is the training's own.
LATE = """
training = os.getpid()
if os.fork() == 0:
    os.setsid()
    for name in range(3):
        os.close(name)
    while os.getppid() == training:
        time.sleep(0.1)
    for _ in range(100):
        time.sleep(0.5)
        with open(path, "wb") as file:
            file.write(b"better weights")
    os._exit(0)
"""
LEFT: dict[str, tuple[str, set[str]]] = {
    "trap": (REDUCE, {"score/predictor_died"}),
    "link to the host": (
        "os.remove(path); os.symlink('/etc/passwd', path)",
        {"train/unsafe_artifact"},
    ),
    "pipe": ("os.remove(path); os.mkfifo(path)", {"train/unsafe_artifact"}),
    "socket": (
        "import socket; os.chdir(out); socket.socket(socket.AF_UNIX).bind('s')",
        {"train/unsafe_artifact"},
    ),
    "a terabyte of nothing": (
        "os.truncate(path, 1 << 40)",
        {"train/crashed", "train/disk_exceeded", "train/unsafe_artifact"},
    ),
    "too many files": (
        "[open(f'{out}/{i}', 'w').close() for i in range(1100)]",
        {"train/unsafe_artifact"},
    ),
    "a tower of folders": (
        "os.chdir(out); [(os.mkdir('d'), os.chdir('d')) for _ in range(40)]; open('x', 'w')",
        {"train/unsafe_artifact"},
    ),
    "a bomb": (
        "archive = zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED)\n"
        "archive.writestr('model/data.pkl', bytes(1 << 28))\narchive.close()",
        {"score/predictor_died"},
    ),
    "late": (LATE, {"succeeded"}),
    "no permissions": ("os.chmod(path, 0); os.chmod(out, 0)", {"succeeded"}),
    "hard link": ("os.link(path, out + '/again.pt')", {"succeeded"}),
    "edited codebase": ("open('model.py', 'w').write('raise SystemExit')", {"succeeded"}),
}
CANARY = Path(tempfile.gettempdir()) / f"canary-{os.getpid()}"


@pytest.fixture(scope="module")
def left(arena: Arena, honest: Honest) -> Iterator[Callable[[str], Outcome]]:
    text = base64.b85encode(honest.artifact["model.pt"]).decode()

    def tree(code: str) -> Tree:
        train = f"{TRAIN}{code.replace('{canary}', str(CANARY))}\n"
        return edited({}, {"train.py": train, "weights.py": f"TEXT = {text!r}\n"})

    with pytest.MonkeyPatch.context() as patch:
        # They bring their weights along, to save time; `test_claims` shows that this is refused.
        patch.setattr(guard, "MAX_GROWTH_BYTES", 8 << 20)
        yield arena.attempt_all({name: tree(code) for name, (code, _) in LEFT.items()})


@pytest.mark.parametrize("name", LEFT)
def test_an_odd_artifact_is_refused_or_harmless(
    left: Callable[[str], Outcome], honest: Honest, name: str
) -> None:
    outcome = left(name)
    assert outcome.code in LEFT[name][1], (outcome.message, outcome.log)
    assert not outcome.infrastructure
    if outcome.code == "succeeded":
        assert outcome.loss == pytest.approx(honest.loss, abs=ROUNDING)
    assert not CANARY.exists()
    assert b"root:" not in outcome.everything_told()
